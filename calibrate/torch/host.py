"""What the host pays: issuing operators, layers and optimizers, launching graphs, and asking the device for memory.

issue      one call on the host's clock, from a drained device; `operators` is how many of PyTorch's it dispatched. Layers have few
           tokens, so the device is never what the host waits for. `plain`: parameters are tensors. `tensor_parallel`: DTensors
           over a mesh of one rank. `fsdp`: `fully_shard` over one rank. Collectives are of the `fake` group: they do nothing
operator   one small operator, a mean over 100 in a row, with and without autograd
graph      launch of a CUDA graph of n kernels on the host, or the device's time for it
memory     cudaMalloc, cudaFree, and pinned host memory, by size; the caching allocator when it has a block
"""

import ctypes
import itertools
import time

from models import DENSE, MODELS
from points import Point, run, torch

MIB = 1 << 20
TOKENS = 128


def plan(tiny):
    points = []

    def add(kind, priority, **what):
        points.append(Point({kind: what}, priority, guess_s=2.0 if kind == "issue" else 0.5))

    models = ["tiny", "tiny-biases", "tiny-latent", "tiny-dense"] if tiny else ["llama3-8b", "qwen3-30b", "gpt-oss-120b", "deepseek-v3"]
    for model in models:
        for pass_ in ("forward_no_grad", "forward", "backward"):
            add("issue", 0, model=model, call=pass_, parameters="plain")
        add("issue", 1, model=model, call="optimizer_fused", parameters="plain")
        add("issue", 1, model=model, call="optimizer_foreach", parameters="plain")
    for parameters in ("tensor_parallel", "fsdp"):
        for pass_ in ("forward_no_grad", "forward", "backward"):
            add("issue", 1, model=next(name for name in models if name in DENSE), call=pass_, parameters=parameters)
    for name in ("add_", "add", "mm", "linear", "view", "empty", "rms_norm", "scaled_dot_product_attention"):
        for gradient in (False, True):
            if not (gradient and name in ("add_", "empty")):
                add("operator", 1, name=name, gradient=gradient)
    for nodes in (1, 10, 100, 1000, 4000):
        for clock in ("host", "device"):
            add("graph", 1, kernels=nodes, clock=clock)
    for call in ("cudaMalloc", "cudaFree", "caching_allocator", "pinned"):
        for mib in (1, 8) if tiny else (1, 2, 20, 64, 256, 1024, 4096, 16384):
            if call != "pinned" or mib <= 1024:
                add("memory", 1 if mib in (20, 1024) else 2, call=call, mib=mib)
    return points


def group():
    """A mesh of one rank."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    if not dist.is_initialized():
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    return init_device_mesh("cuda", (1,))


def layer_of(name, parameters):
    from layers import Layer

    layer = Layer(MODELS.get(name) or DENSE[name])
    if parameters == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(layer, mesh=group())
    if parameters == "tensor_parallel":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        parallelize_module(layer, group(), {
            "attention.wqkv": ColwiseParallel(), "attention.wo": RowwiseParallel(),
            "ffn.gate_up": ColwiseParallel(), "ffn.down": RowwiseParallel(),
        })
    return layer


def operators(call):
    """How many operators of PyTorch a call dispatches."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        number = 0

        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            Count.number += 1
            return function(*arguments, **(options or {}))

    with Count():
        call()
    return Count.number


def issue(what, board, settings):
    from layers import rotary_table
    from timing import timed_by_host

    model = MODELS.get(what["model"]) or DENSE[what["model"]]
    torch.backends.cuda.enable_cudnn_sdp(not settings.tiny)
    layer = layer_of(what["model"], what["parameters"])
    table = rotary_table(TOKENS, model.H // 3 if model.latent else model.H)
    x = torch.randn(1, TOKENS, model.D, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn_like(x)
    kept = []

    def forward():
        kept[:] = [layer(x, table)]

    def forward_no_grad():
        with torch.no_grad():
            layer(x, table)

    def ready_for_backward():
        layer.zero_grad(set_to_none=True)
        forward()
        torch.cuda.synchronize()

    call, prepare = {"forward_no_grad": (forward_no_grad, None), "forward": (forward, None)}.get(what["call"], (None, None))
    if what["call"] == "backward":
        call, prepare = lambda: kept[0].backward(gradient), ready_for_backward
    elif call is None:
        how = what["call"].split("_")[1]
        optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-5, **{how: True})
        ready_for_backward()
        kept[0].backward(gradient)
        call = optimizer.step
    row = timed_by_host(call, board, 0.3, prepare)
    if prepare:
        prepare()
    try:
        row["operators"] = operators(call)
    except Exception:  # some wrappers refuse a mode inside
        row["operators"] = None
    return row


def operator(what, board):
    from timing import timed_by_host

    x = torch.randn(128, 128, device="cuda", dtype=torch.bfloat16, requires_grad=what["gradient"])
    w, q = torch.randn_like(x), x.view(1, 2, 64, 128)
    F, plain = torch.nn.functional, x.detach()
    call = {
        "add_": lambda: plain.add_(1), "add": lambda: x + w, "mm": lambda: torch.mm(x, w), "linear": lambda: F.linear(x, w),
        "view": lambda: x.view(64, 256), "empty": lambda: torch.empty(128, 128, device="cuda"), "rms_norm": lambda: F.rms_norm(x, (128,)),
        "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(q, q, q),
    }[what["name"]]
    torch.backends.cuda.enable_cudnn_sdp(False)
    with torch.set_grad_enabled(what["gradient"]):
        row = timed_by_host(lambda: [call() for _ in itertools.repeat(None, 100)], board)
    return row | {name: round(row[name] / 100, 4) for name in ("median", "p10", "p90")}


def graph(what, board):
    from timing import timed, timed_by_host

    x = torch.zeros(1024, device="cuda")
    x.add_(1)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(what["kernels"]):
            x.add_(1)
    begun = time.perf_counter()
    captured.replay()
    torch.cuda.synchronize()
    first = {"first_replay_us": round((time.perf_counter() - begun) * 1e6, 1)}  # it also uploads
    if what["clock"] == "host":
        return timed_by_host(captured.replay, board) | first
    return timed([captured.replay], "burst", board) | first


def cuda_runtime():
    """The CUDA runtime that PyTorch has loaded."""
    everything = ctypes.CDLL(None)
    if hasattr(everything, "cudaMalloc"):
        return everything
    with open("/proc/self/maps") as maps:
        path = next(line.split()[-1] for line in maps if "libcudart" in line)
    return ctypes.CDLL(path)


def memory(what, board):
    from timing import timed_by_host

    size = what["mib"] * MIB
    if what["call"] == "caching_allocator":
        torch.empty(size, dtype=torch.uint8, device="cuda")
        return timed_by_host(lambda: torch.empty(size, dtype=torch.uint8, device="cuda"), board)
    if what["call"] == "pinned":
        return timed_by_host(lambda: torch.empty(size, dtype=torch.uint8).pin_memory(), board)
    runtime, held = cuda_runtime(), []

    def allocate():
        pointer = ctypes.c_void_p()
        if runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)) != 0:
            runtime.cudaGetLastError()
            raise RuntimeError(f"out of memory: cudaMalloc of {what['mib']} MiB")
        held.append(pointer)

    def release():
        while held:
            runtime.cudaFree(held.pop())

    torch.cuda.empty_cache()
    try:
        if what["call"] == "cudaMalloc":
            return timed_by_host(allocate, board, prepare=release)
        return timed_by_host(release, board, prepare=allocate)
    finally:
        release()


def measure(point, board, settings):
    (kind, what), = point.what.items()
    if kind == "issue":
        return issue(what, board, settings)
    return {"operator": operator, "graph": graph, "memory": memory}[kind](what, board)


if __name__ == "__main__":
    run(__doc__, plan, measure)
