"""What the two programs share: the packages beside them, the conv1d stand-in, the machine's line, lines on the disk."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "lib"))
NULL = os.environ.get("MIX_NULL") == "1"  # a device that computes nothing: shapes and compilation alone
os.environ.setdefault("TRITON_CACHE_DIR", str(HERE / "cache"))
os.environ.setdefault("TRITON_CACHE_AUTOTUNING", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402
import triton  # noqa: E402


def same_key():
    """Compiled kernels are kept under the version alone, so that those made by another Python's Triton 3.6 are found."""
    import triton.compiler.compiler as compiler

    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("triton") and "triton_key" in vars(module):
            module.triton_key = lambda: f"mix-{triton.__version__}"
    del compiler


def short_tuning():
    """Autotuning with short timings: 3 ms of warm-up and 12 of repeats for each candidate, not 25 and 100."""
    from triton.runtime.autotuner import Autotuner
    from triton.testing import do_bench

    def once(call, quantiles=None, **_):
        call()
        return [1.0, 1.0, 1.0]

    def short(call, quantiles=None, **_):
        return do_bench(call, warmup=3, rep=12, quantiles=quantiles)

    if os.environ.get("MIX_FIRST") == "1":  # a quick check of shapes: one candidate, not all
        Autotuner.prune_configs = lambda self, kwargs: [min(self.configs, key=smallness)]
    Autotuner.do_bench = property(lambda self: once if NULL else short, lambda self, value: None)


same_key()
short_tuning()


def smallness(config):
    """How much shared memory a candidate asks for, roughly, so that the smallest is sure to fit."""
    return config.num_stages * sum(v * v for v in config.kwargs.values() if isinstance(v, int))


def conv_stand_in():
    """mamba_ssm's fused function calls the compiled causal_conv1d: FLA's Triton one takes its place."""
    import mamba_ssm.ops.triton.ssd_combined as ssd
    from fla.modules.causal_conv1d.ops import causal_conv1d_bwd, causal_conv1d_fwd

    def first(value):
        return value[0] if isinstance(value, tuple) else value

    def forward(x, weight, bias, seq_idx, initial, out, silu):
        y = first(causal_conv1d_fwd(x.transpose(1, 2), weight, bias, None, activation="silu" if silu else None))
        return y.transpose(1, 2)

    def backward(x, weight, bias, dy, seq_idx, initial, dfinal, dx, return_dinitial, silu):
        got = causal_conv1d_bwd(
            x=x.transpose(1, 2), dy=dy.transpose(1, 2), dht=None, weight=weight, bias=bias, residual=None,
            initial_state=None, activation="silu" if silu else None,
        )
        return got[0].transpose(1, 2), got[1], got[2]

    ssd.causal_conv1d_fwd_function, ssd.causal_conv1d_bwd_function = forward, backward


def smi(*what):
    try:
        text = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(what)}", "--format=csv,noheader,nounits", "-i", "0"],
            capture_output=True, text=True, timeout=10,
        ).stdout.strip().splitlines()[0]
        return dict(zip(what, (value.strip() for value in text.split(","))))
    except (OSError, IndexError, subprocess.SubprocessError):
        return {}


BOARD = ("power.draw", "clocks.sm", "clocks.mem", "temperature.gpu")


def version(name):
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine():
    """The first line: the device and what runs on it."""
    p = torch.cuda.get_device_properties(0)
    return {
        "kind": "machine", "gpu": p.name, "memory_bytes": p.total_memory, "multiprocessors": p.multi_processor_count,
        "torch": torch.__version__, "cuda": torch.version.cuda, "triton": triton.__version__,
        "python": sys.version.split()[0], "fla": "0.6.0", "mamba_ssm": "2.3.2.post1 (e9594ce), Triton kernels alone",
        "transformers": version("transformers"), "peft": version("peft"), "conv1d": "FLA's Triton kernel",
        "autotuning": "3 ms warm-up, 12 ms of repeats a candidate; FLA's l2norm and gated norm tuned once, not for each size", "null": NULL,
    } | smi("driver_version", "power.limit", "clocks.max.sm", "clocks.max.mem", *BOARD)


def read(path):
    """Lines of an earlier call; a last one that was cut off is taken away."""
    path.touch()
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        path.write_bytes(whole)
    return [json.loads(line) for line in whole.splitlines()]


def append(path, row):
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def quantiles(values):
    values = sorted(values)
    at = lambda share: values[round(share * (len(values) - 1))]
    return {"median": round(statistics.median(values), 3), "p10": round(at(0.1), 3), "p90": round(at(0.9), 3), "repeats": len(values)}


def kernels(call, times=1, longest=40):
    """Kernels of one call, summed by name: [name, launches, time us], the longest first."""
    from torch.profiler import ProfilerActivity, profile

    if NULL:
        call()
        return None
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(times):
            call()
        torch.cuda.synchronize()
    sums = {}
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and not getattr(event, "is_user_annotation", False):
            n, us = sums.get(event.name, (0, 0.0))
            sums[event.name] = (n + 1, us + event.time_range.elapsed_us())
    rows = sorted(([name[:110], n / times, round(us / times, 3)] for name, (n, us) in sums.items()), key=lambda r: -r[2])
    return {"busy_us": round(sum(r[2] for r in rows), 3), "launches": sum(r[1] for r in rows), "longest": rows[:longest]}
