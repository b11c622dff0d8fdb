"""A sweep or a plan on a Ray cluster is that of one process to the byte, also where workers are killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
import ray

import windtunnel
import windtunnel.ray
from conftest import LARGE
from test_sweep import VARY


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory):
    """A cluster of two workers, whose processes start in another folder than the caller's."""
    started_in = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("cluster"))
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    os.chdir(started_in)
    yield
    ray.shutdown()


def text(rows) -> str:
    return json.dumps([row.as_dict() for row in rows])


def test_rows_are_those_of_one_process_to_the_byte(small):
    heard = []
    spread = windtunnel.ray.sweep(small, VARY, batch=5, progress=lambda *said: heard.append(said))
    assert text(spread) == text(windtunnel.sweep(small, VARY))
    assert heard == [(5, 12), (10, 12), (12, 12)]


def test_the_best_rows_are_those_of_one_process(small):
    vary = {"batch.micro": [1, 2, 512], "batch.sequence": [1024, 2048, 4096]}
    best = windtunnel.ray.best(small, vary, keep=3, batch=2)
    assert text(best) == text(windtunnel.sweep(small, vary).best(keep=3))


def test_answers_come_in_order_and_tasks_share_an_actor():
    @ray.remote
    class Most:
        def __init__(self):
            self.value = 0

        def offer(self, value):
            self.value = max(self.value, value)
            return self.value

    most = Most.remote()

    def task(start, stop):
        assert ray.get(most.offer.remote(start)) >= start
        return list(range(start, stop))

    count = 3 * windtunnel.ray.AHEAD
    parts = list(windtunnel.ray.spread(task, count, batch=2, retries=0))
    assert parts == [[at, at + 1] for at in range(0, count, 2)]
    assert ray.get(most.offer.remote(0)) == count - 2


def test_who_stops_early_leaves_no_task_running():
    vary = {"batch.sequence": range(1024, 2048, 2)}
    task = windtunnel.ray._rows_task(LARGE, vary)
    parts = windtunnel.ray.spread(task, 512, batch=1, retries=3)
    assert next(parts)[0].prediction
    parts.close()
    # All of them would take more than a minute.
    wait_for_idle_workers()


def wait_for_idle_workers() -> None:
    until = time.monotonic() + 20
    while running_workers():
        assert time.monotonic() < until
        time.sleep(0.1)


def running_workers() -> list[int]:
    """Workers of this process's cluster that are in one of its tasks, by the title that Ray gives them."""
    parents, busy = {}, []
    for entry in Path("/proc").iterdir():
        try:
            pid = int(entry.name)
            parents[pid] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if (entry / "cmdline").read_bytes().startswith(b"ray::windtunnel"):
                busy.append(pid)
        except (ValueError, OSError):
            # No process, or one that has ended.
            continue

    def ours(pid: int) -> bool:
        while pid in parents:
            if pid == os.getpid():
                return True
            pid = parents[pid]
        return False

    return [pid for pid in busy if ours(pid)]


class Killer:
    """Kills a worker in the middle of a task, once a first batch is collected."""

    def __init__(self) -> None:
        self.killed: list[int] = []

    def __call__(self, done: int, total: int) -> None:
        until = time.monotonic() + 30
        while not self.killed and done < total and time.monotonic() < until:
            for pid in running_workers()[:1]:
                os.kill(pid, signal.SIGKILL)
                self.killed.append(pid)


# Each scenario takes some tenths of a second, so that a worker is killed within one.
LONG = {"batch.accumulation": [192, 96, 64, 48], "batch.micro": [1, 2]}


def test_the_tasks_of_a_killed_worker_are_run_again():
    killer = Killer()
    spread = windtunnel.ray.sweep(LARGE, LONG, batch=1, progress=killer)
    assert killer.killed, "no worker was seen in a task"
    assert text(spread) == text(windtunnel.sweep(LARGE, LONG))
    assert all(row.prediction for row in spread)


def test_without_retries_a_killed_worker_is_an_error():
    killer = Killer()
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        windtunnel.ray.sweep(LARGE, LONG, batch=1, retries=0, progress=killer)
    assert killer.killed


def test_relative_files_mean_what_they_mean_to_the_caller(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(Path(__file__).parents[2] / "topologies" / "h100-sxm-80gb.toml", "mine.toml")
    small["topology"]["name"] = "mine.toml"
    vary = {"batch.micro": [1, 2, 4]}
    assert text(windtunnel.ray.sweep(small, vary, batch=1)) == text(windtunnel.sweep(small, vary))


def test_errors_are_the_caller_s_own(small):
    with pytest.raises(windtunnel.ScenarioError, match='did you mean "batch.sequence"'):
        windtunnel.ray.sweep(small, {"batch.sequense": [1]})
    with pytest.raises(windtunnel.ScenarioError, match=r"not-there\.toml(.|\n)*on the node"):
        windtunnel.ray.sweep(small, {"topology.name": ["not-there.toml"]})
    with pytest.raises(ValueError, match="batch is 0"):
        windtunnel.ray.sweep(small, {}, batch=0)
    with pytest.raises(ValueError, match="keep is 0"):
        windtunnel.ray.best(small, {}, keep=0)


def test_a_plan_is_that_of_one_process_to_the_byte(asked):
    # Two machines, and plans of two frameworks.
    asked["frameworks"] = ["fsdp2", "megatron"]
    heard = []
    spread = windtunnel.ray.plan(asked, progress=lambda *said: heard.append(said))
    alone = windtunnel.plan(asked)
    assert spread.text == alone.text and spread == alone
    assert [len(machine.plans) for machine in spread.machines] == [3, 3]
    assert heard == sorted(heard)


def test_what_one_worker_finds_prunes_the_plans_of_others(asked):
    heard = []
    spread = windtunnel.ray.plan(asked, progress=lambda *said: heard.append(said))
    counts = [machine.counts for machine in spread.machines]
    legal = sum(count.legal - count.too_large for count in counts)
    needed = sum(count.simulated for count in counts)
    *_, simulated = heard[-1]
    # Some are simulated in vain, because they were handed out before the steps were known that beat them.
    assert needed <= simulated < legal / 5, (needed, simulated, legal)


def test_an_exhaustive_search_hands_out_every_legal_plan(asked):
    asked["vary"] = {"mesh.tp": [1], "mesh.cp": [1]}
    heard = []
    spread = windtunnel.ray.plan(asked, exhaustive=True, progress=lambda *said: heard.append(said))
    assert heard[-1][-1] == sum(machine.counts.legal for machine in spread.machines)
    assert spread.text == windtunnel.plan(asked, exhaustive=True).text
    assert [plan.keys for plan in spread.plans()] == [plan.keys for plan in windtunnel.plan(asked).plans()]


# Each plan takes some tenths of a second, so that a worker is killed within one.
SLOW = {
    "model": "gpt3-175b-nemo",
    "sequence": 2048,
    "global_batch": 1536,
    "frameworks": ["megatron"],
    "top": 2,
    "machine": [{"name": "a100-sxm-80gb", "size": 128}],
    "set": {"mesh.tp": 8, "mesh.cp": 1, "batch.micro": 1},
    "vary": {"mesh.pp": [8]},
}


def test_a_worker_that_is_killed_changes_no_plan():
    killer, begun = Killer(), threading.Event()

    def kill():
        begun.wait(60)
        killer(0, 1)

    thread = threading.Thread(target=kill)
    thread.start()
    spread = windtunnel.ray.plan(SLOW, progress=lambda looked, plans, simulated: simulated and begun.set())
    thread.join()
    assert killer.killed, "no worker was seen in a task"
    assert spread.text == windtunnel.plan(SLOW).text


def test_an_exception_of_progress_ends_a_search_and_leaves_no_task_running():
    def enough(looked, plans, simulated):
        if simulated:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        windtunnel.ray.plan(SLOW, progress=enough)
    wait_for_idle_workers()


def test_paths_of_a_request_mean_what_they_mean_to_the_caller(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(Path(__file__).parents[2] / "topologies" / "h100-sxm-80gb.toml", "mine.toml")
    asked["machine"] = [{"name": "mine.toml", "size": 1}]
    assert windtunnel.ray.plan(asked).text == windtunnel.plan(asked).text
    # A second call of the same workers reads the file anew.
    text = Path("mine.toml").read_text(encoding="utf-8")
    assert '"79.18 GiB"' in text
    Path("mine.toml").write_text(text.replace('"79.18 GiB"', '"24 GiB"'), encoding="utf-8")
    smaller = windtunnel.ray.plan(asked)
    assert smaller.best.capacity_bytes == 24 << 30
    assert smaller.text == windtunnel.plan(asked).text


def test_a_request_s_errors_are_those_of_one_process(asked, unanswered):
    for wrong in [{**asked, "modle": "llama-3.1-8b"}, unanswered]:
        said = []
        for plan in [windtunnel.plan, windtunnel.ray.plan]:
            with pytest.raises(windtunnel.ScenarioError) as raised:
                plan(wrong)
            said.append(str(raised.value))
        assert said[0] == said[1]
