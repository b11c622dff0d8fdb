"""What Megatron-Core's blocks cost the host, over blocks of plain PyTorch modules, on a device that does nothing.

Usage: as `megatron_core.py`; with `experts` after the file, blocks with experts. Both kinds of blocks run in turn in one process, so that what else the machine does hits both; of
each the fourth lowest of 60 readings of the process's own time is kept [us a block]. Only their ratio means anything. Linears alone
are the lowest of 15 readings of 100 forwards. How many kernels a block launches is counted in `windtunnel show program`. A plain block of 16 kernels: two norms, four linears, two batched matmuls, softmax, GELU, three dropouts, a
copy and two sums, all modules and functions of PyTorch. What a device's driver adds to a launch is in neither.
"""
import json, sys, time

import torch
import torch.nn.functional as F

import megatron_core as base

KERNELS = 16


class Plain(torch.nn.Module):
    def __init__(self, hidden=1024, heads=16):
        super().__init__()
        whole = dict(device="cuda", dtype=torch.bfloat16)
        self.heads = heads
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(hidden, **whole) for _ in range(2))
        self.qkv, self.out = torch.nn.Linear(hidden, 3 * hidden, **whole), torch.nn.Linear(hidden, hidden, **whole)
        self.up, self.down = torch.nn.Linear(hidden, 4 * hidden, **whole), torch.nn.Linear(4 * hidden, hidden, **whole)

    def forward(self, x):
        s, b, h = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(s, b * self.heads, -1).transpose(0, 1).split(h // self.heads, -1)
        weights = F.dropout(F.softmax(torch.bmm(q, k.transpose(1, 2)), -1), 0.1)
        context = torch.bmm(weights, v).transpose(0, 1).contiguous().view(s, b, h)
        x = x + F.dropout(self.out(context), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.norms[1](x)))), 0.1)


def clock(run):
    start = time.process_time()
    run()
    return (time.process_time() - start) * 1e6


def called(c, model):
    """A model's decoder, and what it is called with."""
    seen = {}
    while hasattr(model, "module"):
        model = model.module
    hook = model.decoder.register_forward_pre_hook(lambda module, args, more: seen.update(args=args, more=more), with_kwargs=True)
    base.forward_step(c, None, model)
    hook.remove()
    return model.decoder, seen


def in_turn(c, decoder, seen):
    """Microseconds a block, forward and backward, of a decoder and of plain blocks in turn."""
    hidden = seen["more"]["hidden_states"].detach()
    plain = torch.nn.ModuleList(Plain() for _ in range(c["layers"]))
    inputs = torch.empty(2048, 1, 1024, device="cuda", dtype=torch.bfloat16)

    def forward():
        seen["out"] = decoder(*seen["args"], **{**seen["more"], "hidden_states": hidden.detach().requires_grad_()})

    def plain_forward():
        x = inputs.detach().requires_grad_()
        for block in plain:
            x = block(x)
        seen["plain"] = x

    def plain_backward():
        seen["plain"].backward(inputs)
        for parameter in plain.parameters():
            parameter.grad = None

    runs = dict(forward=forward, backward=lambda: seen["out"].backward(hidden), plain_forward=plain_forward, plain_backward=plain_backward)
    readings = {name: [] for name in runs}
    for at in range(65):
        for name, run in runs.items():
            readings[name].append(clock(run) / c["layers"])
    return {name: sorted(times[5:])[3] for name, times in readings.items()}


def blocks(c):
    decoder, seen = called(c, base.begin(c)[0][0])
    return {name: round(us) for name, us in in_turn(c, decoder, seen).items()}


def linears(c):
    made = {"torch.nn.Linear": torch.nn.Linear(2048, 2048, device="cuda", dtype=torch.bfloat16)}
    if base.ENGINE:
        import transformer_engine.pytorch as engine

        made["transformer_engine.pytorch.Linear"] = engine.Linear(2048, 2048, device="cuda", params_dtype=torch.bfloat16)
    x = torch.empty(8192, 2048, device="cuda", dtype=torch.bfloat16)
    many = {name: lambda module=module: [module(x) for _ in range(100)] for name, module in made.items()}
    return {name: round(min(clock(run) for _ in range(15)) / 100, 1) for name, run in many.items()}


ALONE = dict(tp=1, world=1, sp=False, fp32_reduce=False, distributed_optimizer=False, layers=8, micro_batches=1, events=False)
CASES = {
    "local": dict(),
    "local-unfused": dict(fusions=False),
    "local-uniform": dict(recompute="uniform"),
}
ENGINE_CASES = {
    "engine-llama": {**base.LLAMA, **ALONE, "transformer_engine": True, "rms_norm": True, "fused_accumulation": True},
}


def with_experts():
    """Blocks with experts of `megatron_experts.py`: 16 of 128 on a rank of 8, as GPT-OSS's; 4 of 4 in fp8."""
    import megatron_experts as experts

    common = {**base.BASE, **experts.MIXTRAL, **ALONE, "layers": 4, "router_fusion": True, "permute_fusion": True, "aux": 0}
    again = ["layernorm", "moe_act"]
    many = {**common, "experts": 128, "topk": 4, "ep": 8, "world": 8, "bias": True, "again": again}
    return experts, {"engine-experts-16": many, "engine-experts-4-fp8": {**common, "experts": 4, "ep": 1, "fp8": "tensorwise"}}


if __name__ == "__main__":
    import megatron.core

    done = {"torch": torch.__version__, "megatron_core": megatron.core.__version__, "plain_kernels": KERNELS}
    done.update(linear_forward_us=base.child(linears, {}), cases=[])
    cases = ENGINE_CASES if base.ENGINE else CASES
    if sys.argv[2:] == ["experts"]:
        experts, cases = with_experts()
    for name, over in cases.items():
        case = dict(base.BASE, **{**ALONE, **over})
        if sys.argv[2:] == ["experts"]:
            case = experts.CASE = over
            experts.deep_ep.CASE.update(over)
        out = base.child(blocks, case)
        print(name, out, flush=True)
        done["cases"].append({"id": name, "config": over, "us_per_block": out})
        with open(sys.argv[1], "w") as file:
            json.dump(done, file, indent=0)
