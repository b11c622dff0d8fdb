"""Memory, copies and collectives of Megatron-Core's training step with CUDA graphs, with no GPU: as `megatron_core.py`.

Capture needs five more stubs: `cudaStreamBeginCapture`, `cudaStreamEndCapture`, `cudaStreamIsCapturing`, `cudaStreamGetCaptureInfo` must
answer as a stream that captures does, `cudaGraphInstantiate` and `cudaGraphLaunch` do nothing. What allocates while capturing is
PyTorch's own allocator with its private pools. Usage: as `megatron_core.py`, with TRANSFORMER_ENGINE=FOLDER.

One step runs without graphs, then they are captured as `megatron/training/training.py` does, then three steps replay them.
"""
import functools, json, os, sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import megatron_core as base
import megatron_experts as experts
from megatron_core import Collectives, child
from torch.utils._python_dispatch import TorchDispatchMode

from megatron.core.full_cuda_graph import FullCudaGraphWrapper
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.cuda_graphs import TECudaGraphHelper

base.model_parallel_cuda_manual_seed = lambda seed: model_parallel_cuda_manual_seed(seed, te_rng_tracker=True, force_reset_rng=True)


class Copies(TorchDispatchMode):
    """Notes copies between tensors, in bytes."""

    def __init__(self, log):
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if str(func) == "aten.copy_.default":
            self.log.append(args[0].numel() * args[0].element_size())
        return func(*args, **(kwargs or {}))


def batch(c):
    whole = dict(dtype=torch.long, device="cuda")
    part = c["seq"] // c["cp"]
    tokens, labels, positions = (torch.zeros(c["micro"], part, **whole) for _ in range(3))
    mask = torch.zeros(c["micro"], 1, part, c["seq"], dtype=torch.bool, device="cuda")
    loss_mask = torch.ones(c["micro"], part, device="cuda")
    return dict(tokens=tokens, labels=labels, positions=positions, mask=mask, loss_mask=loss_mask)


def forward_step(c, iterator, model):
    read = batch(c) if iterator is None else next(iterator)
    out = model(read["tokens"], read["positions"], read["mask"], labels=read["labels"])
    return out, functools.partial(base.loss_of, read["loss_mask"])


def batches(c):
    while True:
        yield batch(c)


def pools():
    by = {}
    for segment in torch.cuda.memory_snapshot():
        own = "default" if tuple(segment["segment_pool_id"]) == (0, 0) else "graphs"
        known = by.setdefault(own, {"reserved": 0, "allocated": 0})
        known["reserved"] += segment["total_size"]
        known["allocated"] += segment["allocated_size"]
    return by


def begin(c):
    graphs = dict(cuda_graph_impl=c["impl"], cuda_graph_scope=c["scope"], cuda_graph_warmup_steps=1)
    plain = experts.TransformerConfig
    experts.TransformerConfig = lambda **values: plain(**{**values, **graphs})
    init_num_microbatches_calculator(0, None, c["micro_batches"] * c["micro"], c["micro"], 1)
    return base.begin(c)


def run(c):
    models, optimizer = begin(c)
    base.forward_step = forward_step
    whole = c["impl"] == "local" and "full_iteration" in c["scope"]
    chunks = c["vpp"] or 1
    out = {"after_setup": torch.cuda.memory_allocated()}
    schedule = base.get_forward_backward_func()
    wrapped = FullCudaGraphWrapper(schedule, cuda_graph_warmup_steps=1) if whole else schedule
    iterators = [batches(c) for _ in range(chunks)] if whole else [None] * chunks
    phases, copies, launches = {}, [], __import__("ctypes").CDLL(None).nullgraph_launches

    def mark(name):
        phases[name] = {"peak": torch.cuda.max_memory_allocated(), "end": torch.cuda.memory_allocated()}
        torch.cuda.reset_peak_memory_stats()
        if name == "forward-backward":
            # What the optimizer copies is no part of it.
            out["copies"] = " ".join(f"{size}:{copies.count(size)}" for size in sorted(set(copies), reverse=True) if size > 4096)

    def step():
        for model in models:
            model.zero_grad_buffer()
        optimizer.zero_grad()
        mark("zero")
        for model in models:
            for module in model.modules():
                module.current_microbatch = getattr(module, "current_microbatch", 0)
        wrapped(
            forward_step_func=functools.partial(forward_step, c), data_iterator=iterators if c["vpp"] else iterators[0],
            model=models if c["vpp"] else models[0], num_microbatches=c["micro_batches"], seq_length=c["seq"],
            micro_batch_size=c["micro"], forward_only=False,
        )
        mark("forward-backward")
        optimizer.step()
        mark("optimizer")

    step()
    out["eager"] = {"peak_allocated": max(p["peak"] for p in phases.values()), "peak_reserved": torch.cuda.memory_stats()["reserved_bytes.all.peak"]}
    if c["impl"] == "transformer_engine":
        helper = TECudaGraphHelper(models, models[0].config, c["seq"], c["micro"], [optimizer])
        if c["overlap_param_gather"]:
            for model in models:
                model.disable_forward_pre_hook()
        before = torch.cuda.memory_allocated()
        helper.create_cudagraphs()
        if c["overlap_param_gather"]:
            for model in models:
                model.enable_forward_pre_hook()
            helper.cuda_graph_set_manual_hooks()
        out["kept_by_capture"] = torch.cuda.memory_allocated() - before
    for _ in range(2):
        step()
    torch.cuda.reset_peak_memory_stats()
    log, before = [], launches()
    with Collectives(log):
        step()
    out["peak_allocated"] = max(phase["peak"] for phase in phases.values())
    out["phases"] = phases
    out["peak_reserved"] = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
    out["pools"] = pools()
    out["launches"] = launches() - before
    out["collectives"] = " ".join(log)
    with Copies(copies):
        step()
    return out


DENSE = dict(experts.EXPERTS, experts=None, ep=1, etp=None, aux=0, qk_norm=False)


def host(c):
    """What a replay costs the host [us a block], beside blocks of plain PyTorch in the same process, as in `host_time.py`."""
    import host_time

    c = {**c, **host_time.ALONE, "layers": 4, "etp": 1}
    experts.CASE = c
    models, optimizer = begin(c)
    decoder, seen = host_time.called(c, models[0])
    TECudaGraphHelper(models, models[0].config, c["seq"], c["micro"], [optimizer]).create_cudagraphs()
    times = host_time.in_turn(c, decoder, seen)
    return {"us_per_block": {name: round(us, 1) for name, us in times.items()}, "linear_forward_us": host_time.linears(c)}


TE = dict(base.ENGINE_BASE, impl="transformer_engine", scope=[], dropout=0.0)
LLAMA = dict(TE, **base.LLAMA, rms_norm=True, fused_accumulation=True, micro_batches=4)
MIXTRAL = dict(experts.MIXTRAL, impl="transformer_engine")
CASES = {
    "te-layer": dict(TE),
    "te-layer-fused": dict(TE, fused_accumulation=True),
    "te-attn": dict(LLAMA, scope=["attn"]),
    "te-attn-micro-2": dict(LLAMA, scope=["attn"], micro=2),
    "te-mlp": dict(LLAMA, scope=["mlp"]),
    "te-attn-mlp": dict(LLAMA, scope=["attn", "mlp"]),
    "te-llama": dict(LLAMA),
    "te-llama-unfused": dict(LLAMA, fused_accumulation=False),
    "te-llama-no-sp": dict(LLAMA, sp=False),
    "te-llama-selective": dict(LLAMA, recompute="selective"),
    "te-pp2-first": dict(LLAMA, pp=2, rank=0, layers=4),
    "te-pp2-last": dict(LLAMA, pp=2, rank=4, layers=4),
    "te-pp2-mlp-first": dict(LLAMA, pp=2, rank=0, layers=4, scope=["mlp"]),
    "te-pp2-unfused-first": dict(LLAMA, pp=2, rank=0, layers=4, fused_accumulation=False),
    "te-pp2-vpp2-first": dict(LLAMA, pp=2, vpp=2, rank=0, layers=8),
    "te-overlap": dict(LLAMA, overlap_grad_reduce=True, overlap_param_gather=True, layers=4),
    "none": dict(LLAMA, impl="none"),
    "none-pp2-first": dict(LLAMA, impl="none", pp=2, rank=0, layers=4),
    "full-iteration": dict(LLAMA, impl="local", scope=["full_iteration"]),
    "full-iteration-uniform": dict(LLAMA, impl="local", scope=["full_iteration"], recompute="uniform"),
    "full-iteration-pp2-first": dict(LLAMA, impl="local", scope=["full_iteration"], pp=2, rank=0, layers=4),
    "local-layer": dict(LLAMA, impl="local", scope=[]),
    "te-moe-router": dict(MIXTRAL, scope=["moe_router"]),
    "te-moe-attn-router": dict(MIXTRAL, scope=["attn", "moe_router"]),
    "te-moe-preprocess": dict(MIXTRAL, scope=["moe_router", "moe_preprocess"], permute_fusion=True),
    "te-moe-shared": dict(MIXTRAL, scope=["attn", "moe_router", "moe_preprocess"], permute_fusion=True, shared=1024),
    "te-moe-pp2-first": dict(MIXTRAL, scope=["moe_router", "moe_preprocess"], permute_fusion=True, pp=2, rank=0, ep=2, layers=4, micro_batches=4),
    "te-moe-padded": dict(MIXTRAL, scope=["attn", "moe"], capacity=1.0, pad=True),
}

if __name__ == "__main__":
    import megatron.core

    if sys.argv[2:] == ["host"]:
        for name in ("te-llama", "te-layer"):
            c = {**base.BASE, **DENSE, **CASES[name], "events": False}
            experts.CASE = c
            print(name, json.dumps(child(host, c)), flush=True)
        sys.exit()
    done = {"torch": torch.__version__, "megatron_core": megatron.core.__version__, "cases": []}
    only = sys.argv[2:]
    for name, over in CASES.items():
        if only and name not in only:
            continue
        c = {**base.BASE, **DENSE, **over, "events": False}
        experts.CASE = c
        out = child(run, c)
        print(name, json.dumps({k: v for k, v in out.items() if k not in ("collectives", "phases")}), len(out.get("collectives", "").split()), flush=True)
        done["cases"].append({"id": name, "config": {k: v for k, v in c.items() if k != "events"}, "outputs": out})
        with open(sys.argv[1], "w") as file:
            json.dump(done, file, indent=0)
