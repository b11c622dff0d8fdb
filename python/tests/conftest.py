"""What tests share: the root of the repository, the command, a small scenario, a small request."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of scenarios are relative to the root, in the package and in the command alike."""
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="session")
def command():
    """Runs ``windtunnel`` as a user would; gives what it wrote."""
    binary = shutil.which("windtunnel", path=str(ROOT / "target" / "release")) or shutil.which("windtunnel")
    assert binary, "tests compare with the command: cargo build --release --bin windtunnel"

    def run(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
        return subprocess.run([binary, *arguments], cwd=folder, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def small() -> dict:
    """Two layers of Llama-3.1-8B on a node: a prediction takes some milliseconds."""
    return {
        "description": "two layers on a node",
        "runtime": "fsdp2",
        "topology": {"name": "h100-sxm-80gb", "nodes": 1},
        "model": {"name": "llama-3.1-8b", "layers": 2},
        "mesh": {"dp_shard": 8},
        "batch": {"sequence": 2048, "micro": 1},
    }


@pytest.fixture
def asked() -> dict:
    """Four layers of Llama-3.1-8B on one node and on two: an answer takes some tenths of a second."""
    return {
        "model": "llama-3.1-8b",
        "sequence": 2048,
        "global_batch": 64,
        "tokens": "10B",
        "frameworks": ["fsdp2"],
        "top": 3,
        "machine": [{"name": "h100-sxm-80gb", "size": [1, 2], "price": "2.5 USD"}],
        "set": {"model.layers": 4},
    }


@pytest.fixture
def unanswered(asked) -> dict:
    """A request that no plan can answer. It leaves few plans, because requests near it are searched, too."""
    few = {"mesh.tp": [1], "mesh.cp": [1], "mesh.dp_replicate": [1], "batch.micro": [1]}
    return {**asked, "top": 1, "vary": few, "limits": {"headroom": "79 GiB"}}


LARGE = "scenarios/gpt3-175b-megatron-1024xa100.toml"
"""A scenario whose prediction takes long enough to see what happens meanwhile."""
