"""Shared experts that run beside the dispatcher (`--moe-shared-expert-overlap`), with no GPU: as `megatron_experts.py`, of which this
also writes down on which stream everything is.

Usage: as `megatron_experts.py`. `events` are those of the third step in host order: `+BYTES@STREAM` and `-BYTES@STREAM` for blocks of
the allocator, `KIND:BYTES@STREAM` for collectives with all bytes of the larger side, `matmul@STREAM` for matmuls of Transformer
Engine's linears, `PHASE` where a phase ends. Stream 0 is the default one, 1 the shared experts', 2 any other.
"""
import json, os, sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import deep_ep
import megatron_experts as experts
import transformer_engine_torch as tex
from host_order import Order, at
from megatron_experts import DEEPSEEK, MIXTRAL, base

from megatron.core.transformer.moe.shared_experts import SharedExpertMLP

ORDERS = []
linear = tex.generic_gemm


def multiplied(*arguments, **more):
    ORDERS and ORDERS[0].note_here("matmul")
    return linear(*arguments, **more)


tex.generic_gemm = multiplied


def run(c):
    models, optimizer = base.begin(c)
    out = {"parameters": sum(p.numel() for model in models for p in model.parameters()), "after_setup": torch.cuda.memory_allocated()}
    shared = [module.stream for model in models for module in model.modules() if isinstance(module, SharedExpertMLP)]
    streams = {stream.cuda_stream: 1 for stream in shared if stream is not None}
    order = Order({torch.cuda.current_stream().cuda_stream: 0, **streams}, 2)
    phases = {}

    def mark(name):
        phases[name] = {"peak": torch.cuda.max_memory_allocated(), "end": torch.cuda.memory_allocated()}
        torch.cuda.reset_peak_memory_stats()
        order.note(f"end:{name}")

    ORDERS.append(order)
    order.note_collectives()
    for _ in range(3):
        order.log.clear()
        begun = at()
        torch.cuda.reset_peak_memory_stats()
        base.step(c, models, optimizer, mark)
    out["phases"] = phases
    out["peak_allocated"] = max(phase["peak"] for phase in phases.values())
    out["peak_reserved"] = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
    out["events"] = order.events(begun)
    return out


SHARED = dict(MIXTRAL, shared=1024, shared_overlap=True)
BESIDE = dict(DEEPSEEK, shared_overlap=True)
CASES = {
    "overlap": dict(SHARED),
    "overlap-tp1": dict(SHARED, tp=1),
    "overlap-one-rank": dict(SHARED, tp=1, ep=1, world=1),
    "overlap-etp2": dict(SHARED, ep=2, etp=2),
    "overlap-fused-permute": dict(SHARED, permute_fusion=True),
    "overlap-fp32-router": dict(SHARED, router_fp32=True, permute_fusion=True, tp=1),
    "overlap-unfused-accumulation": dict(SHARED, fused_accumulation=False),
    "overlap-micro-2": dict(SHARED, micro=2),
    "overlap-drop": dict(SHARED, capacity=1.0),
    "overlap-pad": dict(SHARED, capacity=1.0, pad=True),
    "overlap-uniform": dict(SHARED, recompute="uniform"),
    "overlap-moe-again": dict(SHARED, again=["moe"]),
    "overlap-again": dict(SHARED, again=["layernorm", "moe_act"]),
    "overlap-reduce": dict(SHARED, overlap_grad_reduce=True, overlap_param_gather=True),
    "overlap-pp2-first": dict(SHARED, pp=2, rank=0, ep=2),
    "overlap-pp2-last": dict(SHARED, pp=2, rank=4, ep=2),
    "overlap-deepseek": dict(BESIDE),
    "overlap-deepseek-again": dict(BESIDE, again=["mla_up_proj", "layernorm", "moe_act"]),
    "overlap-deepseek-mtp": dict(BESIDE, mtp=1),
}
for recipe in ("delayed", "tensorwise", "blockwise"):
    CASES[f"overlap-{recipe}"] = dict(SHARED, fp8=recipe)
    CASES[f"overlap-{recipe}-tp1"] = dict(SHARED, fp8=recipe, tp=1)
    CASES[f"overlap-{recipe}-deepseek"] = dict(BESIDE, fp8=recipe)

if __name__ == "__main__":
    import megatron.core

    done = {"torch": torch.__version__, "megatron_core": megatron.core.__version__, "cases": []}
    only = sys.argv[2:]
    for name, over in CASES.items():
        if only and name not in only:
            continue
        experts.CASE = c = dict(base.BASE, **over)
        deep_ep.CASE.update(c)
        out = base.child(run, c)
        print(name, {key: out.get(key) for key in ("peak_allocated", "error")}, len(out.get("events", "").split()), flush=True)
        done["cases"].append({"id": name, "config": {k: v for k, v in c.items() if k != "events"}, "outputs": out})
        with open(sys.argv[1], "w") as file:
            json.dump(done, file, indent=0)
