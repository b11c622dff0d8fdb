"""Stacks of Mamba-2, attention, feed-forward and expert layers under Megatron-Core's own training step, with no GPU: as `megatron_core.py`.

`pattern` lists the layers as `--hybrid-override-pattern` does: `M` Mamba-2, `*` attention, `-` a feed-forward of squared ReLU, `E` experts.
Kernels of mamba_ssm are its own Python around Triton kernels that are not run: what they are given is allocated all the same, and the
convolution allocates what causal_conv1d 1.5 does. Usage: as `megatron_experts.py`, with mamba_ssm 2.3.2 on PYTHONPATH.
"""
import importlib.util, json, os, sys, types

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import deep_ep
import megatron_experts as experts
from megatron_experts import MIXTRAL, base

import triton.runtime.autotuner as tuner
import triton.runtime.jit as jit


def first(self, *args, **kwargs):
    self.best_config = self.configs[0]


jit.JITFunction.run = lambda self, *args, **kwargs: None
tuner.Autotuner.run = first
tuner.Heuristics.run = lambda self, *args, **kwargs: self.fn.run(*args, **kwargs)
# The package alone: its own `__init__` wants kernels of a real GPU.
package = types.ModuleType("mamba_ssm")
package.__path__ = list(importlib.util.find_spec("mamba_ssm").submodule_search_locations)
sys.modules["mamba_ssm"] = package
import mamba_ssm.ops.triton.ssd_combined as ssd  # noqa: E402


def conv_forward(x, weight, bias, seq_idx, initial, out, silu):
    return torch.empty_like(x)


def conv_backward(x, weight, bias, dy, seq_idx, initial, dfinal, dx, return_dinitial, silu):
    dweight = torch.zeros_like(weight, dtype=torch.float32)
    dbias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
    return dx, dweight.to(weight.dtype), None if bias is None else dbias.to(bias.dtype), None


ssd.causal_conv1d_fwd_function, ssd.causal_conv1d_bwd_function = conv_forward, conv_backward

import transformer_engine_torch as tex  # noqa: E402

# Attention without a fused kernel: the softmax's result is a tensor of its own, its gradient lies where the other was.
tex.scaled_aligned_causal_masked_softmax_forward = tex.scaled_masked_softmax_forward = lambda scores, *rest: torch.empty_like(scores)
tex.scaled_aligned_causal_masked_softmax_backward = tex.scaled_masked_softmax_backward = lambda gradient, *rest: gradient
from megatron.core.activations import squared_relu  # noqa: E402
from megatron.core.transformer.enums import AttnBackend  # noqa: E402
from megatron.core.models.mamba import MambaModel  # noqa: E402
from megatron.core.models.mamba.mamba_layer_specs import mamba_stack_spec  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402

config_of = base.config_of


def hybrid_config(c):
    made = config_of(dict(c, layers=len(c["pattern"]), fusions=False, swiglu=False))
    skip = {"num_layers_in_first_pipeline_stage"}
    values = {name: getattr(made, name) for name in made.__dataclass_fields__ if made.__dataclass_fields__[name].init and name not in skip}
    values.update(
        is_hybrid_model=True, mamba_num_heads=c["mamba_heads"], mamba_head_dim=c["mamba_head"], mamba_num_groups=c["mamba_groups"],
        mamba_state_dim=c["mamba_state"], activation_func=squared_relu, bias_activation_fusion=False, masked_softmax_fusion=True,
        bias_dropout_fusion=c["fusions"], kv_channels=c["head_dim"], init_method=None, output_layer_init_method=None,
        num_layers_in_first_pipeline_stage=c["first_stage"], moe_latent_size=c["moe_latent"], fp32_residual_connection=c["fp32_residual"],
    )
    if c["gelu"]:
        values.update(activation_func=torch.nn.functional.gelu, bias_activation_fusion=c["fusions"])
    if c["unfused_attention"]:
        values.update(attention_backend=AttnBackend.unfused)
    if c["first_last_bf16"]:
        values.update(first_last_layers_bf16=True, num_layers_at_start_in_bf16=c["first_last_bf16"], num_layers_at_end_in_bf16=c["first_last_bf16"])
    return TransformerConfig(**values)


def hybrid(config, spec, vocab, seq, *, position_embedding_type, vp_stage, **more):
    c = base.CASE
    if c["unfused_attention"]:
        os.environ.update(NVTE_FLASH_ATTN="0", NVTE_FUSED_ATTN="0", NVTE_UNFUSED_ATTN="1")
    where = "learned_absolute" if c["gelu"] else "none"
    return MambaModel(config, mamba_stack_spec, vocab, seq, hybrid_override_pattern=c["pattern"], position_embedding_type=where, **more)


base.config_of, base.GPTModel = hybrid_config, hybrid
base.get_gpt_layer_with_transformer_engine_spec = lambda: None

HYBRID = dict(
    MIXTRAL, pattern="M-M*-M-", hidden=1024, heads=16, kv=4, head_dim=64, ffn=4096, mamba_heads=32, mamba_head=64, mamba_groups=8, mamba_state=128,
    swiglu=False, rope=False, tied=False, experts=None, topk=2, ep=1, etp=None, aux=0, first_stage=None, moe_latent=None, fp32_residual=False,
    first_last_bf16=None, gelu=False, unfused_attention=False, tp=1, world=1,
)
ONE = dict(HYBRID)
TWO = dict(HYBRID, tp=2, world=2)
EXPERT = dict(HYBRID, pattern="MEM*E", experts=8, topk=2, ep=4, etp=1, aux=0.01, shared=1024, world=4)
NANO = dict(
    EXPERT, pattern="MEMEM*E", topk=6, experts=16, width=512, score="sigmoid", correction=True, scale=2.5, router_fp32=True, permute_fusion=True, aux=0.0001,
)
CASES = {
    "mamba": dict(ONE, pattern="M"),
    "mamba-two": dict(ONE, pattern="MM"),
    "attention": dict(ONE, pattern="*"),
    "feed-forward": dict(ONE, pattern="-"),
    "hybrid": dict(ONE),
    "hybrid-four": dict(ONE, pattern="M-M*-"),
    "hybrid-uniform": dict(ONE, recompute="uniform"),
    "hybrid-selective": dict(ONE, recompute="selective"),
    "hybrid-again-mlp": dict(ONE, again=["mlp"]),
    "hybrid-again-layernorm": dict(ONE, again=["layernorm"]),
    "hybrid-micro-2": dict(ONE, micro=2),
    "hybrid-one-micro-batch": dict(ONE, micro_batches=1),
    "hybrid-unfused-accumulation": dict(ONE, fused_accumulation=False),
    "hybrid-unfused": dict(ONE, fusions=False),
    "hybrid-tied": dict(ONE, tied=True),
    "hybrid-seq8192": dict(ONE, seq=8192, micro_batches=1),
    "hybrid-state64": dict(ONE, mamba_state=64),
    "hybrid-groups1": dict(ONE, mamba_groups=1),
    "hybrid-heads-absent": dict(ONE, mamba_heads=None),
    "hybrid-head128": dict(ONE, mamba_heads=24, mamba_head=128),
    "hybrid-dropout": dict(ONE, dropout=0.1),
    "hybrid-dp8": dict(ONE, world=8),
    "hybrid-no-distributed-optimizer": dict(ONE, world=8, distributed_optimizer=False),
    "hybrid-bf16-reduce": dict(ONE, world=8, fp32_reduce=False),
    "hybrid-overlap": dict(ONE, world=8, overlap_grad_reduce=True, overlap_param_gather=True),
    "tp2": dict(TWO),
    "tp2-no-sp": dict(TWO, sp=False),
    "tp2-micro-2": dict(TWO, micro=2),
    "tp4-dp2": dict(TWO, tp=4, world=8),
    "tp2-mamba": dict(TWO, pattern="M"),
    "pp2-first": dict(ONE, pattern="M-M*M-M-", pp=2, world=2, rank=0, micro_batches=4),
    "pp2-last": dict(ONE, pattern="M-M*M-M-", pp=2, world=2, rank=1, micro_batches=4),
    "pp2-uneven-first": dict(ONE, pp=2, world=2, rank=0, micro_batches=4, first_stage=3),
    "pp2-uneven-last": dict(ONE, pp=2, world=2, rank=1, micro_batches=4, first_stage=3),
    "pp2-tp2-first": dict(TWO, pattern="M-M*M-M-", pp=2, world=4, rank=0, micro_batches=4),
    "pp2-tp2-last": dict(TWO, pattern="M-M*M-M-", pp=2, world=4, rank=2, micro_batches=4),
    "cp2": dict(ONE, cp=2, world=2, rank=1),
    "cp2-groups1": dict(ONE, cp=2, world=2, rank=1, mamba_groups=1),
    "cp4-groups2": dict(ONE, cp=4, world=4, rank=3, mamba_groups=2),
    "cp2-tp2": dict(TWO, cp=2, world=4, rank=2),
    "cp2-micro-2": dict(ONE, cp=2, world=2, rank=1, micro=2),
    "experts": dict(EXPERT),
    "experts-one-rank": dict(EXPERT, ep=1, world=1),
    "experts-no-shared": dict(EXPERT, shared=0),
    "experts-tp2": dict(EXPERT, tp=2, world=8),
    "experts-again": dict(EXPERT, again=["layernorm", "moe_act"]),
    "experts-again-moe": dict(EXPERT, again=["moe", "layernorm"]),
    "experts-pp2-first": dict(EXPERT, pattern="MEM*EM", pp=2, ep=2, world=4, rank=0),
    "experts-pp2-last": dict(EXPERT, pattern="MEM*EM", pp=2, ep=2, world=4, rank=2),
    "experts-overlap": dict(EXPERT, world=8, overlap_grad_reduce=True, overlap_param_gather=True),
    "experts-latent": dict(EXPERT, moe_latent=512),
    "experts-latent-tp2": dict(EXPERT, moe_latent=512, tp=2, world=8),
    "nano": dict(NANO),
    "nano-flex": dict(NANO, dispatcher="flex"),
    "nano-again": dict(NANO, again=["moe", "layernorm", "core_attn", "moe_act"]),
    "nano-latent-again": dict(NANO, moe_latent=512, again=["moe", "layernorm"]),
}
# As Megatron-LM's functional tests `hybrid_mr_mcore_te_*` train, whose peaks on H100 are among the receipts.
GOLDEN = dict(
    HYBRID, pattern="M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M-", kv=8, seq=1024, micro=4, micro_batches=1, vocab=50304, world=8, rms_norm=False,
    bias=True, gelu=True, dropout=0.1, tied=True, unfused_attention=True, fused_accumulation=False, overlap_grad_reduce=True, overlap_param_gather=True,
)
CASES["golden"] = dict(GOLDEN)
CASES["golden-tp2"] = dict(GOLDEN, tp=2, sp=False, vocab=50432, micro_batches=2, rank=7)
CASES["golden-tp2-cp4"] = dict(GOLDEN, tp=2, sp=False, cp=4, vocab=50432, micro_batches=8, rank=7, unfused_attention=False)
CASES["golden-pp4-last"] = dict(GOLDEN, pp=4, micro_batches=4, rank=7)
for recipe in ("delayed", "tensorwise", "blockwise"):
    CASES[f"fp8-{recipe}"] = dict(ONE, fp8=recipe)
    CASES[f"fp8-{recipe}-tp2"] = dict(TWO, fp8=recipe)
    CASES[f"fp8-{recipe}-experts"] = dict(EXPERT, fp8=recipe)
CASES["fp8-tensorwise-first-last"] = dict(ONE, fp8="tensorwise", first_last_bf16=1)

if __name__ == "__main__":
    import megatron.core

    done = {"torch": torch.__version__, "megatron_core": megatron.core.__version__, "mamba_ssm": "2.3.2", "cases": []}
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
