"""Where a step's kernels came from, read off a profiler's trace: by part of the step and operator, under the names that
`windtunnel run` prints, so that the two can be laid side by side.

A kernel belongs to the outermost operator around its launch that autograd sees as one: `aten::linear` is made of
others (it is "composite implicit"), `aten::mm` is not. A Triton kernel goes by its own name.
"""

import functools
import json
from collections import defaultdict

import torch

MARK = "windtunnel."
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCH = ("cuda_runtime", "cuda_driver")
HOST = ("cpu_op", "user_annotation")
LONGEST_NAME = 120


@functools.cache
def composite(name):
    """Whether `aten::x` is made of other operators on this device."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    if packet is None:
        return False
    names = (f"{name}.{overload}".removesuffix(".default") for overload in packet.overloads())
    # TorchScript has overloads that the dispatcher does not know.
    known, has = torch._C._dispatch_has_kernel, torch._C._dispatch_has_kernel_for_dispatch_key
    composed = lambda full: has(full, "CompositeImplicitAutograd") and not has(full, "CUDA")
    return any(known(full) and composed(full) for full in names)


def operator(ancestors, kernel):
    """The operator's name: `ancestors` are the names around the launch, outermost first."""
    for name in ancestors:
        if name.startswith("fsdp::") or (name.startswith("aten::") and not composite(name)):
            return name.replace("::", ".")
    for name in reversed(ancestors):
        if name.startswith(("triton_", "nccl:", "c10d::", "aten::")):
            return name.replace("::", ".")
    return kernel if kernel.startswith("triton_") else "other"


def part(ancestors):
    """forward, recompute, backward or optimizer: the innermost mark; other threads than the loop's run backward."""
    marks = [name.removeprefix(MARK) for name in ancestors if name.startswith(MARK)]
    return marks[-1] if marks else "backward"


def nested(events):
    """Each launch with the names around it, by its correlation id."""
    around = {}
    threads = defaultdict(list)
    for event in events:
        if event.get("cat") in HOST + LAUNCH:
            threads[event["tid"]].append(event)
    for thread in threads.values():
        thread.sort(key=lambda event: (event["ts"], -event["dur"]))
        open_events = []
        for event in thread:
            while open_events and open_events[-1]["ts"] + open_events[-1]["dur"] <= event["ts"]:
                open_events.pop()
            if event["cat"] in LAUNCH:
                around[event["args"].get("correlation")] = [outer["name"] for outer in open_events]
            else:
                open_events.append(event)
    return around


def busy(kernels):
    """Time during which at least one kernel ran, and from the first's start to the last's end [s]."""
    covered, end = 0.0, 0.0
    kernels = sorted(kernels, key=lambda kernel: kernel["ts"])
    for kernel in kernels:
        stop = kernel["ts"] + kernel["dur"]
        covered += max(0.0, stop - max(end, kernel["ts"]))
        end = max(end, stop)
    return covered * 1e-6, (end - kernels[0]["ts"]) * 1e-6 if kernels else 0.0


def family(part_name, name):
    """The families of `windtunnel`'s profiles."""
    if part_name == "optimizer":
        return "optimizer"
    if "attention" in name:
        return "attention backward" if part_name == "backward" else "attention forward"
    if name.removeprefix("aten.") in ("mm", "addmm", "bmm") or name.startswith("extern_kernels."):
        return "matmul"
    return "memory-bound" if name.startswith(("aten.", "fsdp.", "triton_")) else "other"


def summed(rows, keys):
    """Rows with the same keys added up, the longest first."""
    sums = defaultdict(lambda: [0, 0.0])
    for row in rows:
        total = sums[tuple(row[key] for key in keys)]
        total[0] += 1
        total[1] += row["dur"]
    rows = [dict(zip(keys, names)) | {"count": n, "busy_s": round(us * 1e-6, 9)} for names, (n, us) in sums.items()]
    return sorted(rows, key=lambda row: -row["busy_s"])


def breakdown(trace):
    """The tables of one step: by family, by part and operator, and the longest kernels by name."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    around = nested(events)
    kernels = [event for event in events if event.get("cat") in DEVICE]
    rows = []
    for kernel in kernels:
        ancestors = around.get(kernel["args"].get("correlation"), [])
        where, name = part(ancestors), operator(ancestors, kernel["name"])
        rows.append(
            {"part": where, "name": name, "family": family(where, name), "kernel": kernel["name"][:LONGEST_NAME]}
            | {"dur": kernel["dur"]}
        )
    covered, span = busy(kernels)
    return {
        "launches": len(kernels),
        "busy_s": round(covered, 9),
        "idle_share": round(1 - covered / span, 4) if span else None,
        "families": summed(rows, ["family"]),
        "parts": summed(rows, ["part", "name"]),
        "kernels": summed(rows, ["kernel", "part", "name"])[:30],
    }


def profiled(step, path):
    """Runs one step under the profiler and reads its trace."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))
    return breakdown(json.loads(path.read_text()))
