"""`DistributedDataParallel` with no GPU: PyTorch 2.15's reducer, autograd, autocast, caching allocator and optimizers themselves on
"cuda" tensors whose kernels do nothing, on the decoders of `autocast.py`; rank 0 of a world of which nobody else is there. The
process group is one written in Python: it says what it is asked for, and answers at once. Whether all ranks have the same
parameters is not asked, since no device can answer. The reducer reads back what it has sent to the device (which buckets it
rebuilds), so the stub of `cudaMemcpyAsync` gives back small copies as they came, and that of `cudaPointerGetAttributes` knows
pinned memory. Every case is a process of its own; `DEFAULTS` says what a switch is called,
and what it is by default. Five steps of forward, loss, backward, optimizer, `zero_grad()`; the last is told, and peaks are the last's but
for reserved memory. Buckets are rebuilt before the second.

    python ddp.py OUT.json [ids or their beginnings]      # VERBOSE=1 prints where each block is taken instead

Of a case: `setup` and `first`, the collectives of construction and of the first step; `collectives` by phase (kind and bytes, in host
order); `phases`, bytes; `events`, the whole step in host order: `+` allocation and `-` free (bytes asked for), `all_reduce` and
`broadcast`, `|` and a phase's name at its end.
"""
import contextlib, json, os, sys, warnings

import torch, torch.nn.functional as F
import torch.distributed as dist

import autocast as decoders
from autocast import BIASES, GPT2, MPT, OLMO2, QWEN2, QWEN3, SMALL
from fsdp2_switches import child, frames

LLAMA = dict(SMALL, rope="complex", n_kv_heads=4, ffn=3584)
WIDE = dict(LLAMA, dim=2048, n_layers=6, n_heads=32, n_kv_heads=8, ffn=8192, vocab=32000)
DEFAULTS = dict(
    decoders.DEFAULTS, world=8, ga_sync="last", clip=0,
    ddp={},                     # arguments of DistributedDataParallel
    hook=None,                  # "bf16_compress_hook", "fp16_compress_hook", "allreduce_hook"
    opt="adamw_foreach",
    reentrant=False,            # checkpoints with use_reentrant=True
)
GA = dict(ga=3)
VIEW = dict(ddp=dict(gradient_as_bucket_view=True))
STATIC = dict(ddp=dict(static_graph=True))
UNUSED = dict(ddp=dict(find_unused_parameters=True))
STILL = dict(ddp=dict(broadcast_buffers=False))
BF16, CAST, FULL = dict(mp="bf16"), dict(mp="autocast"), dict(ac="full")
CASES = {
    "fp32": (LLAMA, {}), "view": (LLAMA, VIEW), "bf16": (LLAMA, BF16), "bf16_view": (LLAMA, BF16 | VIEW),
    "autocast": (LLAMA, CAST), "autocast_view": (LLAMA, CAST | VIEW), "autocast_full": (LLAMA, CAST | FULL), "autocast_full_view": (LLAMA, CAST | FULL | VIEW),
    "full": (LLAMA, FULL), "bf16_full": (LLAMA, BF16 | FULL), "bf16_full_view": (LLAMA, BF16 | FULL | VIEW),
    "ga": (LLAMA, GA), "ga_view": (LLAMA, GA | VIEW), "ga_bf16": (LLAMA, GA | BF16), "ga_bf16_view": (LLAMA, GA | BF16 | VIEW), "ga_autocast": (LLAMA, GA | CAST),
    "ga_autocast_full_view": (LLAMA, GA | CAST | FULL | VIEW),
    "ga_every": (LLAMA, dict(GA, ga_sync="every")), "ga_every_view": (LLAMA, dict(GA, ga_sync="every") | VIEW),
    "ga_every_bf16": (LLAMA, dict(GA, ga_sync="every") | BF16),
    "static": (LLAMA, STATIC), "static_full_view": (LLAMA, FULL | dict(ddp=dict(static_graph=True, gradient_as_bucket_view=True))),
    "static_ga": (LLAMA, GA | STATIC),
    "cap_1": (LLAMA, dict(ddp=dict(bucket_cap_mb=1))), "cap_100": (LLAMA, dict(ddp=dict(bucket_cap_mb=100))), "cap_25": (LLAMA, dict(ddp=dict(bucket_cap_mb=25))),
    "cap_100_view": (LLAMA, dict(ddp=dict(bucket_cap_mb=100, gradient_as_bucket_view=True))), "cap_10000": (LLAMA, dict(ddp=dict(bucket_cap_mb=10000))),
    "unused": (LLAMA, UNUSED), "unused_view": (LLAMA, dict(ddp=dict(find_unused_parameters=True, gradient_as_bucket_view=True))), "unused_ga": (LLAMA, GA | UNUSED),
    "unused_bf16": (LLAMA, BF16 | UNUSED), "unused_autocast": (LLAMA, CAST | UNUSED), "unused_cap_100": (LLAMA, dict(ddp=dict(find_unused_parameters=True, bucket_cap_mb=100))),
    "unused_static": (LLAMA, dict(ddp=dict(find_unused_parameters=True, static_graph=True))),
    "still": (LLAMA, STILL), "ga_still": (LLAMA, GA | STILL),
    "hook_bf16": (LLAMA, dict(hook="bf16_compress_hook")), "hook_bf16_view": (LLAMA, VIEW | dict(hook="bf16_compress_hook")),
    "hook_bf16_ga": (LLAMA, GA | dict(hook="bf16_compress_hook")), "hook_bf16_of_bf16": (LLAMA, BF16 | dict(hook="bf16_compress_hook")),
    "hook_plain": (LLAMA, dict(hook="allreduce_hook")),
    "reentrant": (LLAMA, FULL | dict(reentrant=True)), "reentrant_autocast_view": (LLAMA, CAST | FULL | VIEW | dict(reentrant=True)),
    "unused_reentrant": (LLAMA, FULL | UNUSED | dict(reentrant=True)), "reentrant_static": (LLAMA, FULL | STATIC | dict(reentrant=True)),
    "clip": (LLAMA, dict(clip=1)), "clip_view": (LLAMA, VIEW | dict(clip=1)),
    "lazy": (LLAMA, dict(ddp=dict(lazy_bucket_allocation=True))), "lazy_view": (LLAMA, dict(ddp=dict(lazy_bucket_allocation=True, gradient_as_bucket_view=True))),
    "lazy_ga": (LLAMA, GA | dict(ddp=dict(lazy_bucket_allocation=True))), "batched": (LLAMA, dict(ddp=dict(batched_grad_copy=True))),
    "batched_view": (LLAMA, dict(ddp=dict(batched_grad_copy=True, gradient_as_bucket_view=True))),
    **{name + end: (dims, over) for name, dims in dict(gpt2=GPT2, qwen2=QWEN2, qwen3=QWEN3, olmo2=OLMO2, mpt=MPT, wide=WIDE).items()
       for end, over in {"": {}, "_autocast_view": CAST | VIEW}.items()},
    "gpt2_ga_bf16": (GPT2, GA | BF16), "gpt2_autocast_full": (GPT2, CAST | FULL), "gpt2_unused": (GPT2, UNUSED),
    "wide_bf16_full_view": (WIDE, BF16 | FULL | VIEW), "wide_autocast_full_ga": (WIDE, CAST | FULL | GA), "wide_fused": (WIDE, dict(opt="adamw_fused")),
    "wide_sgd": (WIDE, BF16 | dict(opt="sgd")),
}
STEPS = 5


class Answered(dist.Work):
    def __init__(self, result):
        super().__init__()
        self.future = torch.futures.Future()
        self.future.set_result(result)

    def wait(self, timeout=None): return True
    def get_future(self): return self.future


class Alone(dist.ProcessGroup):
    """Rank 0 of a world that is not there."""

    def __init__(self, world, say):
        super().__init__(0, world)
        self.world, self.say = world, say

    def answer(self, kind, tensors):
        for t in tensors: self.say(kind, t.numel() * t.element_size())
        return Answered(tensors)

    def size(self): return self.world
    def rank(self): return 0
    def getBackendName(self): return "alone"
    def allreduce(self, tensors, opts=None): return self.answer("all_reduce", tensors)
    def broadcast(self, tensors, opts=None): return self.answer("broadcast", tensors)


def run(c, d):
    import torch.cuda.memory as M
    import torch.nn.parallel.distributed as D
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    warnings.filterwarnings("ignore")
    verbose, said, phases = bool(os.environ.get("VERBOSE")), [], {}
    x, y = (torch.zeros(c["bs"], c["seq"], dtype=torch.long, device="cuda") for _ in range(2))

    def say(kind, size):
        said.append((kind, size))
        M._annotate_tensor(x, kind)  # an event of its own among allocations

    def calls():
        list = [f"{kind} {size}" for kind, size in said if kind[0] != "|"]
        said.clear()
        return list

    dist.init_process_group("fake", rank=0, world_size=c["world"], store=torch.testing._internal.distributed.fake_pg.FakeStore())
    D._verify_param_shape_across_processes = lambda *args, **kwargs: None
    torch.backends.cuda.enable_cudnn_sdp(False); torch.backends.cuda.enable_math_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(c["mp"] == "fp32")  # flash attention has no kernel of fp32
    torch.set_default_dtype(torch.bfloat16 if c["mp"] == "bf16" else torch.float32)
    again = torch.utils.checkpoint.checkpoint
    decoders.checkpoint = lambda *args, use_reentrant: again(*args, use_reentrant=c["reentrant"])
    with torch.device("cuda"): m = decoders.Model(c, d)
    torch.set_default_dtype(torch.float32)
    group = Alone(c["world"], say)
    model = D.DistributedDataParallel(m, process_group=group, **c["ddp"])
    if c["hook"]: model.register_comm_hook(group, getattr(default_hooks, c["hook"]))
    kind, _, how = c["opt"].partition("_")
    make = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[kind]
    opt = make(m.parameters(), lr=1e-4, **({how: True} if how else {}))
    autocast = lambda: torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=c["cache"]) if c["mp"] == "autocast" else contextlib.nullcontext()

    def mark(name):
        s = torch.cuda.memory_stats()
        phases[name] = dict(peak=s["allocated_bytes.all.peak"], end=s["allocated_bytes.all.current"], reserved=s["reserved_bytes.all.peak"])
        say("|" + name, 0)
        torch.cuda.reset_peak_memory_stats()

    def one():
        for micro in range(c["ga"]):
            last, at = micro == c["ga"] - 1, str(micro) if c["ga"] > 1 else ""
            with model.no_sync() if c["ga_sync"] == "last" and not last else contextlib.nullcontext():
                with autocast(): loss = F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten(0, 1))
                mark("fwd" + at)
                loss.backward()
                del loss
                mark("bwd" + at)
        if c["clip"]:
            torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            mark("clip")
        opt.step()
        mark("opt")
        opt.zero_grad()
        mark("zero")

    setup = calls()
    one()
    first = calls()
    for _ in range(STEPS - 2): one()
    said.clear()
    M._record_memory_history(enabled="all", context="alloc" if verbose else None, stacks="python", max_entries=10_000_000)
    torch.cuda.reset_peak_memory_stats()
    reserved = torch.cuda.memory_reserved()
    one()
    events, live = [], {}
    for e in M._snapshot()["device_traces"][0]:
        if e["action"] == "annotate": events.append(e["user_metadata"])
        elif e["action"] == "alloc":
            live[e["addr"]] = e["size"]
            if e["size"]: events.append(f"+{e['size']}" + frames(e))
        elif e["action"] == "free_requested" and (size := live.pop(e["addr"], e["size"])): events.append(f"-{size}")
    collectives, phase = {}, []
    for kind, size in said:
        if kind[0] != "|": phase.append(f"{kind} {size}")
        else: collectives[kind[1:]], phase = phase, []
    return dict(
        peak_allocated=max(p["peak"] for p in phases.values()), peak_reserved=max([reserved, *(p.pop("reserved") for p in phases.values())]),
        phases=phases, setup=setup, first=first, collectives={name: calls for name, calls in collectives.items() if calls},
        events="\n".join(events) if verbose else " ".join(events),
    )


if __name__ == "__main__":
    import torch._dynamo, torch.testing._internal.distributed.fake_pg, fsdp2_switches  # noqa: F401, E401
    fsdp2_switches.run = run
    out, wanted = sys.argv[1], sys.argv[2:]
    old = {case["id"]: case for case in json.load(open(out))["cases"]} if os.path.exists(out) else {}
    for name, (dims, over) in CASES.items():
        if wanted and not name.startswith(tuple(wanted)): continue
        config = {**DEFAULTS, **over}
        made = child(config, dims)
        print(name, made.get("peak_allocated"), made.get("peak_reserved"), {k: v["peak"] >> 20 for k, v in made.get("phases", {}).items()}, made.get("error", ""), flush=True)
        if os.environ.get("VERBOSE"): print(made.get("events") or made["traceback"])
        elif "error" in made: print(made.pop("traceback", ""))
        old[name] = dict(id=name, model_dims=dims, config=config, **made)
    if not os.environ.get("VERBOSE"):
        cases = [old[name] for name in CASES if name in old]
        json.dump(dict(torch=torch.__version__, python=sys.version.split()[0], cases=cases), open(out, "w"), separators=(",", ":"))
