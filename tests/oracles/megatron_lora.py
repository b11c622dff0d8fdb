"""Adapters (LoRA) in Megatron-Core's own training step, with no GPU: as `megatron_experts.py`, for dense blocks of Transformer Engine's modules.

An adapter is made as Megatron-Bridge 0.4.0 and NeMo 2 make it (`ParallelLinearAdapter`): two of Megatron's own parallel linears in bf16
beside a frozen linear, which hands out its norm's result where it has one; the sum is a tensor of its own. `target` names the linears.
Usage: as `megatron_experts.py`.
"""
import json, os, sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import deep_ep
import megatron_experts as experts
from megatron_experts import MIXTRAL, base

from megatron.core.extensions.transformer_engine import TEColumnParallelLinear, TELayerNormColumnParallelLinear, TERowParallelLinear
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region, scatter_to_sequence_parallel_region

ps = base.ps


class Adapter(torch.nn.Module):
    def __init__(self, linear, c):
        super().__init__()
        config, ranks = linear.config, ps.get_tensor_model_parallel_world_size()
        self.row, self.c = isinstance(linear, TERowParallelLinear), c
        inner, outer = (linear.in_features * ranks, linear.out_features) if self.row else (linear.in_features, linear.out_features * ranks)
        self.shared = config.sequence_parallel
        # What the norm hands out is gathered already.
        self.gathered = False
        if isinstance(linear, TELayerNormColumnParallelLinear):
            linear.return_layernorm_output = True
            if self.shared:
                linear.return_layernorm_output_gathered = self.gathered = True
        config.sequence_parallel = False
        common = dict(config=config, bias=False, init_method=torch.nn.init.zeros_)
        if self.row:
            self.linear_in = RowParallelLinear(inner, c["dim"], input_is_parallel=True, skip_bias_add=True, **common)
        else:
            self.linear_in = ColumnParallelLinear(inner, c["dim"], gather_output=True, disable_grad_reduce=self.shared, **common)
        self.linear_out = ColumnParallelLinear(c["dim"], outer, gather_output=self.row, **common)
        config.sequence_parallel = self.shared
        self.dropout = torch.nn.Dropout(c["adapter_dropout"]) if c["adapter_dropout"] else torch.nn.Identity()
        self.bfloat16()

    def forward(self, x):
        x = self.dropout(x)
        if self.shared and not self.row and not self.gathered:
            x = gather_from_sequence_parallel_region(x)
        x, _ = self.linear_in(x)
        x, _ = self.linear_out(x)
        if self.shared and self.row:
            x = scatter_to_sequence_parallel_region(x)
        return x * (self.c["alpha"] / self.c["dim"])


class Adapted(torch.nn.Module):
    def __init__(self, linear, adapter):
        super().__init__()
        self.to_wrap, self.adapter = linear, adapter

    def forward(self, x, *arguments, **more):
        made, bias = self.to_wrap(x, *arguments, **more)
        normed = x
        if isinstance(made, tuple):
            made, normed = made
        added = self.adapter(normed.contiguous())
        return made + added.reshape(made.shape), bias


real = base.GPTModel


def adapted(*arguments, **more):
    c, model = base.CASE, real(*arguments, **more)
    for parameter in model.parameters():
        parameter.requires_grad = False
    for _, module in list(model.named_modules()):
        for name, linear in list(module.named_children()):
            if name in c["target"] and isinstance(linear, (TEColumnParallelLinear, TELayerNormColumnParallelLinear, TERowParallelLinear)):
                setattr(module, name, Adapted(linear, Adapter(linear, c)))
    if c["block_input_grad"]:
        # Megatron-Bridge's remedy for blocks that run again where nothing before them is trained.
        run = model.decoder.forward
        model.decoder.forward = lambda hidden_states, *a, **k: run(hidden_states.detach().requires_grad_(True), *a, **k)
    return model


base.GPTModel = adapted

ALL = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
LORA = dict(
    MIXTRAL, experts=None, topk=2, ep=1, etp=None, aux=0, tp=1, world=1, target=["linear_qkv"], dim=16, alpha=32, adapter_dropout=0.0,
    distributed_optimizer=False, fp32_reduce=False, block_input_grad=False,
)
TWO = dict(LORA, tp=2, world=2)
CASES = {
    "qkv": dict(LORA),
    "all": dict(LORA, target=ALL),
    "fc2": dict(LORA, target=["linear_fc2"]),
    "all-dim64": dict(LORA, target=ALL, dim=64),
    "all-dropout": dict(LORA, target=ALL, adapter_dropout=0.1),
    "all-unfused-accumulation": dict(LORA, target=ALL, fused_accumulation=False),
    "qkv-micro-2": dict(LORA, micro=2),
    "qkv-dp8": dict(LORA, world=8),
    "all-dp8-distributed": dict(LORA, target=ALL, world=8, distributed_optimizer=True, fp32_reduce=True),
    "qkv-fused-loss": dict(LORA, fused_loss="te"),
    "qkv-uniform": dict(LORA, recompute="uniform", block_input_grad=True),
    "all-again-mlp": dict(LORA, target=ALL, again=["mlp"]),
    "qkv-tp2": dict(TWO),
    "all-tp2": dict(TWO, target=ALL),
    "all-tp2-no-sp": dict(TWO, target=ALL, sp=False),
    "all-tp2-dp4": dict(TWO, target=ALL, world=8),
    "qkv-pp2-first": dict(LORA, pp=2, world=2, rank=0, micro_batches=4),
    "qkv-pp2-last": dict(LORA, pp=2, world=2, rank=1, micro_batches=4),
    "qkv-tp2-pp2-vpp2-first": dict(TWO, pp=2, vpp=2, world=4, rank=0, layers=4, micro_batches=4),
    "qkv-tp2-pp2-vpp2-last": dict(TWO, pp=2, vpp=2, world=4, rank=2, layers=4, micro_batches=4),
    "qkv-fp8-delayed": dict(LORA, fp8="delayed"),
    "all-fp8-delayed": dict(LORA, target=ALL, fp8="delayed"),
    "qkv-fp8-delayed-tp2": dict(TWO, fp8="delayed"),
    "all-fp8-tensorwise": dict(LORA, target=ALL, fp8="tensorwise"),
    "all-fp8-tensorwise-tp2": dict(TWO, target=ALL, fp8="tensorwise"),
}

if __name__ == "__main__":
    import megatron.core

    done = {"torch": torch.__version__, "megatron_core": megatron.core.__version__, "cases": []}
    only = sys.argv[2:]
    for name, over in CASES.items():
        if only and name not in only:
            continue
        experts.CASE = base.CASE = c = dict(base.BASE, **over)
        deep_ep.CASE.update(c)
        out = base.child(base.peaks, c)
        out.update(base.child(base.collectives, c))
        print(name, {key: out.get(key) for key in ("peak_allocated", "peak_reserved", "error")}, len(out.get("collectives", "").split()), flush=True)
        done["cases"].append({"id": name, "config": {k: v for k, v in c.items() if k != "events"}, "outputs": out})
        with open(sys.argv[1], "w") as file:
            json.dump(done, file, indent=0)
