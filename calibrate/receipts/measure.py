"""Runs one configuration in a process of its own and says what it took.

Memory: peaks of PyTorch's allocator over steady steps. Time: CUDA events around each steady step, at most two steps ahead
of the device. Burst: a pause, then a few seconds; sustained: a minute of training first.
"""

import os
import platform
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path

WARM_UP = 3  # steps: the first compiles and makes the optimizer's state
PAUSE = 5.0  # seconds of rest before a burst
BURST = 4.0  # seconds of steady steps
SOAK, SUSTAINED = 60.0, 30.0  # seconds before, and of, the sustained steps
FEWEST, MOST = 8, 2000  # steady steps


def machine(board):
    """The device and what runs on it."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    cudnn = torch.backends.cudnn.version()
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else None
    deps = {"cuda": torch.version.cuda, "cudnn": cudnn, "nccl": nccl, "driver": board.driver()}
    try:
        import triton

        deps["triton"] = triton.__version__
    except ImportError:
        pass
    return {
        "device_name": properties.name,
        "memory_gb": round(properties.total_memory / 1e9, 3),
        "power_limit_w": board.power_limit_w(),
        "torch": torch.__version__,
        "deps": {name: version for name, version in deps.items() if version} | {"python": platform.python_version()},
        "host_cpu": host_cpu(),
    }


def host_cpu():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def observed():
    """What differs between PyTorch's versions, as this one does it."""
    import torch

    x = torch.ones(2, 8, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    node = torch.nn.functional.rms_norm(x, (8,), torch.ones_like(x[0])).grad_fn.name()
    square = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
    before = torch.cuda.memory_allocated()
    torch.mm(square, square)
    return {"fused_rms_norm": "rms" in node.lower(), "persistent_workspace": torch.cuda.memory_allocated() > before}


def quantiles(values):
    """Median, and 10th and 90th percentile."""
    values = sorted(values)
    at = lambda share: values[round(share * (len(values) - 1))]
    return {"step_time_s": statistics.median(values), "p10_s": at(0.1), "p90_s": at(0.9), "steps": len(values)}


def steady(training, seconds, least):
    """Times of consecutive steps [s], by CUDA events, until `seconds` have passed and at least `least` steps."""
    import torch

    event = lambda: torch.cuda.Event(enable_timing=True)
    marks, end = [event()], time.monotonic() + seconds
    marks[0].record()
    while (time.monotonic() < end or len(marks) <= least) and len(marks) <= MOST:
        training.step()
        marks.append(event())
        marks[-1].record()
        if len(marks) > 2:
            marks[-3].synchronize()
    torch.cuda.synchronize()
    return [first.elapsed_time(second) / 1000 for first, second in zip(marks, marks[1:])]


def issued(training):
    """How long the host takes to issue a step when nothing is in its way [s]: median of five, each from a drained device."""
    import torch

    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        training.step()
        times.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return statistics.median(times)


def timed(training, c, board, seconds):
    """Step time in the clock regime that the configuration asks for."""
    from board import Watch

    soak, window = (seconds * 2 / 3, seconds / 3) if c.clocks == "sustained" else (0.0, BURST)
    if soak:
        steady(training, soak, 1)
    else:
        time.sleep(PAUSE)
    with Watch(board) as watch:
        times = steady(training, window, FEWEST)
    return quantiles(times) | {"board": watch.median(), "soak_s": soak}


def impossible(c, step_time_s):
    """Why a step time cannot be one, or none."""
    from model import parameters

    tokens = c.sequence * c.micro * c.accumulation
    rate = 6 * parameters(c.shape, c.layers)[1] * tokens / max(step_time_s, 1e-12)
    if step_time_s > 0 and rate < 1e16:
        return None
    return f"a step of {step_time_s} s would be {rate:.1e} FLOP/s: nothing is computed here (--memory-only leaves time out)"


def memory(first_step):
    """Peaks of the allocator since they were last reset, and what the device is short of."""
    import torch

    stats, (free, total) = torch.cuda.memory_stats(), torch.cuda.mem_get_info()
    return {
        "allocated": stats["allocated_bytes.all.peak"],
        "reserved": stats["reserved_bytes.all.peak"],
        "allocator_retries": stats["num_alloc_retries"],
        "allocated_first_step": first_step,
        "device_used": total - free,
    }


def out_of_memory(error):
    words = ("out of memory", "ALLOC_FAILED")
    return type(error).__name__ == "OutOfMemoryError" or any(word in str(error) for word in words)


def train(c, group, board, memory_only, seconds, say):
    """Steps, and what they took."""
    import torch

    from train import Training

    torch.cuda.reset_peak_memory_stats()
    say("building")
    training = Training(c, group)
    for at in range(WARM_UP):
        say("first step" if c.compile == "none" else "compiling") if at == 0 else say("warming up")
        training.step()
        if at == 0:
            first_step = torch.cuda.max_memory_allocated()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    if memory_only:
        training.step()
        return training, {"memory": memory(first_step)}
    say("training to warm the board" if c.clocks == "sustained" else "timing steps")
    result = {"time": timed(training, c, board, seconds), "memory": memory(first_step)}
    why = impossible(c, result["time"]["step_time_s"])
    return training, result | ({"refused": why} if why else {"issue_s": issued(training)})


def kernels(training):
    """The kernels of one step; a machine that lets nobody profile costs no receipt."""
    from breakdown import profiled

    try:
        with tempfile.TemporaryDirectory() as folder:
            return profiled(training.step, Path(folder) / "trace.json")
    except Exception as error:
        traceback.print_exc()
        return {"missing": f"{type(error).__name__}: {error}".splitlines()[0]}


def run(c, group, memory_only, seconds, tell):
    """Everything about one configuration, as plain values; `tell` is called on the way."""
    import torch

    from board import Board

    say = lambda words: tell({"phase": words})
    say("starting")
    if c.expandable:
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    torch.cuda.init()
    board = Board(torch.cuda.get_device_properties(0).uuid)
    result = {"machine": machine(board), "observed": observed()}
    torch.cuda.empty_cache()
    try:
        training, took = train(c, group, board, memory_only, seconds, say)
    except Exception as error:  # running out of memory is a measurement
        if not out_of_memory(error):
            raise
        traceback.print_exc()
        return result | {"oom": str(error).splitlines()[0][:300]}
    result |= took
    if "issue_s" in result:
        # A profiler that takes the process with it costs the breakdown, not the receipt.
        tell({"phase": "profiling a step", "so_far": result | {"breakdown": {"missing": "the profiler did not end"}}})
        result["breakdown"] = kernels(training)
    return result


def child(pipe, log, c, *settings):
    """The process's whole life: runs, answers through the pipe, and prints whatever else there is to the log."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    print(f"== {c.id}", flush=True)
    try:
        pipe.send(run(c, *settings, pipe.send))
    except KeyboardInterrupt:
        pass
    except BaseException as error:
        traceback.print_exc()
        pipe.send({"failed": f"{type(error).__name__}: {error}"})
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        pipe.close()
        # Nothing is worth waiting for: no destructor, no process group's farewell.
        os._exit(0)
