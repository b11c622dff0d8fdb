"""Writes expert-choice.json: what a step of a Llama whose blocks route by expert choice (arXiv 2202.09368) allocates and frees.

Every expert takes the tokens whose scores for it are largest, as many as any other; no framework trains language models
so, and `ExpertChoice` below is the plain form. Its model, `fully_shard` and the step are those of the oracles of
`events.json` (`fsdp_oracle.py` and `models.py` on the stubs without a GPU), FLOPs are `FlopCounterMode`'s of one pass.

    nc.sh expert_choice.py FOLDER_OF_FSDP_ORACLE OUT.json
"""
import json
import sys
from dataclasses import replace

sys.path.insert(0, sys.argv[1])
import fsdp_oracle
import models
import torch
import torch.nn.functional as F
from torch import nn

MODEL = dict(model="moe_small", n_layers=2)
CASES = {
    "2048-tokens": dict(seq=2048),
    "4096-tokens-full-recompute": dict(seq=4096, ac="full"),
    "2048-tokens-full-recompute-early-stop": dict(seq=2048, ac="full", early_stop=True),
    "2048-tokens-2-micro-batches": dict(seq=2048, ga=2),
    "5120-rows-each": dict(seq=5120, bs=2, experts=(8, 4)),
    "5120-rows-each-full-recompute": dict(seq=5120, bs=2, experts=(8, 4), ac="full"),
    "64-experts": dict(seq=8192, experts=(64, 6)),
    "32-experts-6144-rows-each": dict(seq=6144, bs=2, experts=(32, 16), ac="full"),
    "places-that-do-not-divide": dict(seq=1023),
    "three-sequences-bf16": dict(seq=1024, bs=3, mp="bf16"),
    "2048-tokens-fp32": dict(seq=2048, mp="fp32"),
}


class Experts(nn.Module):
    """Weights of all experts."""

    def __init__(self, c):
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(c.n_experts, c.dim, c.ffn))
        self.w3 = nn.Parameter(torch.empty(c.n_experts, c.dim, c.ffn))
        self.w2 = nn.Parameter(torch.empty(c.n_experts, c.ffn, c.dim))

    def forward(self, x):
        h = F.silu(torch.bmm(x, self.w1)) * torch.bmm(x, self.w3)
        return torch.bmm(h, self.w2)


class ExpertChoice(nn.Module):
    """Experts choose tokens."""

    def __init__(self, c):
        super().__init__()
        self.count, self.top_k = c.n_experts, c.top_k
        self.gate = nn.Linear(c.dim, c.n_experts, bias=False)
        self.experts = Experts(c)

    def forward(self, x):
        tokens = x.view(-1, x.shape[-1])
        places = -(-tokens.shape[0] * self.top_k // self.count)
        scores = F.softmax(self.gate(tokens).float(), dim=-1)
        weights, rows = scores.t().contiguous().topk(places, dim=-1)
        weights, rows = weights.to(x.dtype), rows.flatten()
        chosen = tokens.index_select(0, rows).view(self.count, places, -1)
        ys = self.experts(chosen) * weights.unsqueeze(-1)
        return torch.zeros_like(tokens).index_add(0, rows, ys.flatten(0, 1)).view_as(x)


models.MoE = ExpertChoice


def step(case):
    """The third step's events, peaks of it."""
    import torch.cuda.memory as M
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

    model, opt, _ = fsdp_oracle.build(case)
    driver = fsdp_oracle.Driver(case, model, opt, lambda name: None)
    copy_out = torch.ops.fsdp.split_with_sizes_copy

    def tagged(*args, **kwargs):
        M._set_memory_metadata("split")
        try:
            return copy_out(*args, **kwargs)
        finally:
            M._set_memory_metadata("")

    torch.ops.fsdp.split_with_sizes_copy = tagged
    driver.step(0)
    driver.step(1)
    torch.cuda.reset_peak_memory_stats()
    M._record_memory_history(enabled="all", context=None, max_entries=10_000_000)
    M._set_memory_metadata("")
    driver.step(2)
    trace = M._snapshot()["device_traces"][0]
    peak = torch.cuda.memory_stats()
    live, events = {}, []
    for event in trace:
        if event["action"] == "alloc":
            size = 0 if event.get("user_metadata") == "split" else event["size"]
            live[event["addr"]] = size
            events += [f"+{size}"] if size else []
        elif event["action"] == "free_requested":
            size = live.pop(event["addr"], event["size"])
            events += [f"-{size}"] if size else []
    return dict(
        peak_allocated=peak["allocated_bytes.all.peak"], peak_reserved=peak["reserved_bytes.all.peak"],
        events=" ".join(events),
    )


def flops(case):
    """FLOPs of a forward and backward in bf16."""
    from torch.utils.flop_counter import FlopCounterMode

    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)
    c = replace(models.CFG[case["model"]], n_layers=case["n_layers"])
    with torch.device("cuda"):
        model = models.Llama(c, case["seq"])
    table = model.freqs_cis
    model = model.to(torch.bfloat16)
    model.freqs_cis = table
    if case["ac"] == "full":
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        for name in model.layers:
            model.layers[name] = checkpoint_wrapper(model.layers[name], early_stop=case["early_stop"])
    tokens = torch.zeros(case["bs"], case["seq"], dtype=torch.long, device="cuda")
    with FlopCounterMode(display=False) as counter:
        models.ce_loss(model(tokens), tokens).backward()
    return counter.get_total_flops()


def main():
    fsdp_oracle.warm()
    out = []
    for name, over in CASES.items():
        case = {**fsdp_oracle.DEF, **MODEL, **over}
        count, top_k = case.pop("experts", (8, 2))
        models.CFG[case["model"]] = replace(models.CFG[case["model"]], n_experts=count, top_k=top_k)
        dims = replace(models.CFG[case["model"]], n_layers=case["n_layers"], rope=case["rope"])
        dims = {**fsdp_oracle.asdict(dims), "moe_impl": "expert_choice"}
        record = {"id": name, "model_dims": dims, "config": case}
        for what, run in (("step", step), ("flops", flops)):
            state, value = fsdp_oracle.in_child(run, case)
            if state != "ok":
                sys.exit(f"{name}: {value}")
            record.update(value if what == "step" else {"flops": value})
        print(name, record["peak_allocated"], record["flops"], flush=True)
        out.append(record)
        with open(sys.argv[2], "w") as file:
            json.dump({"torch": torch.__version__, "cases": out}, file, indent=1)
            file.write("\n")


main()
