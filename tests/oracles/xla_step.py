"""What XLA's TPU compiler makes of a training step: bytes, collectives and buffers, with no TPU.

A decoder as MaxText writes it (RMSNorm, rotary, grouped queries, gated MLP or experts), its blocks in one scan under a remat
policy, parameters and AdamW's state in fp32 and sharded as MaxText's rules shard them, computed in bf16, splash attention
under shard_map. `mesh` is data (MaxText's `fsdp`) and model (`tensor`); with experts, `expert` is an axis between them, else
`context` if it is said; with `stage`, stages come first, and blocks run in a pipeline (`xla_pipeline.py`); `slices` are replicas.
`grouped` gives the kernel keys and values as they are (MaxText's can), where others repeat them for every head of queries.
`half` keeps the first moment in bf16, `apart` gives blocks parameters of their own. It is compiled ahead of time for a slice of
v6e; nothing runs.

    python xla_step.py DIR [CASE ...]

writes DIR/CASE.mlir, which `windtunnel calibrate xla compile` compiles, and DIR/CASE.json, what the case is.
"""
import json, os, re, sys, time
os.environ.update(TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1", TPU_WORKER_HOSTNAMES="localhost", TPU_WORKER_ID="0",
                  TPU_ACCELERATOR_TYPE="v6e-16", JAX_PLATFORMS="cpu")
import functools
import jax, jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as sk, splash_attention_mask as sm
from jax.experimental.pallas.ops.tpu.megablox.ops import gmm
from xla_pipeline import pipeline

BASE = dict(d=2048, ff=5632, h=16, kv=16, hd=128, vocab=32000, layers=8, batch=64, seq=2048, mesh=[16, 1], topo="v6e:4x4",
            remat="full", attention="splash", scan=True, block=512, flags={}, experts=0)
RECIPE = dict(xla_tpu_scoped_vmem_limit_kib="98304", xla_tpu_enable_async_collective_fusion="true",
              xla_tpu_enable_async_collective_fusion_fuse_all_gather="true", xla_tpu_enable_async_collective_fusion_multiple_steps="true",
              xla_tpu_overlap_compute_collective_tc="true", xla_enable_async_all_gather="true",
              xla_tpu_use_minor_sharding_for_major_trivial_input="true", xla_tpu_relayout_group_size_threshold_for_reduce_scatter="1",
              xla_tpu_assign_all_reduce_scatter_layout="true", xla_tpu_enable_data_parallel_all_reduce_opt="true",
              xla_tpu_data_parallel_opt_different_sized_ops="true", xla_jf_spmd_threshold_for_windowed_einsum_mib="1000000")
MOE = dict(layers=2, ff=7168, kv=4, experts=8, top_k=2, capacity=1.25, loss="maxtext", clip=True)
NARROW = dict(d=256, ff=512, h=2, kv=2, vocab=1024, layers=2, batch=8, seq=256, mesh=[4, 1], topo="v6e:2x2")
FEW = dict(NARROW, experts=4, top_k=2, capacity=1.25)
PIPE = dict(loss="maxtext", clip=True, stage=4, mesh=[4, 1], micro_batches=8, repeats=2, batch=64)
NAMES = "names:query_proj,key_proj,value_proj,out_proj,mlpwi_0,mlpwi_1,mlpwo"
PIPE_NARROW = dict(PIPE, d=512, ff=1024, h=4, kv=4, vocab=4096, layers=4, topo="v6e:2x2", stage=2, mesh=[2, 1], micro_batches=4, batch=32)
CASES = {
    "narrow": NARROW,
    "narrow-onehot": dict(NARROW, loss="maxtext", clip=True),
    "narrow-tiled": dict(NARROW, loss="maxtext", tiling=4),
    "narrow-half": dict(NARROW, half=True),
    "narrow-apart": dict(NARROW, scan=False, apart=True),
    "narrow-context": dict(NARROW, mesh=[2, 1], context=2, batch=4, seq=512, block=256),
    "narrow-slices": dict(NARROW, slices=2, batch=16),
    "narrow-moe": FEW,
    "narrow-moe-sent": dict(FEW, mesh=[2, 1], expert=2, sent=True),
    "narrow-moe-sorted": dict(FEW, capacity=None),
    "pipe-narrow": dict(PIPE_NARROW),
    "pipe-narrow-replicas": dict(PIPE_NARROW, replicas=True),
    "pipe-narrow-once": dict(PIPE_NARROW, once=True),
    "pipe-narrow-delay": dict(PIPE_NARROW, delay=True),
    "pipe-l8-circular": dict(PIPE),
    "pipe-l8-model2": dict(PIPE, mesh=[2, 2]),
    "pipe-l8-kept": dict(PIPE, repeats=1, per_stage=2, micro_batches=4, remat=NAMES),
    "pipe-l4-delay": dict(PIPE, delay=True, layers=4, repeats=1),
    "near-full-l24-b67": dict(kv=8, layers=24, batch=1072, loss="maxtext", clip=True),
    "near-full-l24-b68": dict(kv=8, layers=24, batch=1088, loss="maxtext", clip=True),
    "near-dots-l12-4x8-b10": dict(d=4096, ff=14336, h=32, kv=8, vocab=128256, layers=12, batch=320, mesh=[32, 1], topo="v6e:4x8", remat="dots", loss="maxtext", clip=True),
    "near-dots-l12-4x8-b11": dict(d=4096, ff=14336, h=32, kv=8, vocab=128256, layers=12, batch=352, mesh=[32, 1], topo="v6e:4x8", remat="dots", loss="maxtext", clip=True),
    "near-model4-l16-b73": dict(d=4096, ff=11008, h=32, kv=32, layers=16, batch=292, mesh=[4, 4], loss="maxtext", clip=True),
    "near-model4-l16-b74": dict(d=4096, ff=11008, h=32, kv=32, layers=16, batch=296, mesh=[4, 4], loss="maxtext", clip=True),
    "near-8b-l16-b10": dict(d=4096, ff=14336, h=32, kv=8, vocab=128256, layers=16, batch=160, seq=4096, loss="maxtext", clip=True),
    "near-8b-l16-b11": dict(d=4096, ff=14336, h=32, kv=8, vocab=128256, layers=16, batch=176, seq=4096, loss="maxtext", clip=True),
    "near-2x4-l16-b40": dict(ff=8192, kv=8, vocab=50304, layers=16, batch=320, mesh=[8, 1], topo="v6e:2x4"),
    "near-2x4-l16-b41": dict(ff=8192, kv=8, vocab=50304, layers=16, batch=328, mesh=[8, 1], topo="v6e:2x4"),
    "near-qkvo-8x8-b5": dict(d=4096, ff=14336, h=32, kv=8, vocab=128256, layers=32, batch=320, seq=4096, mesh=[64, 1], topo="v6e:8x8", remat="names:query_proj,key_proj,value_proj,out_proj", loss="maxtext", clip=True),
    "near-qkvo-8x8-b6": dict(d=4096, ff=14336, h=32, kv=8, vocab=128256, layers=32, batch=384, seq=4096, mesh=[64, 1], topo="v6e:8x8", remat="names:query_proj,key_proj,value_proj,out_proj", loss="maxtext", clip=True),
    "near-tiled-l16-b19": dict(d=4096, ff=14336, h=32, kv=8, vocab=128256, layers=16, batch=304, seq=4096, loss="maxtext", clip=True, tiling=8),
    "near-tiled-l16-b20": dict(d=4096, ff=14336, h=32, kv=8, vocab=128256, layers=16, batch=320, seq=4096, loss="maxtext", clip=True, tiling=8),
    "near-none-l6-b13": dict(d=3072, ff=8192, h=24, kv=8, layers=6, batch=208, remat="none", loss="maxtext", clip=True, grouped=True),
    "near-none-l6-b14": dict(d=3072, ff=8192, h=24, kv=8, layers=6, batch=224, remat="none", loss="maxtext", clip=True, grouped=True),
    "loss-2x2": dict(ff=8192, kv=8, batch=80, mesh=[4, 1], topo="v6e:2x2", loss="maxtext", clip=True),
    "loss-model4-l8": dict(d=4096, ff=11008, h=32, kv=32, batch=80, mesh=[4, 4]),
    "loss-model4-l16": dict(d=4096, ff=11008, h=32, kv=32, layers=16, batch=80, mesh=[4, 4]),
    "loss-model4-onehot-l16": dict(d=4096, ff=11008, h=32, kv=32, layers=16, batch=80, mesh=[4, 4], loss="maxtext"),
    "loss-8x8-l8": dict(batch=1280, mesh=[64, 1], topo="v6e:8x8", loss="maxtext", clip=True),
    "loss-8x8-l32": dict(layers=32, batch=1280, mesh=[64, 1], topo="v6e:8x8", loss="maxtext", clip=True),
    "loss-2x2-indexed-l16": dict(layers=16, batch=80, mesh=[4, 1], topo="v6e:2x2"),
    "loss-model4-l32": dict(layers=32, batch=80, mesh=[4, 4]),
    "maxtext-full-l2": dict(layers=2, loss="maxtext", clip=True),
    "notes-scan": {},
    "llama8b-l8-4x4": dict(d=4096, ff=14336, h=32, kv=8, vocab=128256, layers=8, batch=32, seq=4096),
    "d2048-l2": dict(layers=2),
    "d2048-l32": dict(layers=32),
    "d2048-l8-none": dict(remat="none", batch=32),
    "d2048-l8-dots": dict(remat="dots", batch=32),
    "d2048-l8-qkvo": dict(remat="names:query_proj,key_proj,value_proj,out_proj", batch=64),
    "d2048-l8-4x4-model4": dict(mesh=[4, 4], batch=32),
    "d4096-l8-2x4": dict(d=4096, ff=14336, h=32, kv=8, layers=8, batch=8, seq=2048, mesh=[8, 1], topo="v6e:2x4"),
    "d4096-l8-16x16": dict(d=4096, ff=14336, h=32, kv=8, layers=8, batch=256, seq=2048, mesh=[256, 1], topo="v6e:16x16"),
    "d2048-l8-none-b14": dict(remat="none", batch=224),
    "d2048-l8-dots-b29": dict(remat="dots", batch=464),
    "llama8b-l8-maxtext-b12": dict(d=4096, ff=14336, h=32, kv=8, vocab=128256, layers=8, seq=4096, loss='maxtext', clip=True, batch=192),
    "llama8b-l8-maxtext-b13": dict(d=4096, ff=14336, h=32, kv=8, vocab=128256, layers=8, seq=4096, loss='maxtext', clip=True, batch=208),
    "d2048-l2-tiled": dict(layers=2, loss="maxtext", clip=True, tiling=8),
    "moe-l2": dict(MOE),
    "moe-l2-expert4": dict(MOE, mesh=[4, 1], expert=4),
    "moe-l2-expert4-sent": dict(MOE, mesh=[4, 1], expert=4, sent=True),
    "moe-l2-expert4-model2-sent": dict(MOE, mesh=[2, 2], expert=4, sent=True),
    "moe-l2-sorted": dict(MOE, capacity=None),
    "moe-l2-expert4-kept": dict(MOE, mesh=[4, 1], expert=4, sent=True, batch=32,
                                remat="names:query_proj,key_proj,value_proj,out_proj,mlpwi_0,mlpwi_1,mlpwo"),
    "moe-l2-expert4-peel": dict(MOE, mesh=[4, 1], expert=4, peel=True),
    **{f"llama8b-wide-vocab-b{b}": dict(d=4096, ff=14336, h=32, kv=8, vocab=262144, layers=8, batch=16 * b, seq=4096, loss="maxtext", clip=True,
                                        tiling=16) for b in (20, 24, 27, 29, 30, 31, 33, 36)},
    "notes-scan-16k": dict(vocab=16384),
    "notes-plain-16k": dict(vocab=16384, d=4096, ff=14336, h=32, kv=8, layers=2, batch=16, seq=4096, mesh=[4, 4], remat="none",
                            attention="plain", scan=False),
    "notes-plain": dict(d=4096, ff=14336, h=32, kv=8, layers=2, batch=16, seq=4096, mesh=[4, 4], remat="none",
                        attention="plain", scan=False),
}

def norm(x, w):
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-5)
    return (y.astype(jnp.bfloat16)) * w.astype(jnp.bfloat16)

def rope(x, base=500000.0):
    hd = x.shape[-1]; half = hd // 2
    pos = jnp.arange(x.shape[1], dtype=jnp.float32)
    f = 1.0 / (base ** (jnp.arange(half, dtype=jnp.float32) / half))
    ang = pos[:, None] * f[None]
    s, c = jnp.sin(ang)[None, :, None], jnp.cos(ang)[None, :, None]
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    return jnp.concatenate([a * c - b * s, b * c + a * s], -1).astype(jnp.bfloat16)

@jax.custom_vjp
def sort(x, order):
    return x[order]

sort.defvjp(lambda x, order: (x[order], order), lambda order, g: (g[jnp.argsort(order)], None))

@jax.custom_vjp
def cross_entropy(logits, targets):
    return -jnp.sum(targets * jax.nn.log_softmax(logits), -1)

def _fwd(logits, targets):
    shifted = logits - logits.max(-1, keepdims=True)
    e = jnp.exp(shifted)
    total = jnp.sum(e, -1, keepdims=True)
    return -jnp.sum(targets * (shifted - jnp.log(total)), -1), (targets, e, total)

def _bwd(saved, g):
    targets, e, total = saved
    return g[..., None] * (e / total - targets), None

cross_entropy.defvjp(_fwd, _bwd)

def build(c):
    topo = topologies.get_topology_desc(platform="tpu", topology_name=c["topo"], **({"num_slices": c["slices"]} if c.get("slices") else {}))
    expert, devices = c.get("expert", 1), np.array(topo.devices)
    if c["experts"]:
        mesh = Mesh(devices.reshape(c["mesh"][0], expert, c["mesh"][1]), ("data", "expert", "model"))
        data = ("data", "expert")
    elif c.get("context"):
        mesh, data = Mesh(devices.reshape(c["mesh"][0], c["context"], c["mesh"][1]), ("data", "context", "model")), "data"
    elif c.get("slices"):
        mesh, data = Mesh(devices.reshape(c["slices"], *c["mesh"]), ("slice", "data", "model")), ("slice", "data")
    elif c.get("stage"):
        mesh, data = Mesh(devices.reshape(c["stage"], *c["mesh"]), ("stage", "data", "model")), "data"
    else:
        mesh, data = Mesh(devices.reshape(c["mesh"]), ("data", "model")), "data"
    # Embedding and loss take stages for data.
    batch = ("stage", data) if c.get("stage") else data
    # Chips that share sequences shard weights, too; slices have all of them, as do the chips of a stage that are replicas.
    line, held = ("context", ("data", "context")) if c.get("context") else (None, "data" if c.get("slices") else data)
    held = None if c.get("replicas") else held
    d, ff, h, kv, hd, V, L = (c[k] for k in ("d", "ff", "h", "kv", "hd", "vocab", "layers"))
    S = c["seq"]
    shapes = {"embed": ((V, d), P("model", held)), "head": ((d, V), P(held, "model")), "norm": ((d,), P(None))}
    layer = {"ln1": ((d,), P(None)), "ln2": ((d,), P(None)), "q": ((d, h, hd), P(held, "model", None)),
             "k": ((d, kv, hd), P(held, "model", None)), "v": ((d, kv, hd), P(held, "model", None)),
             "o": ((h, hd, d), P("model", None, held)), "w0": ((d, ff), P(held, "model")), "w1": ((d, ff), P(held, "model")),
             "w2": ((ff, d), P("model", held))}
    E = c["experts"]
    if E:
        layer.update(gate=((d, E), P(data, None)), w0=((E, d, ff), P("expert", "data", "model")),
                     w1=((E, d, ff), P("expert", "data", "model")), w2=((E, ff, d), P("expert", "model", "data")))
    act = P(data, line, "model") if c["mesh"][1] > 1 and c.get("sp") else P(data, line, None)
    con = lambda x, s: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, s))
    def attend(q, k, v):
        if c["attention"] == "plain":
            B = q.shape[0]; g = h // kv
            q = q.reshape(B, S, kv, g, hd)
            s = jnp.einsum("bskgh,btkh->bkgst", q, k, preferred_element_type=jnp.float32) / np.sqrt(hd)
            s = jnp.where(jnp.tril(jnp.ones((S, S), bool)), s, -1e30)
            p = jax.nn.softmax(s, -1).astype(jnp.bfloat16)
            return jnp.einsum("bkgst,btkh->bskgh", p, v).reshape(B, S, h, hd)
        b = min(c["block"], S)
        sizes = sk.BlockSizes(block_q=b, block_kv=b, block_kv_compute=b, block_q_dkv=b, block_kv_dkv=b, block_kv_dkv_compute=b,
                              block_q_dq=None if c.get("fused") else b, block_kv_dq=None if c.get("fused") else b,
                              use_fused_bwd_kernel=bool(c.get("fused")))
        local = h // c["mesh"][1]
        mask = sm.MultiHeadMask([sm.CausalMask((S, S))] * local)
        kernel = sk.make_splash_mha(mask=mask, head_shards=1, q_seq_shards=c.get("context", 1), block_sizes=sizes)
        q, k, v = (jnp.transpose(t, (0, 2, 1, 3)) for t in (q, k, v))
        q = q / np.sqrt(hd).astype(np.float32)
        q = q.astype(jnp.bfloat16)
        spec, keys = P(data, "model", line, None), P(data, "model", None, None)
        if line:
            # Keys and values are whole (attention_op.py, `context_parallel_strategy: all_gather`), the mask is each chip's part.
            given = kernel.manual_sharding_spec(NamedSharding(mesh, P(None, line)))
            @functools.partial(jax.shard_map, mesh=mesh, in_specs=(given, spec, keys, keys), out_specs=spec, check_vma=False)
            def shared(kernel, q, k, v):
                g = q.shape[1] // k.shape[1]
                return jax.vmap(kernel)(q, jnp.repeat(k, g, 1), jnp.repeat(v, g, 1))
            return jnp.transpose(shared(kernel, q, k, v), (0, 2, 1, 3))
        @functools.partial(jax.shard_map, mesh=mesh, in_specs=(spec, spec, spec), out_specs=spec, check_vma=False)
        def run(q, k, v):
            if k.shape[1] != q.shape[1] and not c.get("grouped"):
                g = q.shape[1] // k.shape[1]
                k, v = jnp.repeat(k, g, 1), jnp.repeat(v, g, 1)
            return jax.vmap(kernel)(q, k, v)
        return jnp.transpose(run(q, k, v), (0, 2, 1, 3))
    bf = lambda w: w.astype(jnp.bfloat16)
    def masks(weights, chosen):
        """Which token goes to which place of which expert (moe.py, generate_masks)."""
        B, k = chosen.shape[0], c["top_k"]
        places = int(np.ceil(S * k / E) * c["capacity"])
        mask = jax.nn.one_hot(chosen, E, dtype=jnp.int32)
        fused = con(jnp.reshape(mask, (B, S * k, E)), P(data, None, None))
        counted = jnp.cumsum(fused, axis=1)
        count = con(jnp.reshape(counted, (B, S, k, E)), P(data, None, None, None))
        kept = jnp.sum(mask * jnp.less_equal(count, places), axis=2)
        weights = weights * kept
        position = jnp.sum(jnp.reshape(fused * counted, (B, S, k, E)), axis=2) * kept
        combine = (weights[..., None] * jax.nn.one_hot(position, places + 1, dtype=jnp.int32))[..., 1:]
        return combine.astype(bool), combine
    def sorted_mixture(y, w):
        """Experts with as many rows as they get (moe.py, sparse_matmul with megablox), on the tokens of each chip."""
        logits, k = jnp.einsum("bsd,de->bse", y, bf(w["gate"])), c["top_k"]
        tokens, weight = P(data, None, None), lambda rows, columns: P(None, rows, columns)
        @functools.partial(jax.shard_map, mesh=mesh, out_specs=tokens, check_vma=False,
                           in_specs=(tokens, tokens, weight(None, "model"), weight(None, "model"), weight("model", None)))
        def run(x, logits, w0, w1, w2):
            rows = x.shape[0] * x.shape[1]
            top, chosen = jax.lax.top_k(logits, k)
            top = jax.nn.softmax(top.astype(jnp.float32), -1).astype(jnp.bfloat16)
            flat = jnp.ravel(chosen)
            order, sizes = jnp.argsort(flat), jnp.bincount(flat, length=E).astype(jnp.int32)
            sent = sort(jnp.repeat(jnp.reshape(x, (rows, d)), k, axis=0), order)
            grouped = lambda a, b: gmm(a, b, sizes, jnp.bfloat16, (512, 1024, 1024))
            g, u = checkpoint_name(grouped(sent, w0), "mlpwi_0"), checkpoint_name(grouped(sent, w1), "mlpwi_1")
            m = checkpoint_name(grouped(jax.nn.silu(g) * u, w2), "mlpwo")
            back = jnp.reshape(sort(m, jnp.argsort(order)), (rows, k, d)).astype(jnp.float32)
            out = jnp.einsum("bke,bk->be", back, jnp.reshape(top, (rows, k)).astype(jnp.float32))
            return jnp.reshape(out, x.shape).astype(jnp.bfloat16)
        return run(y, logits, bf(w["w0"]), bf(w["w1"]), bf(w["w2"]))
    def mixture(y, w):
        """Experts with places (moe.py, dense_matmul with a capacity factor). By its rules tokens stay split over `expert`
        within experts, for which weights are gathered. With `moe_dispatch_no_expert_sharding` (`peel`) experts are, but for
        the result of their last matmul; `sent` has that as the others."""
        spread = ("expert", "data")
        at, rows = spread if c.get("peel") or c.get("sent") else (None, data)
        back = P(*(spread if c.get("sent") else (None, data)), None, None)
        logits = con(jnp.einsum("bsd,de->bse", y, bf(w["gate"])), P(data, None, None))
        top, chosen = jax.lax.top_k(logits, c["top_k"])
        top = jax.nn.softmax(top.astype(jnp.float32), -1).astype(jnp.bfloat16)
        index = (con(jnp.arange(top.shape[0])[:, None, None], P(data, None, None)), jnp.arange(S)[:, None], chosen)
        weights = jnp.zeros((top.shape[0], S, E), jnp.bfloat16).at[index].set(top)
        dispatch, combine = (con(m, P(data, None, None, None)) for m in masks(weights, chosen))
        sent = con(jnp.einsum("bsm,bsec->ebcm", y, dispatch), P(at, rows, None, None))
        whole = (lambda v, spec: con(v, spec)) if expert > 1 else (lambda v, spec: v)
        up = lambda name, named: checkpoint_name(con(jnp.einsum(
            "ebcm,emh->ebch", sent, whole(bf(w[name]), P("expert", None, "model"))), P(at, rows, None, "model")), named)
        z = jax.nn.silu(up("w0", "mlpwi_0")) * up("w1", "mlpwi_1")
        m = jnp.einsum("ebch,ehm->ebcm", z, whole(bf(w["w2"]), P("expert", "model", None)))
        m = checkpoint_name(con(m, back), "mlpwo")
        return con(jnp.einsum("ebcm,bsec->bsm", m, combine), act)
    def block(x, w):
        x = con(x, act)
        x = checkpoint_name(x, "decoder_layer_input")
        y = norm(x, w["ln1"])
        q = checkpoint_name(jnp.einsum("bsd,dhk->bshk", y, bf(w["q"])), "query_proj")
        k = checkpoint_name(jnp.einsum("bsd,dhk->bshk", y, bf(w["k"])), "key_proj")
        v = checkpoint_name(jnp.einsum("bsd,dhk->bshk", y, bf(w["v"])), "value_proj")
        q, k = rope(q), rope(k)
        a = attend(q, k, v)
        a = checkpoint_name(a, "context")
        o = checkpoint_name(jnp.einsum("bshk,hkd->bsd", a, bf(w["o"])), "out_proj")
        x = con(x + o, act)
        y = norm(x, w["ln2"])
        if E:
            return con(x + (mixture if c["capacity"] else sorted_mixture)(con(y, act), w), act), None
        g = checkpoint_name(jnp.einsum("bsd,df->bsf", y, bf(w["w0"])), "mlpwi_0")
        u = checkpoint_name(jnp.einsum("bsd,df->bsf", y, bf(w["w1"])), "mlpwi_1")
        z = con(jax.nn.silu(g) * u, P(data, line, "model"))
        m = checkpoint_name(jnp.einsum("bsf,fd->bsd", z, bf(w["w2"])), "mlpwo")
        return con(x + m, act), None
    r = c["remat"]
    if r == "full": policy = jax.checkpoint_policies.nothing_saveable
    elif r == "dots": policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    elif r.startswith("names:"): policy = jax.checkpoint_policies.save_only_these_names(*r[6:].split(","))
    elif r.startswith("offload:"):
        on, off = (r[8:].split("/") + [""])[:2]
        policy = jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[n for n in off.split(",") if n], names_which_can_be_offloaded=on.split(","),
            offload_src="device", offload_dst="pinned_host")
    body = block if r == "none" else jax.checkpoint(block, policy=policy, prevent_cse=not c["scan"])
    if c.get("stage"):
        in_turn = lambda x, layers: functools.reduce(lambda x, w: block(x, w)[0], layers, x)
        lead = ((c["repeats"],), (None,)) if c["repeats"] > 1 else ((), ())
        whole = lambda w, spec: con(w, P(*lead[1], "stage", *(None if axis == data else axis for axis in spec)))
        once = lambda layers: [{k: whole(w, layer[k][1]) for k, w in weights.items()} for weights in layers]
        piped = pipeline(c, mesh, in_turn, None if r == "full" else policy, once)
    def tiled_loss(x, scale, head, targets):
        """The loss in parts: the head gathered once, its gradient added up whole (MaxText's utils/vocabulary_tiling.py)."""
        n, B, flat = c["tiling"], x.shape[0], held if c.get("context") else data
        whole = (con(scale, P(None)), con(head, P(None, "model")))
        part = lambda w, h, t: jnp.sum(cross_entropy(
            con(jnp.einsum("td,dv->tv", norm(h, w[0]), bf(w[1])), P(flat, "model")).astype(jnp.float32), jax.nn.one_hot(t, V)))
        cut = lambda a: con(jnp.reshape(a, (n, B * S // n) + a.shape[2:]), P(None, flat, *([None] * (a.ndim - 2))))
        @jax.custom_vjp
        def parts(w, h, t):
            return forward(w, h, t)[0]
        def forward(w, h, t):
            h, t = cut(h), cut(t)
            total, _ = jax.lax.scan(lambda acc, at: (acc + part(w, con(at[0], P(flat, None)), con(at[1], P(flat))), None), 0.0, (h, t))
            return total, (w, h, t)
        def backward(saved, g):
            w, h, t = saved
            def one(acc, at):
                hc, tc = con(at[0], P(flat, None)), con(at[1], P(flat))
                _, back = jax.vjp(lambda w, h: part(w, h, tc), w, hc)
                dw, dh = back(1.0)
                return jax.tree.map(jnp.add, acc, dw), con(dh, P(flat, None))
            dw, dh = jax.lax.scan(one, jax.tree.map(jnp.zeros_like, w), (h, t))
            return jax.tree.map(lambda a: a * g, dw), con(jnp.reshape(dh * g, (B, S, d)), act).astype(jnp.bfloat16), None
        parts.defvjp(forward, backward)
        return parts(whole, x, targets) / (B * S)
    def loss(p, tokens, targets):
        if c.get("iota"):
            hot = (tokens[..., None] == jnp.arange(V, dtype=jnp.int32)).astype(jnp.bfloat16)
            x = con(jnp.einsum("bsv,vd->bsd", hot, bf(p["embed"])), act)
        else:
            x = con(bf(p["embed"])[tokens], P(batch, *act[1:]))
        if c.get("stage"):
            x = con(piped(x, p["layers"]), P(batch, None, None))
        elif c["scan"]:
            x, _ = jax.lax.scan(lambda x, w: body(x, w), x, p["layers"])
        else:
            for i in range(L):
                x, _ = body(x, p["layers"][i] if c.get("apart") else jax.tree.map(lambda t: t[i], p["layers"]))
        if c.get("tiling"):
            return tiled_loss(x, p["norm"], p["head"], targets)
        x = norm(x, p["norm"])
        logits = con(jnp.einsum("bsd,dv->bsv", x, bf(p["head"])), P(batch, line, "model"))
        logits = logits.astype(jnp.float32)
        if c.get("loss") == "maxtext":
            return jnp.mean(cross_entropy(logits, jax.nn.one_hot(targets, V)))
        lse = jax.nn.logsumexp(logits, -1)
        hit = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
        return jnp.mean(lse - hit)
    def step(p, m, v, t, tokens, targets):
        l, g = jax.value_and_grad(loss)(p, tokens, targets)
        t = t + 1
        def up(p, m, v, g):
            g = g.astype(jnp.float32)
            kept, m = m.dtype, 0.9 * m + 0.1 * g
            v = 0.95 * v + 0.05 * g * g
            u = (m / (1 - 0.9 ** t)) / (jnp.sqrt(v / (1 - 0.95 ** t)) + 1e-8) + 0.1 * p
            return p - 3e-4 * u, m.astype(kept), v
        if c.get("clip"):
            norm = jnp.sqrt(sum(jnp.sum(jnp.square(x.astype(jnp.float32))) for x in jax.tree.leaves(g)))
            scale = jnp.minimum(1.0, 1.0 / (norm + 1e-6))
            g = jax.tree.map(lambda x: x * scale, g)
        o = jax.tree.map(up, p, m, v, g)
        pick = lambda i: jax.tree.map(lambda x: x[i], o, is_leaf=lambda x: isinstance(x, tuple))
        return pick(0), pick(1), pick(2), t, l
    mk = lambda s, spec: jax.ShapeDtypeStruct(s, jnp.float32, sharding=NamedSharding(mesh, spec))
    params = {k: mk(*v) for k, v in shapes.items()}
    if c.get("stage"):
        params["layers"] = [{k: mk((*lead[0], c["stage"]) + s, P(*lead[1], "stage", *spec)) for k, (s, spec) in layer.items()}
                            for _ in range(c.get("per_stage", 1))]
    elif c.get("apart"):
        params["layers"] = [{k: mk(*v) for k, v in layer.items()} for _ in range(L)]
    else:
        params["layers"] = {k: mk((L,) + s, P(None, *spec)) for k, (s, spec) in layer.items()}
    moment = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16, sharding=x.sharding), params) if c.get("half") else params
    tok = jax.ShapeDtypeStruct((c["batch"], S), jnp.int32, sharding=NamedSharding(mesh, P(batch, line)))
    sc = jax.ShapeDtypeStruct((), jnp.float32, sharding=NamedSharding(mesh, P()))
    sh = jax.tree.map(lambda x: x.sharding, params)
    f = jax.jit(step, donate_argnums=(0, 1, 2, 3), out_shardings=(sh, sh, sh, sc.sharding, sc.sharding))
    return f.lower(params, moment, params, sc, tok, tok)

def main():
    folder = sys.argv[1]
    for name in sys.argv[2:] or CASES:
        c = {**BASE, **CASES[name]}
        open(f"{folder}/{name}.mlir", "w").write(build(c).as_text())
        json.dump(c, open(f"{folder}/{name}.json", "w"))
main()
