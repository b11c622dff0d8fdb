"""Configurations of Megatron-Core 0.19.2 with Transformer Engine 2.20.2, drawn before any of them ran; a third is set aside.

`CASES` maps an id to its settings, in the words of `tests/oracles/megatron_core.py` and its siblings; `kind` says which loop runs it
(step, hybrid, graphs, fsdp). Sizes are drawn with a fixed seed; what a case is about is written out. `python draw.py` prints them.
"""
import random

draw = random.Random(19_02)


def sizes(layers, gated=True, fp8=False):
    hidden = draw.choice([1024, 1536, 2048])
    heads = hidden // draw.choice([64, 128])
    return dict(
        hidden=hidden, heads=heads, kv=draw.choice([4, heads]) if gated else heads, ffn=draw.choice([2816, 3584, 4096, 5632]),
        seq=draw.choice([2048, 3072, 4096]), micro=draw.choice([1, 1, 2]), vocab=draw.choice([32768, 51200, 65536]), layers=layers,
        micro_batches=draw.choice([2, 3]), tied=draw.random() < 0.25,
    )


LLAMA = dict(swiglu=True, bias=False, rope=True, dropout=0.0, rms_norm=True, transformer_engine=True, fused_accumulation=True, qk_norm=False)
GPT = dict(swiglu=False, bias=True, rope=False, dropout=0.1, rms_norm=False, transformer_engine=True, fused_accumulation=True, qk_norm=False)
NONE = dict(experts=None, topk=2, ep=1, etp=None, aux=0)
LATENT = dict(q_lora_rank=384, kv_lora_rank=128, qk_head_dim=64, qk_pos_emb_head_dim=32, v_head_dim=64)
CASES = {}


def dense(name, layers=2, **over):
    gated = over.pop("gated", True)
    CASES[name] = {"kind": "step", **sizes(layers, gated), **(LLAMA if gated else GPT), **NONE, **over}


def moe(name, layers=2, **over):
    experts = draw.choice([8, 16])
    CASES[name] = {
        "kind": "step", **sizes(layers), **LLAMA, "experts": experts, "topk": draw.choice([2, 4]), "width": draw.choice([512, 1024]), "ep": 4, "etp": 1,
        "aux": 0.01, "dispatcher": "alltoall", "grouped": True, **over,
    }


dense("d-dp8", tp=1)
dense("d-tp2", tp=2)
dense("d-tp4-no-sp", tp=4, sp=False)
dense("d-gpt", tp=2, gated=False)
dense("d-gpt-one-rank", tp=1, world=1, gated=False)
dense("d-uniform", tp=2, recompute="uniform", layers=4)
dense("d-block", tp=1, recompute="block", recompute_layers=1, layers=3)
dense("d-core", tp=2, again=["core_attn"])
dense("d-mlp", tp=2, again=["mlp"])
dense("d-pp2-first", tp=2, pp=2, rank=0, layers=4, micro_batches=4)
dense("d-pp2-last", tp=1, pp=2, rank=4, layers=4, micro_batches=4)
dense("d-pp4-second", tp=2, pp=4, rank=2, layers=8, micro_batches=8)
dense("d-vpp2-first", tp=2, pp=2, vpp=2, rank=0, layers=8, micro_batches=4)
dense("d-vpp2-last", tp=1, pp=2, vpp=2, rank=4, layers=4, micro_batches=4)
dense("d-layout-first", tp=2, pp=2, vpp=2, rank=0, layers=6, micro_batches=4, layout="Ett|t|tt|tL")
dense("d-uneven-last", tp=2, pp=2, rank=4, layers=5, micro_batches=4, first_stage=3)
dense("d-cp2-p2p", tp=2, cp=2, rank=2, cp_comm_type="p2p")
dense("d-cp2-a2a", tp=1, cp=2, rank=1, cp_comm_type="a2a")
dense("d-cp4-gather", tp=1, cp=4, rank=3, cp_comm_type="all_gather")
dense("d-overlap", tp=2, overlap_grad_reduce=True, overlap_param_gather=True, layers=3)
dense("d-engine-loss", tp=2, fused_loss="te")
dense("d-latent", tp=2, latent=LATENT, qk_norm=True)
dense("d-latent-up-proj", tp=1, latent=LATENT, qk_norm=True, again=["mla_up_proj"])
moe("m-alltoall", tp=2)
moe("m-gather", tp=2, dispatcher="allgather")
moe("m-deepep", tp=1, dispatcher="flex", router_fp32=True, permute_fusion=True)
moe("m-hybridep", tp=1, dispatcher="flex", flex_backend="hybridep", router_fp32=True, permute_fusion=True)
moe("m-etp2", tp=2, ep=2, etp=2)
moe("m-gather-etp2", tp=2, ep=2, etp=2, dispatcher="allgather")
moe("m-sequential", tp=2, grouped=False)
moe("m-sequential-etp2", tp=2, ep=2, etp=2, grouped=False)
moe("m-fused", tp=1, permute_fusion=True, router_fusion=True)
moe("m-shared-overlap", tp=2, shared=1024, shared_overlap=True)
moe("m-again", tp=2, again=["layernorm", "moe_act"], shared=1024)
moe("m-again-moe", tp=1, again=["moe"], permute_fusion=True)
moe("m-pp2-last", tp=2, pp=2, rank=4, ep=2, layers=4, micro_batches=4)
moe("m-together", tp=1, pp=2, vpp=2, rank=0, ep=2, layers=4, micro_batches=4, together=True, permute_fusion=True)
moe("m-deepseek", tp=2, latent=LATENT, qk_norm=True, shared=1024, score="sigmoid", correction=True, scale=2.5, groups=[4, 2], topk=4, router_fp32=True, permute_fusion=True, dense_first=1, layers=3)
dense("t-dense", tp=2, mtp=1)
dense("t-dense-two-tied", tp=1, mtp=2, tied=True)
dense("t-pp2-last", tp=2, mtp=1, pp=2, rank=4, layers=4, micro_batches=4)
moe("t-moe", tp=2, mtp=1)
for recipe in ("delayed", "tensorwise", "blockwise", "mxfp8"):
    dense(f"f-{recipe}-dense", tp=draw.choice([1, 2]), fp8=recipe)
    moe(f"f-{recipe}-moe", tp=1, fp8=recipe, permute_fusion=True)
dense("f-nvfp4-dense", tp=1, fp4="nvfp4")
dense("o-bf16-moments", tp=2, precision_aware=True, first_moment="bf16", second_moment="bf16")
moe("o-bf16-moments-moe", tp=1, precision_aware=True, first_moment="bf16", second_moment="bf16", permute_fusion=True)
dense("o-remainders", tp=1, precision_aware=True, remainders=True)
dense("o-muon", tp=2, optimizer="dist_muon", distributed_optimizer=False)
moe("o-muon-moe", tp=1, optimizer="dist_muon", distributed_optimizer=False)
dense("o-host", tp=1, host_optimizer=1.0)
dense("a-offload-dense", tp=1, offload=["core_attn", "attn_proj"], layers=4)
moe("a-offload-moe", tp=1, offload=["expert_fc1", "moe_act"], layers=4, permute_fusion=True)
dense("g-layer", kind="graphs", tp=2, impl="transformer_engine", scope=[])
dense("g-attn", kind="graphs", tp=1, impl="transformer_engine", scope=["attn"])
moe("g-moe-router", kind="graphs", tp=2, impl="transformer_engine", scope=["attn", "moe_router"])
dense("g-local", kind="graphs", tp=2, impl="local", scope=[])
dense("g-full", kind="graphs", tp=2, impl="local", scope=["full_iteration"])


def hybrid(name, pattern, **over):
    made = dict(sizes(len(pattern)), swiglu=False, bias=False, rope=False, dropout=0.0, rms_norm=True, transformer_engine=True, fused_accumulation=True, qk_norm=False)
    made.update(NONE, head_dim=64, heads=16, kv=4, mamba_heads=32, mamba_head=64, mamba_groups=8, mamba_state=128, pattern=pattern, tp=1)
    CASES[name] = {"kind": "hybrid", **made, **over}


hybrid("h-one-rank", "M-M*-M-", world=1)
hybrid("h-tp2", "M-M*-", tp=2)
hybrid("h-uniform", "M-M*-M-", recompute="uniform")
hybrid("h-cp2", "MM*-", cp=2, rank=1)
hybrid("h-pp2-last", "M-M*M-M-", pp=2, rank=4, micro_batches=4)
hybrid("h-experts", "MEM*E", experts=8, topk=2, width=1024, ep=4, etp=1, aux=0.01, shared=1024)


def fsdp(name, **over):
    dense(name, kind="fsdp", overlap_grad_reduce=True, overlap_param_gather=True, **{"layers": 3, "fused_accumulation": False, "tp": 1, **over})


fsdp("s-params", strategy="optim_grads_params")
fsdp("s-params-uniform", strategy="optim_grads_params", recompute="uniform", unit_size=20_000_000)
fsdp("s-grads", strategy="optim_grads")
fsdp("s-optim-tp2", strategy="optim", tp=2)

ASIDE = set(random.Random(2026).sample(sorted(CASES), len(CASES) // 3))
DRAWN = list(CASES)

# Asked for one by one, when their rules were written.
for recipe in ("delayed", "tensorwise", "blockwise", "mxfp8"):
    moe(f"f-{recipe}-biased", tp=1, fp8=recipe, permute_fusion=True, bias=True)
EXPERTS = dict(experts=8, topk=2, width=1024, ep=4, etp=1, aux=0.01, shared=1024)
hybrid("h-ahead", "MEM*E/*E", mtp=1, **EXPERTS)
hybrid("h-ahead-repeated", "MEM*E/*E/*E", mtp=2, repeated=True, **EXPERTS)
hybrid("h-ahead-mamba", "M-M*-/M-", mtp=1)

for name, case in CASES.items():
    case["aside"] = name in ASIDE

if __name__ == "__main__":
    for name, case in CASES.items():
        print(name, case)
    print(len(DRAWN), "drawn,", len(ASIDE), "of them aside,", len(CASES) - len(DRAWN), "more")
