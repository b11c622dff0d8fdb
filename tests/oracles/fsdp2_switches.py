"""Switches of `fully_shard`, of checkpoints, optimizers and the loop around them, each alone and some together, with no GPU:
PyTorch 2.15's FSDP2, autograd, caching allocator and optimizers themselves on "cuda" tensors whose kernels do nothing, and
collectives of the `fake` process group; rank 0, third step of forward, loss, backward, optimizer, `zero_grad()`, on the Llama
of the other oracles. Every case is a process of its own; `DEFAULTS` says what a switch is called and what it is by default.

    python fsdp2_switches.py OUT.json [ids or their beginnings]      # VERBOSE=1 prints where each block is taken instead

Of a case's file: `collectives` by phase, in host order (kind, ranks, bytes of its larger side); `phases`, bytes; of telling
cases `events`, everything in host order: `+` allocation and `-` free (bytes asked for, index arrays of
`split_with_sizes_copy` left out), collectives by kind, `|` and a phase's name at its end; of optimizers only what follows
backward. The weights that autocast's cache lets go of when autocast ends go in no fixed order.
"""
import contextlib, json, os, pickle, sys, traceback, warnings

import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from fsdp2_pipeline import Block

DIMS = dict(dim=1024, n_layers=4, n_heads=16, n_kv_heads=4, ffn=3584, vocab=4000, head_dim=64, rope="complex", n_experts=0, top_k=0, moe_impl="loop")
DEFAULTS = dict(
    seq=2048, bs=1, world=8, hsdp=1, tp=1, cpu_offload=False, clip=0, fwd_prefetch=0, bwd_prefetch=0, rs_max_input_buffers=1,
    runtime="fsdp2",            # or "single": no FSDP
    mp="mixed",                 # parameters, MixedPrecisionPolicy: those of the other oracles; "autocast": fp32 under torch.autocast
    autocast_cache=True,
    wrap="block", reshard="default", root_reshard="default",
    units=None,                 # with wrap="units": modules given to fully_shard one after the other, a list of them as a list
    unit_reshard=None,          # their reshard_after_forward
    late_reshard=None,          # set_reshard_after_forward once all is wrapped: [module, value, recurse]
    reshard_backward=None,      # set_reshard_after_backward(False) for good: [module, recurse]
    shard1=None,                # parameters sharded on dimension 1, by the ends of their names
    ga=1,
    ga_sync="last",             # "every": set_requires_gradient_sync untouched
    ga_is_last=False,           # whether set_is_last_backward is called
    ga_reshard_backward=True,   # False: set_reshard_after_backward(False) until the last micro-batch
    ga_all_reduce="every",      # "last": set_requires_all_reduce(False) until the last
    ga_divide=False,            # the loss is divided by the number of micro-batches
    ac="none",                  # "full", "every2" (0, 2, …), "blocks"; "sac_op": torchtitan's; "sac": `sac_save`
    ac_blocks=None, ac_impl="wrapper",  # or "plain", torch.utils.checkpoint.checkpoint around the wrapped block; "…_reentrant"
    early_stop=True, preserve_rng_state=True,
    sac_save=None,              # operators whose outputs are kept; "mm/2": every second mm is computed again
    opt="adamw", opt_args={}, master=False,  # fp32 copies of the parameters, in the optimizer
    compile=False,              # each block, before fully_shard
    compile_model=False,        # what fully_shard has made of the model
)
BLOCKS = [f"layers.{i}" for i in range(4)]
PARTS = [f"layers.{i}.{part}" for i in range(4) for part in ("attention", "feed_forward")]
LINEARS = [f"{part}.{w}" for part in PARTS for w in (("wq", "wk", "wv", "wo") if "attention" in part else ("w1", "w2", "w3"))]
PAIRS = [["layers.0", "layers.1"], ["layers.2", "layers.3"]]
ROWS = ["wo.weight", "w2.weight"]
LARGE = dict(DIMS, dim=2048, n_layers=6, n_heads=32, n_kv_heads=8, ffn=8192, vocab=32000)
GA = dict(ga=4)
SAVES = dict(
    attention=["aten._scaled_dot_product_flash_attention"], mm=["aten.mm"], mm_half=["mm/2"], nothing=[],
    attention_mm=["aten._scaled_dot_product_flash_attention", "aten.mm"],
    all_but_norms=["aten._scaled_dot_product_flash_attention", "aten.mm", "aten.add", "aten._to_copy", "aten.clone"],
    norms=["aten._fused_rms_norm"], silu=["aten.silu", "aten.mul"],
)
CASES = {
    "base": {}, "base_bf16reduce": dict(mp="mixed_bf16reduce"), "base_never": dict(reshard=False), "base_full": dict(ac="full"),
    # Gradient accumulation.
    "ga_every": dict(GA, ga_sync="every"), "ga_every_is_last": dict(GA, ga_sync="every", ga_is_last=True),
    "ga_last": dict(GA), "ga_last_is_last": dict(GA, ga_is_last=True),
    "ga_every_keep": dict(GA, ga_sync="every", ga_reshard_backward=False),
    "ga_last_keep": dict(GA, ga_reshard_backward=False), "ga_last_keep_is_last": dict(GA, ga_reshard_backward=False, ga_is_last=True),
    "ga_every_never": dict(GA, ga_sync="every", reshard=False), "ga_last_never": dict(GA, reshard=False),
    "ga_last_never_keep": dict(GA, reshard=False, ga_reshard_backward=False),
    "ga_every_bf16reduce": dict(GA, ga_sync="every", mp="mixed_bf16reduce"), "ga_last_bf16reduce": dict(GA, mp="mixed_bf16reduce"),
    "ga_last_bf16reduce_keep": dict(GA, mp="mixed_bf16reduce", ga_reshard_backward=False),
    "ga_every_bf16": dict(GA, ga_sync="every", mp="bf16"), "ga_last_bf16": dict(GA, mp="bf16"),
    "ga_every_bf16_fp32reduce": dict(GA, ga_sync="every", mp="bf16_fp32reduce"), "ga_last_bf16_fp32reduce": dict(GA, mp="bf16_fp32reduce"),
    "ga_last_fp32": dict(GA, mp="fp32"),
    "ga_every_full": dict(GA, ga_sync="every", ac="full"), "ga_last_full": dict(GA, ac="full"), "ga_last_keep_full": dict(GA, ac="full", ga_reshard_backward=False),
    "ga_every_divide": dict(GA, ga_sync="every", ga_divide=True), "ga_last_divide": dict(GA, ga_divide=True),
    "ga_hsdp_every": dict(GA, ga_sync="every", hsdp=2), "ga_hsdp_last": dict(GA, hsdp=2),
    "ga_hsdp_reduce_last": dict(GA, ga_sync="every", hsdp=2, ga_all_reduce="last"),
    "ga_hsdp_reduce_last_is_last": dict(GA, ga_sync="every", hsdp=2, ga_all_reduce="last", ga_is_last=True),
    "ga_hsdp_reduce_last_bf16reduce": dict(GA, ga_sync="every", hsdp=2, ga_all_reduce="last", mp="mixed_bf16reduce"),
    "ga_hsdp_reduce_last_keep": dict(GA, ga_sync="every", hsdp=2, ga_all_reduce="last", ga_reshard_backward=False),
    "ga_hsdp_every_bf16reduce": dict(GA, ga_sync="every", hsdp=2, mp="mixed_bf16reduce"),
    "ga_every_titan": dict(GA, ga_sync="every", wrap="titan"), "ga_last_titan": dict(GA, wrap="titan"), "ga_last_keep_titan": dict(GA, wrap="titan", ga_reshard_backward=False),
    "ga_last_titan_is_last": dict(GA, wrap="titan", ga_is_last=True), "ga_every_titan_is_last": dict(GA, ga_sync="every", wrap="titan", ga_is_last=True),
    "ga_last_keep_titan_is_last": dict(GA, wrap="titan", ga_reshard_backward=False, ga_is_last=True),
    "ga_last_root_always": dict(GA, root_reshard=True), "ga_last_root_always_is_last": dict(GA, root_reshard=True, ga_is_last=True),
    "ga_last_prefetch": dict(GA, fwd_prefetch=2, bwd_prefetch=2), "ga_every_buffers": dict(GA, ga_sync="every", rs_max_input_buffers=3),
    # Which modules are units.
    "wrap_every2": dict(wrap="units", units=["layers.0", "layers.2"]), "wrap_every2_odd": dict(wrap="units", units=["layers.1", "layers.3"]),
    "wrap_pairs": dict(wrap="units", units=PAIRS),
    "wrap_pairs_full": dict(wrap="units", units=PAIRS, ac="full"),
    "wrap_pair_uneven": dict(wrap="units", units=[["layers.0", "layers.1"], "layers.2", "layers.3"]),
    "wrap_pairs_never": dict(wrap="units", units=PAIRS, reshard=False),
    "wrap_pair_apart": dict(wrap="units", units=[["layers.0", "layers.2"], ["layers.1", "layers.3"]]),
    "wrap_all_in_one": dict(wrap="units", units=[BLOCKS]),
    "wrap_embedding": dict(wrap="units", units=["tok_embeddings", *BLOCKS]),
    "wrap_head": dict(wrap="units", units=[*BLOCKS, "output"]),
    "wrap_norm_head": dict(wrap="units", units=[*BLOCKS, ["norm", "output"]]),
    "wrap_norm_head_kept": dict(wrap="units", units=[*BLOCKS, ["norm", "output"]], unit_reshard=[None] * 4 + [False]),
    "wrap_titan": dict(wrap="titan"),
    "wrap_ends": dict(wrap="units", units=["tok_embeddings", *BLOCKS, "norm", "output"]),
    "wrap_parts": dict(wrap="units", units=PARTS), "wrap_parts_full": dict(wrap="units", units=PARTS, ac="full"),
    "wrap_parts_and_blocks": dict(wrap="units", units=[*PARTS, *BLOCKS]),
    "wrap_parts_and_blocks_full": dict(wrap="units", units=[*PARTS, *BLOCKS], ac="full"),
    "wrap_attention": dict(wrap="units", units=PARTS[::2]), "wrap_feed_forward": dict(wrap="units", units=PARTS[1::2]),
    "wrap_first2": dict(wrap="units", units=BLOCKS[:2]), "wrap_last2": dict(wrap="units", units=BLOCKS[2:]),
    "wrap_first2_full": dict(wrap="units", units=BLOCKS[:2], ac="full"),
    "wrap_root": dict(wrap="root"), "wrap_root_always": dict(wrap="root", root_reshard=True), "wrap_linears": dict(wrap="units", units=LINEARS),
    # Which blocks are checkpointed, and how.
    "ac_every2": dict(ac="every2"), "ac_every2_odd": dict(ac="blocks", ac_blocks=[1, 3]),
    "ac_first2": dict(ac="blocks", ac_blocks=[0, 1]), "ac_last2": dict(ac="blocks", ac_blocks=[2, 3]), "ac_0_3": dict(ac="blocks", ac_blocks=[0, 3]),
    "ac_wrapper": dict(ac="full"), "ac_wrapper_late": dict(ac="full", early_stop=False),
    "ac_wrapper_reentrant": dict(ac="full", ac_impl="wrapper_reentrant"),
    "ac_plain": dict(ac="full", ac_impl="plain"), "ac_plain_late": dict(ac="full", ac_impl="plain", early_stop=False),
    "ac_plain_reentrant": dict(ac="full", ac_impl="plain_reentrant"), "ac_plain_every2": dict(ac="every2", ac_impl="plain"),
    "ac_plain_reentrant_every2": dict(ac="every2", ac_impl="plain_reentrant"),
    "ac_plain_never": dict(ac="full", ac_impl="plain", reshard=False), "ac_plain_reentrant_never": dict(ac="full", ac_impl="plain_reentrant", reshard=False),
    "ac_inner": dict(ac="full", ac_impl="inner"), "ac_inner_reentrant": dict(ac="full", ac_impl="inner_reentrant"),
    "ac_no_rng": dict(ac="full", preserve_rng_state=False),
    "ac_ga_plain": dict(GA, ac="full", ac_impl="plain"), "ac_ga_plain_reentrant": dict(GA, ga_sync="every", ac="full", ac_impl="plain_reentrant"),
    # When parameters are let go.
    "reshard_backward_kept": dict(reshard_backward=["", True]), "reshard_backward_root": dict(reshard_backward=["", False]),
    "reshard_backward_blocks": dict(reshard_backward=["layers", True]), "reshard_backward_last": dict(reshard_backward=["layers.3", True]),
    "reshard_backward_ga": dict(GA, reshard_backward=["", True]), "reshard_backward_ga_every": dict(GA, ga_sync="every", reshard_backward=["", True]),
    "reshard_backward_never": dict(reshard=False, reshard_backward=["", True]),
    "late_root_true": dict(late_reshard=[["", True, False]]), "late_all_true": dict(late_reshard=[["", True, True]]),
    "late_all_false": dict(late_reshard=[["", False, True]]), "late_root_false": dict(late_reshard=[["", False, False]]),
    "late_last_false": dict(late_reshard=[["layers.3", False, False]]),
    "late_int_true": dict(reshard=2, late_reshard=[["", True, True]]),
    "reshard_2": dict(reshard=2), "reshard_4": dict(reshard=4), "reshard_8": dict(reshard=True), "reshard_2_root": dict(reshard=2, root_reshard=2),
    "root_always": dict(root_reshard=True), "root_2": dict(root_reshard=2), "reshard_2_full": dict(reshard=2, ac="full"),
    "reshard_2_ga": dict(GA, reshard=2), "reshard_2_ga_keep": dict(GA, reshard=2, ga_reshard_backward=False), "reshard_2_hsdp": dict(reshard=2, hsdp=2),
    "reshard_2_bf16": dict(reshard=2, mp="bf16"), "reshard_2_pairs": dict(reshard=2, wrap="units", units=PAIRS),
    # Optimizers.
    **{f"opt_{name}": dict(opt=opt, opt_args=args) for name, opt, args in [
        (f"{opt}_{how}", opt, {**args, **({} if how == "default" else dict(foreach=how == "foreach", fused=how == "fused"))})
        for opt, args in (("adamw", {}), ("adam", {})) for how in ("default", "foreach", "fused", "loop")] + [
        ("adam_decay", "adam", dict(weight_decay=0.1)), ("adam_decay_fused", "adam", dict(weight_decay=0.1, fused=True)),
        ("adam_decay_loop", "adam", dict(weight_decay=0.1, foreach=False)),
        ("adam_amsgrad", "adam", dict(amsgrad=True)), ("adamw_no_decay", "adamw", dict(weight_decay=0.0)),
        ("adamw_amsgrad", "adamw", dict(amsgrad=True)), ("adamw_amsgrad_fused", "adamw", dict(amsgrad=True, fused=True)),
        ("adamw_amsgrad_loop", "adamw", dict(amsgrad=True, foreach=False)),
        ("adamw_capturable", "adamw", dict(capturable=True)), ("adamw_maximize", "adamw", dict(maximize=True)),
        ("sgd", "sgd", {}), ("sgd_fused", "sgd", dict(fused=True)), ("sgd_loop", "sgd", dict(foreach=False)),
        ("sgd_decay", "sgd", dict(weight_decay=0.1)), ("sgd_momentum", "sgd", dict(momentum=0.9)),
        ("sgd_momentum_loop", "sgd", dict(momentum=0.9, foreach=False)), ("sgd_momentum_decay", "sgd", dict(momentum=0.9, weight_decay=0.1)),
        ("sgd_nesterov", "sgd", dict(momentum=0.9, nesterov=True)), ("sgd_nesterov_loop", "sgd", dict(momentum=0.9, nesterov=True, foreach=False)),
        ("sgd_dampening", "sgd", dict(momentum=0.9, dampening=0.5)),
    ]},
    "opt_adam_bf16": dict(opt="adam", mp="bf16"), "opt_sgd_bf16": dict(opt="sgd", mp="bf16"),
    "opt_sgd_momentum_bf16": dict(opt="sgd", opt_args=dict(momentum=0.9), mp="bf16"),
    # Types.
    "bf16": dict(mp="bf16"), "bf16_fp32reduce": dict(mp="bf16_fp32reduce"), "fp32": dict(mp="fp32"),
    "bf16_master": dict(mp="bf16", master=True), "bf16_master_fp32reduce": dict(mp="bf16_fp32reduce", master=True),
    "bf16_master_ga": dict(GA, mp="bf16", master=True),
    "autocast": dict(mp="autocast"), "autocast_no_cache": dict(mp="autocast", autocast_cache=False),
    "autocast_full": dict(mp="autocast", ac="full"),
    "autocast_full_no_cache": dict(mp="autocast", ac="full", autocast_cache=False),
    "autocast_never": dict(mp="autocast", reshard=False), "autocast_ga": dict(GA, mp="autocast"), "autocast_root": dict(mp="autocast", wrap="root"),
    "autocast_plain": dict(mp="autocast", ac="full", ac_impl="plain"), "autocast_plain_reentrant": dict(mp="autocast", ac="full", ac_impl="plain_reentrant"),
    **{f"single_{name}": dict(over, runtime="single", world=1) for name, over in dict(
        fp32=dict(mp="fp32"), bf16=dict(mp="bf16"), bf16_master=dict(mp="bf16", master=True),
        autocast=dict(mp="autocast"), autocast_no_cache=dict(mp="autocast", autocast_cache=False),
        autocast_full=dict(mp="autocast", ac="full"), autocast_full_no_cache=dict(mp="autocast", ac="full", autocast_cache=False),
        autocast_ga=dict(GA, mp="autocast"), autocast_reentrant=dict(mp="autocast", ac="full", ac_impl="plain_reentrant"),
        bf16_full=dict(mp="bf16", ac="full"), bf16_reentrant=dict(mp="bf16", ac="full", ac_impl="plain_reentrant"),
        bf16_ga=dict(GA, mp="bf16"), adam=dict(mp="fp32", opt="adam"), sgd=dict(mp="fp32", opt="sgd"),
        sgd_fused=dict(mp="fp32", opt="sgd", opt_args=dict(fused=True)),
        sgd_momentum_fused=dict(mp="fp32", opt="sgd", opt_args=dict(momentum=0.9, fused=True)),
    ).items()},
    # Selective checkpoints by lists of operators.
    **{f"sac_{name}": dict(ac="sac", sac_save=save) for name, save in SAVES.items()},
    "sac_titan": dict(ac="sac_op"), "sac_attention_late": dict(ac="sac", sac_save=SAVES["attention"], early_stop=False),
    "sac_mm_late": dict(ac="sac", sac_save=SAVES["mm"], early_stop=False), "sac_mm_half_late": dict(ac="sac", sac_save=SAVES["mm_half"], early_stop=False),
    "sac_attention_plain": dict(ac="sac", sac_save=SAVES["attention"], ac_impl="plain"),
    "sac_attention_mm_single": dict(ac="sac", sac_save=SAVES["attention_mm"], runtime="single", world=1, mp="bf16"),
    # Parameters sharded on dimension 1.
    "shard1_rows": dict(shard1=ROWS), "shard1_all": dict(shard1=["weight"]), "shard1_w1": dict(shard1=["w1.weight"]),
    "shard1_1_2": dict(shard1=["wk.weight", "wv.weight"]), "shard1_2_3": dict(shard1=["wv.weight", "wo.weight"]), "shard1_0_2": dict(shard1=["wq.weight", "wv.weight"]),
    "shard1_bf16": dict(shard1=ROWS, mp="bf16"), "shard1_bf16reduce": dict(shard1=ROWS, mp="mixed_bf16reduce"),
    "shard1_ga": dict(GA, shard1=ROWS), "shard1_never": dict(shard1=ROWS, reshard=False),
    "shard1_hsdp": dict(shard1=ROWS, hsdp=2), "shard1_reshard_2": dict(shard1=ROWS, reshard=2),
    # Some together, on a larger model.
    "mix_pairs_keep": dict(GA, dims=LARGE, wrap="units", units=[*PAIRS, ["layers.4", "layers.5"]], ac="blocks", ac_blocks=[1, 2], ga_reshard_backward=False,
                           mp="mixed_bf16reduce", opt="sgd", opt_args=dict(momentum=0.9)),
    "mix_hsdp_parts": dict(GA, dims=LARGE, hsdp=2, ga_sync="every", ga_all_reduce="last", wrap="units", units=PARTS, opt="adam", opt_args=dict(weight_decay=0.1)),
    "mix_titan_reentrant": dict(GA, dims=LARGE, world=64, wrap="titan", ga_sync="every", ga_is_last=True, ac="every2", ac_impl="plain_reentrant"),
    "mix_rows_attention": dict(GA, dims=LARGE, shard1=ROWS, ac="sac", sac_save=SAVES["attention"], reshard=False),
    "mix_first3_autocast": dict(dims=LARGE, wrap="units", units=BLOCKS[:3], mp="autocast", ac="full", bs=2),
    "mix_reshard4_master": dict(GA, dims=LARGE, reshard=4, ga_reshard_backward=False, wrap="units", units=[PAIRS[0], *BLOCKS[2:]], mp="bf16", master=True),
    "mix_ends_keep": dict(GA, dims=LARGE, wrap="units", units=["tok_embeddings", *BLOCKS, ["norm", "output"]], ga_reshard_backward=False,
                          ac="blocks", ac_blocks=[3, 4, 5], bs=2, opt_args=dict(fused=True)),
    "mix_buffers_prefetch": dict(GA, dims=LARGE, ga_sync="every", ga_is_last=True, rs_max_input_buffers=2, fwd_prefetch=1, bwd_prefetch=1, opt_args=dict(amsgrad=True)),
    "mix_single": dict(GA, dims=LARGE, runtime="single", world=1, mp="autocast", ac="full", autocast_cache=False, opt="sgd", opt_args=dict(momentum=0.9, nesterov=True)),
    # The whole model compiled.
    "compile": dict(compile_model=True), "compile_full": dict(compile_model=True, ac="full"), "compile_never": dict(compile_model=True, reshard=False),
    "compile_blocks": dict(compile=True), "compile_blocks_full": dict(compile=True, ac="full"), "compile_blocks_never": dict(compile=True, reshard=False),
    "compile_titan": dict(compile_model=True, wrap="titan"), "compile_blocks_titan": dict(compile=True, wrap="titan"), "compile_root": dict(compile_model=True, wrap="root"),
    "compile_blocks_single_bf16": dict(compile=True, runtime="single", world=1, mp="bf16"),
    "compile_single_bf16": dict(compile_model=True, runtime="single", world=1, mp="bf16"),
    "compile_single_autocast": dict(compile_model=True, runtime="single", world=1, mp="autocast"),
    "compile_single_full": dict(compile_model=True, runtime="single", world=1, mp="bf16", ac="full"),
}
TELLING = (
    "base", "ga_every", "ga_every_is_last", "ga_last", "ga_last_keep", "ga_every_keep", "ga_every_titan_is_last", "ga_last_bf16reduce",
    "ga_last_never_keep", "ga_every_bf16reduce", "ga_every_bf16", "ga_hsdp_reduce_last", "ga_hsdp_reduce_last_bf16reduce", "ga_last_keep_full",
    "wrap_every2", "wrap_pairs", "wrap_pair_apart", "wrap_norm_head", "wrap_ends", "wrap_parts", "wrap_parts_and_blocks_full", "wrap_first2", "wrap_embedding",
    "ac_wrapper", "ac_wrapper_late", "ac_wrapper_reentrant", "ac_plain", "ac_plain_late", "ac_plain_reentrant", "ac_inner", "ac_first2",
    "reshard_backward_kept", "reshard_backward_root", "late_all_true", "reshard_2", "reshard_2_ga_keep", "reshard_2_bf16", "opt_", "bf16_master",
    "autocast", "autocast_full", "single_autocast", "single_autocast_full", "single_autocast_ga", "sac_", "shard1_", "compile", "compile_",
)
STEPS = 3


class Llama(nn.Module):
    def __init__(self, c, d):
        super().__init__()
        self.tok_embeddings = nn.Embedding(d["vocab"], d["dim"])
        self.register_buffer("table", torch.empty(c["seq"], d["head_dim"] // 2, dtype=torch.complex64), persistent=False)
        sizes = dict(dim=d["dim"], heads=d["n_heads"], kv_heads=d["n_kv_heads"], ffn=d["ffn"])
        self.layers = nn.ModuleDict({str(i): Block(sizes) for i in range(d["n_layers"])})
        self.norm = nn.RMSNorm(d["dim"], eps=1e-5)
        self.output = nn.Linear(d["dim"], d["vocab"], bias=False)
        self.again = {}  # by block: how it is checkpointed from outside

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for name, layer in self.layers.items():
            h = checkpoint(layer, h, self.table, **self.again[name]) if name in self.again else layer(h, self.table)
        return self.output(self.norm(h))


class Inner(nn.Module):
    """A block that checkpoints what it has inside: FSDP's hooks are around the checkpoint, as with a wrapper."""

    def __init__(self, block, **kwargs):
        super().__init__()
        self.block, self.kwargs = block, kwargs

    def forward(self, h, table): return checkpoint(self.block, h, table, **self.kwargs)


class Master:
    """An optimizer as users write it, whose fp32 copies are stepped and written back."""

    def __init__(self, params, make):
        self.params = list(params)
        self.copies = [p.detach().clone().float() for p in self.params]
        self.optimizer = make(self.copies)

    @torch.no_grad()
    def step(self):
        for param, copy in zip(self.params, self.copies): copy.grad = param.grad.float()
        self.optimizer.step()
        self.optimizer.zero_grad()
        for param, copy in zip(self.params, self.copies): param.copy_(copy)

    def zero_grad(self):
        for param in self.params: param.grad = None


def operator(name):
    space, name = name.split(".")
    packet = getattr(getattr(torch.ops, space), name)
    return [getattr(packet, overload) for overload in packet.overloads()]


def contexts(save):
    """Contexts of `checkpoint` that keep what these operators return; as torchtitan has it, "mm/2" counts matmuls."""
    if save == "titan":
        from torch._functorch.partitioners import get_default_op_list
        kept = {op.default for op in get_default_op_list().compute_intensive_ops}
        kept |= {torch.ops.aten._scaled_dot_product_cudnn_attention.default, torch.ops.aten.linear.default, torch.ops.aten.max.default}
        half = True
    else:
        half = "mm/2" in save
        kept = {op for name in save if name != "mm/2" for op in operator(name)} | set(operator("aten.mm") if half else [])
        if not half: return lambda: create_selective_checkpoint_contexts(list(kept))
    mm = (torch.ops.aten.mm.default, torch.ops.aten.linear.default)

    def make():
        seen = {}
        def policy(ctx, op, *args, **kwargs):
            if op in mm: seen[ctx.is_recompute] = seen.get(ctx.is_recompute, 0) + 1
            again = op not in kept or op in mm and seen[ctx.is_recompute] % 2 == 0
            return CheckpointPolicy.PREFER_RECOMPUTE if again else CheckpointPolicy.MUST_SAVE
        return create_selective_checkpoint_contexts(policy)
    return make


def checkpointed(m, c):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
    blocks = {"none": [], "every2": range(0, len(m.layers), 2), "blocks": c["ac_blocks"]}.get(c["ac"], range(len(m.layers)))
    reentrant = c["ac_impl"].endswith("_reentrant")
    kwargs = dict(preserve_rng_state=c["preserve_rng_state"])
    if not reentrant: kwargs["early_stop"] = c["early_stop"]
    if c["ac"].startswith("sac"): kwargs["context_fn"] = contexts("titan" if c["ac"] == "sac_op" else c["sac_save"])
    for k in map(str, blocks):
        if c["ac_impl"].startswith("plain"): m.again[k] = dict(kwargs, use_reentrant=reentrant)
        elif c["ac_impl"].startswith("inner"): m.layers[k] = Inner(m.layers[k], **kwargs, use_reentrant=reentrant)
        else: m.layers[k] = checkpoint_wrapper(m.layers[k], checkpoint_impl=CheckpointImpl.REENTRANT if reentrant else CheckpointImpl.NO_REENTRANT, **kwargs)


def sharded(m, c):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", rank=0, world_size=c["world"], store=FakeStore())
    sizes = (c["hsdp"], c["world"] // c["hsdp"]) if c["hsdp"] > 1 else (c["world"],)
    bf16, fp32 = torch.bfloat16, torch.float32
    policy = {"mixed": (bf16, fp32), "mixed_bf16reduce": (bf16, bf16), "bf16_fp32reduce": (None, fp32)}.get(c["mp"], (None, None))
    shared = dict(mesh=init_device_mesh("cuda", sizes, mesh_dim_names=("replicate", "shard")[-len(sizes):]), mp_policy=MixedPrecisionPolicy(*policy))
    if c["shard1"]:
        second = {p for name, p in m.named_parameters() if p.ndim > 1 and name.endswith(tuple(c["shard1"]))}
        shared["shard_placement_fn"] = lambda p: Shard(1) if p in second else None
    again = lambda value: {} if value in ("default", None) else dict(reshard_after_forward=value)
    blocks = [f"layers.{k}" for k in m.layers]
    units = {"root": [], "block": blocks, "titan": ["tok_embeddings", ["norm", "output"], *blocks], "units": c["units"]}[c["wrap"]]
    values = c["unit_reshard"] or [False if c["wrap"] == "titan" and unit == ["norm", "output"] else None for unit in units]
    for unit, value in zip(units, values):
        modules = [m.get_submodule(name) for name in unit] if isinstance(unit, list) else m.get_submodule(unit)
        fully_shard(modules, **shared, **again(c["reshard"] if value is None else value))
    fully_shard(m, **shared, **again(c["root_reshard"]))
    layers = list(m.layers.values())
    for i, layer in enumerate(layers):
        if n := c["fwd_prefetch"]: layer.set_modules_to_forward_prefetch(layers[i + 1: i + 1 + n])
        if n := c["bwd_prefetch"]: layer.set_modules_to_backward_prefetch(layers[max(0, i - n): i][::-1])
    m.set_reduce_scatter_max_input_buffers(c["rs_max_input_buffers"])
    for name, value, recurse in c["late_reshard"] or []: m.get_submodule(name).set_reshard_after_forward(value, recurse=recurse)
    if c["reshard_backward"]:
        name, recurse = c["reshard_backward"]
        for part in layers if name == "layers" else [m.get_submodule(name)]: part.set_reshard_after_backward(False, recurse=recurse)


def no_triton():
    """Inductor compiles for an H100; the kernels it writes are neither compiled nor run, but its wrappers allocate as on a GPU."""
    import torch._inductor.config, triton
    from torch._inductor.async_compile import AsyncCompile
    from triton.backends.compiler import GPUTarget

    class Driver:
        def __getattr__(self, name): return lambda *args, **kwargs: 0
        def get_current_target(self): return GPUTarget("cuda", 90, 32)

    class Launched:
        def run(self, *args, **kwargs): pass

    triton.runtime.driver.set_active(Driver())
    torch._inductor.config.compile_threads, torch._inductor.config.force_disable_caches = 1, True
    AsyncCompile.triton = lambda *args, **kwargs: Launched()


def build(c, d):
    wide = c["mp"] == "fp32"  # flash attention has no kernel of fp32
    torch.backends.cuda.enable_cudnn_sdp(False); torch.backends.cuda.enable_math_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(wide)
    with torch.device("meta"): m = Llama(c, d)
    if c["mp"].startswith("bf16"):
        table = m.table; m = m.to(torch.bfloat16); m.table = table
    checkpointed(m, c)
    if c["compile"]:
        for layer in m.layers.values(): layer.compile(fullgraph=True)
    if c["runtime"] == "fsdp2": sharded(m, c)
    m.to_empty(device="cuda")
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[c["opt"]]
    make = lambda params: kind(params, lr=1e-4, **c["opt_args"])
    return m, Master(m.parameters(), make) if c["master"] else make(m.parameters())


def run(c, d):
    import torch.cuda.memory as M
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives
    warnings.filterwarnings("ignore")
    verbose, said, phases = bool(os.environ.get("VERBOSE")), [], {}

    def say(kind, ranks, size):
        said.append((kind, ranks, size))
        M._annotate_tensor(x, kind)  # an event of its own among allocations

    def watch(name, kind, larger):
        plain = getattr(dist, name)
        def told(*args, **kwargs):
            t = larger(*args, **kwargs)
            say(kind, kwargs["group"].size(), t.numel() * t.element_size())
            return plain(*args, **kwargs)
        setattr(dist, name, told)

    watch("all_gather_single", "all_gather", lambda output_tensor, *args, **k: output_tensor)
    watch("reduce_scatter_single", "reduce_scatter", lambda input=None, **k: input)
    watch("all_reduce", "all_reduce", lambda tensor, **k: tensor)
    copy_out = _fsdp_collectives._copy_all_gather_outputs
    def tagged(*args):
        M._set_memory_metadata("indices")
        copy_out(*args)
        M._set_memory_metadata("")
    _fsdp_collectives._copy_all_gather_outputs = tagged

    m, opt = build(c, d)
    if c["compile"] or c["compile_model"]: no_triton()
    model = torch.compile(m) if c["compile_model"] else m
    x, y = (torch.zeros(c["bs"], c["seq"], dtype=torch.long, device="cuda") for _ in range(2))
    autocast = lambda: torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=c["autocast_cache"]) if c["mp"] == "autocast" else contextlib.nullcontext()
    sharded = c["runtime"] == "fsdp2"

    def mark(name):
        s = torch.cuda.memory_stats()
        phases[name] = dict(peak=s["allocated_bytes.all.peak"], end=s["allocated_bytes.all.current"], reserved=s["reserved_bytes.all.peak"])
        say("|" + name, 0, 0)
        torch.cuda.reset_peak_memory_stats()

    def one():
        for micro in range(c["ga"]):
            last, at = micro == c["ga"] - 1, str(micro) if c["ga"] > 1 else ""
            if sharded and c["ga"] > 1:
                if c["ga_sync"] == "last": m.set_requires_gradient_sync(last)
                if c["ga_is_last"]: m.set_is_last_backward(last)
                if not c["ga_reshard_backward"]: m.set_reshard_after_backward(last)
                if c["ga_all_reduce"] == "last": m.set_requires_all_reduce(last)
            with autocast(): loss = F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten(0, 1))
            if c["ga_divide"]: loss = loss / c["ga"]
            mark("fwd" + at)
            loss.backward()
            del loss
            mark("bwd" + at)
        opt.step()
        mark("opt")
        opt.zero_grad()
        mark("zero")

    for _ in range(STEPS - 1): one()
    said.clear()
    M._record_memory_history(enabled="all", context="alloc" if verbose else None, stacks="python", max_entries=10_000_000)
    torch.cuda.reset_peak_memory_stats()
    one()
    events, live = [], {}
    for e in M._snapshot()["device_traces"][0]:
        if e["action"] == "annotate": events.append(e["user_metadata"])
        elif e["action"] == "alloc":
            live[e["addr"]] = 0 if e.get("user_metadata") == "indices" else e["size"]
            if live[e["addr"]]: events.append(f"+{e['size']}" + frames(e))
        elif e["action"] == "free_requested" and (size := live.pop(e["addr"], e["size"])): events.append(f"-{size}")
    graphs = {}
    if c["compile"] or c["compile_model"]:
        from torch._dynamo.utils import counters
        graphs = dict(graphs=counters["stats"]["unique_graphs"], graph_breaks=dict(counters["graph_break"]))
    collectives, phase = {}, []
    for kind, ranks, size in said:
        if kind[0] != "|": phase.append(f"{kind} {ranks} {size}")
        else: collectives[kind[1:]], phase = phase, []
    return dict(
        peak_allocated=max(p["peak"] for p in phases.values()), peak_reserved=max(p.pop("reserved") for p in phases.values()),
        phases=phases, **graphs, collectives={name: calls for name, calls in collectives.items() if calls}, events="\n".join(events) if verbose else " ".join(events),
    )


def frames(e):
    """Where in Python a block was taken, for a look by eye."""
    said = [f"{f['filename'].rsplit('/', 1)[-1]}:{f['line']}:{f['name']}" for f in e.get("frames", []) if "torch/nn/modules" not in f["filename"]]
    return " @ " + " < ".join(said[:5]) if said else ""


def child(c, d):
    """A process of its own, that has imported PyTorch already."""
    read, write = os.pipe()
    if not (pid := os.fork()):
        try: made = run(c, d)
        except BaseException as error: made = dict(error=f"{type(error).__name__}: {error}".splitlines()[0][:300], traceback=traceback.format_exc())
        with os.fdopen(write, "wb") as f: pickle.dump(made, f)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as f: data = f.read()
    os.waitpid(pid, 0)
    return pickle.loads(data) if data else dict(error="the process died")


def preload():
    import torch._dynamo, torch.distributed.algorithms._checkpoint.checkpoint_wrapper, torch.distributed.fsdp  # noqa: F401
    import torch.distributed.tensor.parallel, torch.testing._internal.distributed.fake_pg, torch._functorch.partitioners  # noqa: F401


if __name__ == "__main__":
    out, wanted = sys.argv[1], sys.argv[2:]
    preload()
    old = {case["id"]: case for case in json.load(open(out))["cases"]} if os.path.exists(out) else {}
    for name, over in CASES.items():
        if wanted and not name.startswith(tuple(wanted)): continue
        config = {**DEFAULTS, **over}
        dims = config.pop("dims", DIMS)
        made = child(config, dims)
        print(name, made.get("peak_allocated"), made.get("peak_reserved"), {k: v["peak"] >> 20 for k, v in made.get("phases", {}).items()}, made.get("error", ""), flush=True)
        if os.environ.get("VERBOSE"): print(made.get("events") or made["traceback"])
        elif "error" in made: print(made.pop("traceback", ""))
        if not name.startswith(tuple(t for t in TELLING if t.endswith("_"))) and name not in TELLING: made.pop("events", None)
        if name.startswith("opt_") and "events" in made: made["events"] = made["events"].split("|bwd ")[1]
        old[name] = dict(id=name, model_dims=dims, config=config, **made)
    if not os.environ.get("VERBOSE"):
        cases = [old[name] for name in CASES if name in old]
        json.dump(dict(torch=torch.__version__, python=sys.version.split()[0], cases=cases), open(out, "w"), separators=(",", ":"))
