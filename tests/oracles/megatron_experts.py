"""Mixtures of experts under Megatron-Core's own training step, with no GPU: as `megatron_core.py`, for models whose blocks have experts.

What only a device could say is said here: how many copies of tokens each expert gets (as many as any other), and with it the sizes
of what is selected by a mask. Usage: as `megatron_core.py`; with TRANSFORMER_ENGINE=FOLDER, experts are its grouped linears.
"""
import json, math, os, sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import deep_ep
import megatron_core as base
from megatron_core import ENGINE, LLAMA, TransformerConfig, ps

from megatron.core.transformer import MLATransformerConfig

import megatron.core.transformer.moe.token_dispatcher as dispatcher
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_decoder_block_spec, get_gpt_layer_local_spec, get_gpt_layer_with_transformer_engine_spec,
)


class Selected(torch.autograd.Function):
    """`masked_select` of a two-dimensional tensor, of which as many numbers are chosen as `size` says."""

    @staticmethod
    def forward(ctx, values, mask, size):
        ctx.save_for_backward(values, mask)
        where = torch.nonzero_static(mask, size=size)
        return values[where[:, 0], where[:, 1]]

    @staticmethod
    def backward(ctx, gradient):
        values, mask = ctx.saved_tensors
        return torch.zeros_like(values.expand(mask.shape)).masked_scatter_(mask, gradient), None, None


CHOSEN = {"copies": 0}
torch.Tensor.masked_select = lambda values, mask: Selected.apply(values, mask, CHOSEN["copies"])
if ENGINE:
    import transformer_engine_torch as tex

    def te_general_grouped_gemm(a, transposes_a, b, transposes_b, out, dtype, splits, biases, *rest):
        return biases

    tex.te_general_grouped_gemm = te_general_grouped_gemm
    plain = tex.generic_gemm

    def generic_gemm(*a, **more):
        """The router's matmul may leave another type than it reads."""
        made = plain(*a, **more)
        asked = {"kFloat32": torch.float32}.get(getattr(a[6], "name", None))
        if a[4] is None and asked is not None and made[0].dtype != asked:
            return torch.empty(made[0].shape, dtype=asked, device="cuda"), *made[1:]
        return made

    tex.generic_gemm = generic_gemm

    def fused_topk_with_score_function_fwd(logits, *rest):
        whole = dict(device="cuda")
        return torch.empty_like(logits), torch.empty(logits.shape, dtype=torch.bool, **whole), torch.empty(logits.shape, dtype=torch.float32, **whole)

    def fused_score_for_moe_aux_loss_fwd(logits, topk, score_function):
        return torch.empty_like(logits), torch.empty(logits.shape, dtype=torch.bool, device="cuda"), torch.empty_like(logits)

    def fused_moe_aux_loss_fwd(probs, **rest):
        return torch.empty((), dtype=probs.dtype, device="cuda"), torch.empty((), dtype=torch.float32, device="cuda")

    def of_scores(num_rows, num_cols, grad_aux_loss, **rest):
        return torch.empty((num_rows, num_cols), dtype=grad_aux_loss.dtype, device="cuda")

    tex.fused_score_for_moe_aux_loss_fwd, tex.fused_moe_aux_loss_fwd, tex.fused_moe_aux_loss_bwd = (
        fused_score_for_moe_aux_loss_fwd, fused_moe_aux_loss_fwd, of_scores
    )
    tex.fused_score_for_moe_aux_loss_bwd = lambda grad_scores, **rest: torch.empty_like(grad_scores)
    tex.fused_topk_with_score_function_fwd = fused_topk_with_score_function_fwd
    tex.fused_topk_with_score_function_bwd = lambda tokens, experts, map, scores, gradient, *rest: torch.empty_like(gradient)
    # Kernels of permutations are Triton's: neither compiled nor run.
    for kind in (base.triton.runtime.jit.JITFunction, base.triton.runtime.autotuner.Autotuner):
        kind.run = lambda self, *arguments, **options: None
else:
    base.module("fused_weight_gradient_mlp_cuda", wgrad_gemm_accum_fp32=lambda *a: None)


def balanced(self, point, tokens_per_expert=None):
    """What the host reads of the device: each rank sends each expert as many copies as any other."""
    copies = self.hidden_shape[0] * self.hidden_shape[1] * self.config.moe_router_topk
    each = copies // self.num_experts
    if self.config.moe_expert_capacity_factor is not None:
        each = min(each, math.ceil(each * self.config.moe_expert_capacity_factor))
        copies = each * self.num_experts
    CHOSEN["copies"] = copies
    read = {
        "input_splits": [each * self.num_local_experts] * self.ep_size,
        "output_splits": [each * self.num_local_experts] * self.ep_size,
        "output_splits_tp": [each * self.num_local_experts * self.ep_size] * self.tp_size,
    }
    made = real(self, point, tokens_per_expert)
    if point == self.cuda_dtoh_point and not self.drop_and_pad:
        made = torch.full((self.num_local_experts,), each * self.ep_size * self.tp_size)
        self.num_out_tokens = copies
        for name, values in read.items():
            if getattr(self, name) is not None:
                setattr(self, name, torch.tensor(values).numpy())
        if self.num_local_experts > 1 and not self.config.moe_permute_fusion:
            self.num_global_tokens_per_local_expert = torch.full((self.tp_size * self.ep_size, self.num_local_experts), each)
    return made


real = dispatcher.MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize
dispatcher.MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = balanced



def gathered(self, hidden, probs):
    """As `balanced`, where every rank has all tokens and picks those of its experts."""
    config = self.config
    each = hidden.shape[0] * config.moe_router_topk // config.num_moe_experts
    CHOSEN["copies"] = each * self.num_local_experts
    cpu = torch.Tensor.cpu
    torch.Tensor.cpu = lambda values: torch.full_like(cpu(values), each)
    try:
        return picks(self, hidden, probs)
    finally:
        torch.Tensor.cpu = cpu


picks = dispatcher.MoEAllGatherTokenDispatcher.dispatch_postprocess
dispatcher.MoEAllGatherTokenDispatcher.dispatch_postprocess = gathered

def expert_map(self, indices, weights):
    """DeepEP's choices as a map: as many are the rank's own as any other's."""
    rows, local = indices.shape[0], self.num_local_experts
    copies = CHOSEN["copies"] = int(self.tokens_per_expert.sum())
    chosen, many = torch.zeros((rows, local), dtype=torch.long, device="cuda"), torch.zeros((rows, local), dtype=torch.float, device="cuda")
    mask = indices != -1
    where = torch.nonzero_static(mask, size=copies)
    expert = indices[where[:, 0], where[:, 1]]
    row = torch.arange(rows, device="cuda").repeat_interleave(mask.sum(dim=1), output_size=copies)
    chosen[row, expert] = 1
    many[row, expert] = Selected.apply(weights, mask, copies)
    return chosen.bool(), many


dispatcher._DeepepManager._indices_to_multihot = expert_map
begin_log = base.Collectives.__init__
base.Collectives.__init__ = lambda self, log: (deep_ep.LOG.append(log), begin_log(self, log))[1]

EXPERTS = dict(
    experts=8, topk=2, width=1024, ep=4, etp=1, dispatcher="alltoall", aux=0.01, shared=0, grouped=True, router_fp32=False,
    permute_fusion=False, pre_softmax=False, router_fusion=False, again=[], score="softmax", correction=False, scale=None, groups=None, shared_overlap=False,
    latent=None, capacity=None, pad=False, fp8=None, together=False, delay=False,
    dense_first=0, sinkhorn=False,
)
config_of = base.config_of


def config_with_experts(c):
    made = config_of(c)
    skip = {"num_layers_in_first_pipeline_stage"}
    values = {name: getattr(made, name) for name in made.__dataclass_fields__ if made.__dataclass_fields__[name].init and name not in skip}
    values.update(
        num_moe_experts=c["experts"], moe_router_topk=c["topk"], moe_ffn_hidden_size=c["width"] if c["experts"] else None, expert_model_parallel_size=c["ep"],
        expert_tensor_parallel_size=c["etp"] or c["tp"], moe_token_dispatcher_type=c["dispatcher"], moe_aux_loss_coeff=c["aux"],
        moe_router_load_balancing_type="sinkhorn" if c["sinkhorn"] else "aux_loss" if c["aux"] else "none", moe_grouped_gemm=c["grouped"],
        moe_shared_expert_intermediate_size=c["shared"] or None, moe_router_dtype="fp32" if c["router_fp32"] else None,
        moe_permute_fusion=c["permute_fusion"], moe_flex_dispatcher_backend="deepep", moe_router_pre_softmax=c["pre_softmax"], init_method=None, output_layer_init_method=None,
        qk_layernorm=c["qk_norm"], moe_router_fusion=c["router_fusion"], bias_dropout_fusion=c["fusions"] and not c["bias"],
    )
    if c["fp8"]:
        values.update(fp8="hybrid", fp8_recipe=c["fp8"])
        if c["fp8"] == "delayed":
            values.update(fp8_amax_history_len=1024, fp8_amax_compute_algo="max")
    if c["together"]:
        values.update(overlap_moe_expert_parallel_comm=True, delay_wgrad_compute=c["delay"])
    if c["again"]:
        values.update(recompute_granularity="selective", recompute_modules=c["again"])
    if c["groups"]:
        values.update(moe_router_num_groups=c["groups"][0], moe_router_group_topk=c["groups"][1])
    values.update(
        moe_router_score_function=c["score"], moe_router_enable_expert_bias=c["correction"], moe_router_topk_scaling_factor=c["scale"],
        moe_shared_expert_overlap=c["shared_overlap"], moe_expert_capacity_factor=c["capacity"], moe_pad_expert_input_to_capacity=c["pad"],
    )
    if c["dense_first"]:
        values.update(moe_layer_freq=[0] * c["dense_first"] + [1] * (c["layers"] - c["dense_first"]))
    if c["latent"]:
        return MLATransformerConfig(**{**values, "multi_latent_attention": True, **c["latent"]})
    return TransformerConfig(**values)


base.config_of = config_with_experts
spec = lambda make: lambda: make(
    num_experts=CASE["experts"], moe_grouped_gemm=CASE["grouped"], qk_layernorm=CASE["qk_norm"], multi_latent_attention=bool(CASE["latent"])
)
base.get_gpt_layer_local_spec = spec(get_gpt_layer_local_spec)
base.get_gpt_layer_with_transformer_engine_spec = spec(get_gpt_layer_with_transformer_engine_spec)



def decoder_spec(c, config, spec, vp_stage):
    """Dense blocks at the beginning make a list of them."""
    return get_gpt_decoder_block_spec(config, use_transformer_engine=bool(ENGINE), vp_stage=vp_stage) if c["dense_first"] else spec


base.decoder_spec = decoder_spec
initialize = ps.initialize_model_parallel
ps.initialize_model_parallel = lambda *a, **more: initialize(
    *a, **more, expert_model_parallel_size=CASE["ep"], expert_tensor_parallel_size=CASE["etp"] or CASE["tp"]
)

# Experts one after the other, experts without a gate, and a router that evens loads out: as Megatron's own tests have them.
GELU = dict(swiglu=False, fusions=False, ffn=4096, dropout=0.1)
SINKHORN = dict(sinkhorn=True, topk=1, aux=0, dispatcher="allgather")


def one_by_one(base):
    """Cases of `SequentialMLP`, on blocks like `base`."""
    one = dict(base, grouped=False)
    return {
        "sequential": dict(one),
        "sequential-gather": dict(one, dispatcher="allgather"),
        "sequential-one-rank": dict(one, tp=1, ep=1, world=1),
        "sequential-one-expert": dict(one, ep=8, tp=1, world=16),
        "sequential-etp2": dict(one, ep=2, etp=2),
        "sequential-fp32-router": dict(one, router_fp32=True),
        "sequential-uniform": dict(one, recompute="uniform"),
        "sequential-unfused-accumulation": dict(one, fused_accumulation=False),
        "sequential-gelu": dict(one, **GELU),
        "sequential-gelu-fp32-router": dict(one, **GELU, router_fp32=True),
        "sequential-unfused": dict(one, fusions=False),
        "sequential-shared": dict(one, shared=1024),
        "sequential-sinkhorn": dict(one, **GELU, **SINKHORN, fused_accumulation=False),
        "sequential-sinkhorn-tp1": dict(one, **GELU, **SINKHORN, fused_accumulation=False, tp=1),
        "sequential-sinkhorn-etp2": dict(one, **GELU, **SINKHORN, fused_accumulation=False, ep=2, etp=2),
        "sequential-sinkhorn-pp2": dict(one, **GELU, **SINKHORN, fused_accumulation=False, ep=2, pp=2, rank=4),
    }


LATENT = dict(q_lora_rank=384, kv_lora_rank=128, qk_head_dim=64, qk_pos_emb_head_dim=32, v_head_dim=64)
MIXTRAL = dict(LLAMA, **EXPERTS, rms_norm=True, layers=2, micro_batches=2, events=True, qk_norm=False)
if ENGINE:
    MIXTRAL.update(transformer_engine=True, fused_accumulation=True)
    CASES = {
        "moe": dict(MIXTRAL),
        "moe-tp1": dict(MIXTRAL, tp=1),
        "moe-ep1": dict(MIXTRAL, ep=1),
        "moe-etp2": dict(MIXTRAL, ep=2, etp=2),
        "moe-one-rank": dict(MIXTRAL, tp=1, ep=1, world=1),
        "moe-no-aux": dict(MIXTRAL, aux=0),
        "moe-fp32-router": dict(MIXTRAL, router_fp32=True),
        "moe-shared": dict(MIXTRAL, shared=1024),
        "moe-micro-2": dict(MIXTRAL, micro=2),
        "moe-unfused-accumulation": dict(MIXTRAL, fused_accumulation=False),
        "moe-uniform": dict(MIXTRAL, recompute="uniform"),
        "moe-pre-softmax": dict(MIXTRAL, pre_softmax=True),
        "moe-qk-norm": dict(MIXTRAL, qk_norm=True),
        "moe-pp2-first": dict(MIXTRAL, pp=2, rank=0, ep=2),
        "moe-pp2-last": dict(MIXTRAL, pp=2, rank=4, ep=2),
        "moe-vpp2-first": dict(MIXTRAL, pp=2, vpp=2, rank=0, ep=2, layers=4),
        "moe-fused-permute": dict(MIXTRAL, permute_fusion=True),
        "moe-fused-router": dict(MIXTRAL, router_fusion=True, aux=0),
        "moe-bias": dict(MIXTRAL, bias=True),
        "moe-again": dict(MIXTRAL, again=["layernorm", "moe_act"]),
        "moe-ep1-etp2": dict(MIXTRAL, ep=1, etp=2),
        "moe-gather": dict(MIXTRAL, dispatcher="allgather"),
        "moe-gather-tp1": dict(MIXTRAL, dispatcher="allgather", tp=1),
        "moe-gather-ep8": dict(MIXTRAL, dispatcher="allgather", tp=1, ep=8, world=16),
        "moe-gather-etp2": dict(MIXTRAL, dispatcher="allgather", ep=2, etp=2),
        "moe-gather-ep1-etp2": dict(MIXTRAL, dispatcher="allgather", ep=1, etp=2),
        "moe-gather-one-rank": dict(MIXTRAL, dispatcher="allgather", tp=1, ep=1, world=1),
        "moe-gather-fp32-router": dict(MIXTRAL, dispatcher="allgather", router_fp32=True),
        "moe-gather-fused-permute": dict(MIXTRAL, dispatcher="allgather", permute_fusion=True),
        "moe-gather-uniform": dict(MIXTRAL, dispatcher="allgather", recompute="uniform"),
        "moe-flex": dict(MIXTRAL, dispatcher="flex"),
        "moe-flex-ep8": dict(MIXTRAL, dispatcher="flex", tp=1, ep=8, world=16),
        "moe-flex-fp32-router": dict(MIXTRAL, dispatcher="flex", tp=1, router_fp32=True),
        "moe-flex-fused-permute": dict(MIXTRAL, dispatcher="flex", router_fp32=True, permute_fusion=True),
        "moe-flex-uniform": dict(MIXTRAL, dispatcher="flex", recompute="uniform"),
        "moe-sigmoid": dict(MIXTRAL, score="sigmoid"),
        "moe-correction": dict(MIXTRAL, score="sigmoid", correction=True, scale=2.5, router_fp32=True),
        "moe-groups": dict(MIXTRAL, score="sigmoid", correction=True, scale=2.5, groups=[4, 2], aux=0, topk=4),
        "moe-device-limited": dict(MIXTRAL, pre_softmax=True, scale=16.0, groups=[4, 2], topk=4),
        "moe-shared-overlap": dict(MIXTRAL, shared=1024, shared_overlap=True),
        "latent": dict(MIXTRAL, latent=LATENT, qk_norm=True, kv=16),
        "latent-tp1": dict(MIXTRAL, latent=LATENT, qk_norm=True, kv=16, tp=1),
        "latent-whole-queries": dict(MIXTRAL, latent=dict(LATENT, q_lora_rank=None), qk_norm=True, kv=16),
        "latent-uniform": dict(MIXTRAL, latent=LATENT, qk_norm=True, kv=16, recompute="uniform"),
        "latent-pp2-first": dict(MIXTRAL, latent=LATENT, qk_norm=True, kv=16, pp=2, rank=0, ep=2),
        "deepseek": dict(
            MIXTRAL, latent=LATENT, qk_norm=True, kv=16, shared=1024, score="sigmoid", correction=True, scale=2.5, groups=[4, 2], topk=4,
            router_fp32=True, permute_fusion=True,
        ),
        "moe-drop": dict(MIXTRAL, capacity=1.0),
        "moe-drop-half": dict(MIXTRAL, capacity=0.5, router_fp32=True),
        "moe-pad": dict(MIXTRAL, capacity=1.0, pad=True),
        "moe-pad-more": dict(MIXTRAL, capacity=1.25, pad=True, aux=0, router_fp32=True),
        "moe-pad-etp2": dict(MIXTRAL, capacity=1.0, pad=True, ep=2, etp=2),
        "moe-fused-router-aux": dict(MIXTRAL, router_fusion=True),
        "moe-fused-router-pad": dict(MIXTRAL, router_fusion=True, capacity=1.0, pad=True, tp=1, permute_fusion=True),
        "moe-fp8": dict(MIXTRAL, fp8="tensorwise", tp=1, router_fusion=True),
        "moe-fp8-pad": dict(MIXTRAL, fp8="tensorwise", tp=1, capacity=1.0, pad=True, router_fusion=True, permute_fusion=True),
        "moe-fp8-filled": dict(MIXTRAL, fp8="tensorwise", tp=1, seq=2088),
        "moe-fp8-again": dict(MIXTRAL, fp8="tensorwise", tp=1, again=["layernorm", "moe_act"]),
        "moe-fp8-unfused-accumulation": dict(MIXTRAL, fp8="tensorwise", tp=1, fused_accumulation=False),
        "moe-engine-loss": dict(MIXTRAL, fused_loss="te"),
        "moe-engine-loss-micro-2": dict(MIXTRAL, fused_loss="te", micro=2, tp=1, vocab=102400),
        "moe-together-first": dict(MIXTRAL, together=True, pp=2, vpp=2, rank=0, ep=2, layers=8, micro_batches=4),
        "moe-together-last": dict(MIXTRAL, together=True, pp=2, vpp=2, rank=4, ep=2, layers=8, micro_batches=4),
        "moe-together-tp1": dict(MIXTRAL, together=True, tp=1, pp=2, vpp=2, rank=0, ep=2, layers=4, micro_batches=4, router_fusion=True, permute_fusion=True),
        "moe-together-later": dict(MIXTRAL, together=True, delay=True, pp=2, vpp=2, rank=0, ep=2, layers=8, micro_batches=4),
        "moe-together-flex-first": dict(MIXTRAL, dispatcher="flex", together=True, pp=2, vpp=2, rank=0, ep=2, layers=8, micro_batches=4),
        "moe-together-flex-last": dict(MIXTRAL, dispatcher="flex", together=True, pp=2, vpp=2, rank=4, ep=2, layers=8, micro_batches=4),
        "moe-together-flex-tp1": dict(
            MIXTRAL, dispatcher="flex", together=True, tp=1, pp=2, vpp=2, rank=0, ep=2, layers=4, micro_batches=4, router_fp32=True, permute_fusion=True
        ),
        "moe-together-flex-later": dict(MIXTRAL, dispatcher="flex", together=True, delay=True, pp=2, vpp=2, rank=0, ep=2, layers=8, micro_batches=4),
        "moe-overlap": dict(MIXTRAL, overlap_grad_reduce=True, overlap_param_gather=True),
    }
    CASES.update({
        "gelu": dict(MIXTRAL, **GELU),
        "gelu-fp32-router": dict(MIXTRAL, **GELU, router_fp32=True),
        "gelu-gather": dict(MIXTRAL, **GELU, dispatcher="allgather"),
        "unfused": dict(MIXTRAL, fusions=False),
        "unfused-fp32-router": dict(MIXTRAL, fusions=False, router_fp32=True),
        "sinkhorn": dict(MIXTRAL, **SINKHORN),
        "sinkhorn-two": dict(MIXTRAL, **{**SINKHORN, "topk": 2}),
        "sinkhorn-gelu": dict(MIXTRAL, **GELU, **SINKHORN, fused_accumulation=False),
        **one_by_one(MIXTRAL),
    })
    # Megatron's own modules (LOCAL_NORMS=1); its router multiplies with Transformer Engine even so.
    LOCAL = dict(MIXTRAL, transformer_engine=False, rms_norm=False, rope=False, tied=True)
    CASES.update({f"local-{name}": case for name, case in one_by_one(LOCAL).items() if "gelu" in name or "sinkhorn" in name})
    DENSE = dict(MIXTRAL, experts=None, topk=2, ep=1, etp=None, aux=0)
    DEEPSEEK = dict(CASES["deepseek"])
    CASES.update({
        "mtp-dense": dict(DENSE, mtp=1),
        "mtp-dense-tp1": dict(DENSE, mtp=1, tp=1),
        "mtp-dense-one-rank": dict(DENSE, mtp=1, tp=1, world=1),
        "mtp-dense-two": dict(DENSE, mtp=2),
        "mtp-dense-tied": dict(DENSE, mtp=1, tied=True),
        "mtp-dense-micro-2": dict(DENSE, mtp=1, micro=2),
        "mtp-dense-engine-loss": dict(DENSE, mtp=1, fused_loss="te"),
        "mtp-dense-pp2-first": dict(DENSE, mtp=1, pp=2, rank=0),
        "mtp-dense-pp2-last": dict(DENSE, mtp=1, pp=2, rank=4),
        "mtp-dense-pp2-last-uniform": dict(DENSE, mtp=1, pp=2, rank=4, recompute="uniform"),
        "mtp-dense-vpp2-last": dict(DENSE, mtp=1, pp=2, vpp=2, rank=4, layers=4),
        "mtp-moe": dict(MIXTRAL, mtp=1),
        "mtp-moe-uniform": dict(MIXTRAL, mtp=1, recompute="uniform"),
        "mtp-moe-pp2-last": dict(MIXTRAL, mtp=1, pp=2, rank=4, ep=2),
        "mtp-deepseek": dict(DEEPSEEK, mtp=1),
        "mtp-deepseek-pp2-last": dict(DEEPSEEK, mtp=1, pp=2, rank=4, ep=2),
        "again-dense-mlp": dict(DENSE, again=["mlp"]),
        "again-moe-core": dict(MIXTRAL, again=["core_attn"]),
        "again-moe-layernorm": dict(MIXTRAL, again=["layernorm"]),
        "again-moe-act": dict(MIXTRAL, again=["moe_act"]),
        "again-moe-moe": dict(MIXTRAL, again=["moe"]),
        "again-moe-moe-layernorm": dict(MIXTRAL, again=["moe", "layernorm"]),
        "again-moe-shared": dict(MIXTRAL, again=["shared_experts"], shared=1024),
        "again-moe-shared-layernorm": dict(MIXTRAL, again=["shared_experts", "layernorm"], shared=1024),
        "again-latent-up-proj": dict(CASES["latent"], again=["mla_up_proj"]),
        "again-latent-up-proj-tp1": dict(CASES["latent"], again=["mla_up_proj"], tp=1),
        "again-latent-up-proj-whole-queries": dict(CASES["latent-whole-queries"], again=["mla_up_proj"]),
        "again-latent-layernorm": dict(CASES["latent"], again=["layernorm"]),
        "again-deepseek": dict(DEEPSEEK, again=["mla_up_proj", "layernorm", "moe_act"]),
        "again-deepseek-moe": dict(DEEPSEEK, again=["mla_up_proj", "moe"]),
        "again-deepseek-shared": dict(DEEPSEEK, again=["shared_experts", "core_attn", "mla_up_proj"]),
    })
    TOGETHER = dict(together=True, mtp=1, pp=2, vpp=2, ep=2, micro_batches=4)
    LAYOUT = dict(TOGETHER, layout="Et|tt|tt|mL", layers=5)
    H100 = dict(DEEPSEEK, **LAYOUT, dispatcher="flex", aux=0, delay=True, dense_first=3, again=["mla_up_proj", "mlp"])
    for name, rank in (("first", 0), ("last", 4)):
        CASES.update({
            f"mtp-layout-{name}": dict(MIXTRAL, **{**LAYOUT, "together": False}, rank=rank),
            f"mtp-together-{name}": dict(MIXTRAL, **TOGETHER, layers=8, rank=rank),
            f"mtp-together-later-{name}": dict(MIXTRAL, **TOGETHER, layers=8, delay=True, rank=rank),
            f"mtp-together-flex-{name}": dict(MIXTRAL, **TOGETHER, layers=8, dispatcher="flex", rank=rank),
            f"mtp-together-tp1-{name}": dict(MIXTRAL, **TOGETHER, layers=4, tp=1, router_fusion=True, permute_fusion=True, rank=rank),
            f"mtp-together-layout-{name}": dict(MIXTRAL, **LAYOUT, rank=rank),
            f"mtp-together-dense-{name}": dict(MIXTRAL, **LAYOUT, dense_first=3, rank=rank),
            f"mtp-together-deepseek-{name}": dict(H100, rank=rank),
            f"fp8-tensorwise-mtp-together-{name}": dict(H100, fp8="tensorwise", rank=rank),
            f"fp8-blockwise-mtp-together-{name}": dict(H100, fp8="blockwise", rank=rank),
        })
    FOUR = dict(MIXTRAL, together=True, pp=2, vpp=2, ep=2, layers=4, micro_batches=4)
    LATENT_BLOCK = dict(DENSE, latent=LATENT, qk_norm=True, kv=16)
    for recipe in ("delayed", "tensorwise", "blockwise"):
        fp8 = dict(fp8=recipe)
        CASES.update({
            f"fp8-{recipe}-dense": dict(DENSE, **fp8),
            f"fp8-{recipe}-dense-tp1": dict(DENSE, **fp8, tp=1),
            f"fp8-{recipe}-latent": dict(LATENT_BLOCK, **fp8),
            f"fp8-{recipe}-dense-uniform": dict(DENSE, **fp8, recompute="uniform"),
            f"fp8-{recipe}-latent-tp1": dict(LATENT_BLOCK, **fp8, tp=1),
            f"fp8-{recipe}-latent-whole-queries": dict({**LATENT_BLOCK, **fp8, "latent": dict(LATENT, q_lora_rank=None)}),
            f"fp8-{recipe}-moe": dict(MIXTRAL, **fp8),
            f"fp8-{recipe}-shared": dict(MIXTRAL, **fp8, shared=1024),
            f"fp8-{recipe}-shared-tp1": dict(MIXTRAL, **fp8, shared=1024, tp=1),
            f"fp8-{recipe}-mtp": dict(DENSE, **fp8, mtp=1),
            f"fp8-{recipe}-mtp-tp1": dict(DENSE, **fp8, mtp=1, tp=1),
            f"fp8-{recipe}-deepseek": dict(DEEPSEEK, **fp8),
            f"fp8-{recipe}-mtp-deepseek-pp2-last": dict(DEEPSEEK, **fp8, mtp=1, pp=2, rank=4, ep=2),
        })
        CASES[f"fp8-{recipe}-again-mlp"] = dict(DENSE, **fp8, again=["mlp"])
        CASES[f"fp8-{recipe}-again-mlp-tp1"] = dict(DENSE, **fp8, again=["mlp"], tp=1)
        CASES[f"fp8-{recipe}-again-mlp-latent"] = dict(LATENT_BLOCK, **fp8, again=["mlp"])
        CASES[f"fp8-{recipe}-again-shared"] = dict(MIXTRAL, **fp8, again=["shared_experts"], shared=1024)
        CASES[f"fp8-{recipe}-again-moe"] = dict(MIXTRAL, **fp8, again=["moe"])
        CASES[f"fp8-{recipe}-latent-uniform"] = dict(LATENT_BLOCK, **fp8, recompute="uniform")
        CASES[f"fp8-{recipe}-block"] = dict(MIXTRAL, **fp8, recompute="block", shared=1024, layers=3)
        CASES.update({
            f"fp8-{recipe}-together-first": dict(FOUR, **fp8, rank=0),
            f"fp8-{recipe}-together-last": dict(FOUR, **fp8, rank=4),
            f"fp8-{recipe}-together-later": dict(FOUR, **fp8, rank=0, delay=True),
            f"fp8-{recipe}-together-flex": dict(FOUR, **fp8, rank=0, tp=1, dispatcher="flex", router_fp32=True, permute_fusion=True),
            f"fp8-{recipe}-together-shared": dict(FOUR, **fp8, rank=0, shared=1024),
        })
        if recipe != "delayed":
            CASES[f"fp8-{recipe}-again"] = dict(DEEPSEEK, **fp8, again=["mla_up_proj"])
            CASES[f"fp8-{recipe}-again-tp1"] = dict(DEEPSEEK, **fp8, again=["mla_up_proj", "shared_experts"], tp=1)
            CASES[f"fp8-{recipe}-again-layernorm"] = dict(DEEPSEEK, **fp8, again=["layernorm", "moe_act"])
else:
    CASES = {}

if __name__ == "__main__":
    import megatron.core

    done = {"torch": torch.__version__, "megatron_core": megatron.core.__version__, "cases": []}
    only = sys.argv[2:]
    for name, over in CASES.items():
        if only and name not in only:
            continue
        CASE = c = dict(base.BASE, **over)
        deep_ep.CASE.update(c)
        out = base.child(base.peaks, c)
        out.update(base.child(base.collectives, c))
        print(name, {key: out.get(key) for key in ("peak_allocated", "peak_reserved", "error")}, len(out.get("collectives", "").split()), flush=True)
        done["cases"].append({"id": name, "config": {k: v for k, v in c.items() if k != "events"}, "outputs": out})
        with open(sys.argv[1], "w") as file:
            json.dump(done, file, indent=0)
