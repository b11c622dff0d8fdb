"""Training steps in plain JAX, as people write them, in several styles, for XLA's TPU compiler (ahead of time, no TPU).

    python xla_plain.py DIR NAME ...      writes DIR/NAME.mlir (StableHLO) and DIR/NAME.toml (Windtunnel's words; absent: no key)
    python xla_plain.py --list
"""
import json, os, sys
os.environ.update(TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1", TPU_WORKER_HOSTNAMES="localhost", TPU_WORKER_ID="0",
                  TPU_ACCELERATOR_TYPE="v6e-16", JAX_PLATFORMS="cpu")
import functools, math
import numpy as np
import jax, jax.numpy as jnp, optax
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as sk, splash_attention_mask as sm
from jax.experimental.pallas.ops.tpu.megablox.ops import gmm

bf16, f32 = jnp.bfloat16, jnp.float32

def make_mesh(topo, shape, names):
    devices = np.array(topologies.get_topology_desc(platform="tpu", topology_name=f"v6e:{topo}").devices)
    return Mesh(devices.reshape(shape), names)

def largest_dim(mesh, axis, shape, skip=0):
    """The FSDP rule of many small repositories: cut the largest dimension that divides."""
    n = mesh.shape[axis]
    for i in sorted(range(skip, len(shape)), key=lambda i: -shape[i]):
        if shape[i] % n == 0 and shape[i] >= n:
            return P(*[axis if j == i else None for j in range(len(shape))])
    return P()

def abstract(tree, shardings):
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings)

def splash_attention(mesh, q, k, v, batch_axes, head_axis=None, block=512):
    """[B, S, H, D] queries, keys and values, causal; grouped keys are repeated."""
    B, S, H, D = q.shape
    if k.shape[2] != H:
        k, v = (jnp.repeat(t, H // t.shape[2], axis=2) for t in (k, v))
    q, k, v = ((t.swapaxes(1, 2)) for t in (q / math.sqrt(D), k, v))
    local = H // (mesh.shape[head_axis] if head_axis else 1)
    b = min(block, S)
    sizes = sk.BlockSizes(block_q=b, block_kv=b, block_kv_compute=b, block_q_dkv=b, block_kv_dkv=b, block_kv_dkv_compute=b,
                          block_q_dq=b, block_kv_dq=b)
    kernel = sk.make_splash_mha(sm.MultiHeadMask([sm.CausalMask((S, S)) for _ in range(local)]), head_shards=1, q_seq_shards=1, block_sizes=sizes)
    spec = P(batch_axes, head_axis, None, None)
    f = jax.shard_map(lambda q, k, v: jax.vmap(kernel)(q, k, v), mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False)
    return f(q.astype(bf16), k.astype(bf16), v.astype(bf16)).swapaxes(1, 2)

# ---------------------------------------------------------------------------------------------------------------------------
# GPT-2 after nanoGPT: LayerNorm with bias, learned positions, GELU, biases, tied head.

def gpt_init(L, d, V, T, stacked=False):
    def layer():
        z = lambda *s: jnp.zeros(s, f32)
        return dict(ln_1=dict(g=z(d), b=z(d)), c_attn=dict(w=z(d, 3 * d), b=z(3 * d)), c_proj=dict(w=z(d, d), b=z(d)),
                    ln_2=dict(g=z(d), b=z(d)), c_fc=dict(w=z(d, 4 * d), b=z(4 * d)), m_proj=dict(w=z(4 * d, d), b=z(d)))
    h = jax.tree.map(lambda x: jnp.zeros((L,) + x.shape, x.dtype), layer()) if stacked else [layer() for _ in range(L)]
    return dict(wte=jnp.zeros((V, d)), wpe=jnp.zeros((T, d)), h=h, ln_f=dict(g=jnp.zeros(d), b=jnp.zeros(d)))

def layer_norm(x, p, eps=1e-5):
    x32 = x.astype(f32)
    mu = x32.mean(-1, keepdims=True)
    var = jnp.square(x32 - mu).mean(-1, keepdims=True)
    return ((x32 - mu) * jax.lax.rsqrt(var + eps) * p["g"] + p["b"]).astype(x.dtype)

def gpt_block(x, p, heads, attend=None):
    B, T, C = x.shape
    lin = lambda x, p: x @ p["w"].astype(x.dtype) + p["b"].astype(x.dtype)
    y = lin(layer_norm(x, p["ln_1"]), p["c_attn"])
    q, k, v = (t.reshape(B, T, heads, C // heads) for t in jnp.split(y, 3, axis=-1))
    if attend is None:
        att = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(C // heads)
        att = jnp.where(jnp.tril(jnp.ones((T, T), bool)), att, -1e9)
        att = jax.nn.softmax(att.astype(f32), axis=-1).astype(x.dtype)
        y = jnp.einsum("bhqk,bkhd->bqhd", att, v)
    else:
        y = attend(q, k, v)
    x = x + lin(y.reshape(B, T, C), p["c_proj"])
    return x + lin(jax.nn.gelu(lin(layer_norm(x, p["ln_2"]), p["c_fc"])), p["m_proj"])

def gpt_loss(params, tokens, targets, heads, block, scan):
    T = tokens.shape[1]
    x = (params["wte"][tokens] + params["wpe"][:T]).astype(bf16)
    if scan:
        x, _ = jax.lax.scan(lambda x, p: (block(x, p), None), x, params["h"])
    else:
        for p in params["h"]:
            x = block(x, p)
    x = layer_norm(x, params["ln_f"])
    logits = (x @ params["wte"].T.astype(bf16)).astype(f32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

def gpt_specs(params, kind, mesh, stacked):
    """Where parameters lie: `fsdp` (largest dimension), `replicated`, or `megatron` (columns, then rows, over "model")."""
    skip = lambda path: 1 if stacked and path[0].key == "h" else 0
    if kind == "replicated":
        return jax.tree.map(lambda x: P(), params)
    if kind == "fsdp":
        return jax.tree_util.tree_map_with_path(lambda path, x: largest_dim(mesh, "data", x.shape, skip(path)), params)
    def megatron(path, x):
        names = [getattr(k, "key", None) for k in path]
        lead = (None,) * skip(path)
        if "wte" in names: return P("model", None)
        if "c_attn" in names or "c_fc" in names: return P(*lead, None, "model") if "w" in names else P(*lead, "model")
        if ("c_proj" in names or "m_proj" in names) and "w" in names: return P(*lead, "model", None)
        return P()
    return jax.tree_util.tree_map_with_path(megatron, params)

def gpt2(topo, mesh_shape, L, d, heads, T, batch, V=50304, remat=False, scan=False, params="fsdp", attention="einsum", opt=None):
    mesh = make_mesh(topo, mesh_shape, ("data", "model")[:len(mesh_shape)])
    has_data = mesh_shape[0] > 1 or len(mesh_shape) == 1
    tx = opt or optax.adamw(3e-4, b1=0.9, b2=0.95, weight_decay=0.1)
    p = jax.eval_shape(lambda: gpt_init(L, d, V, T, scan))
    specs = gpt_specs(p, params, mesh, scan)
    ps = jax.tree.map(lambda s: NamedSharding(mesh, s), specs)
    rep = NamedSharding(mesh, P())
    os_ = optax.tree_utils.tree_map_params(tx, lambda _, s: s, jax.eval_shape(tx.init, p), ps, transform_non_params=lambda _: rep)
    attend = None
    if attention == "splash":
        attend = lambda q, k, v: splash_attention(mesh, q, k, v, "data", "model" if params == "megatron" else None)
    block = functools.partial(gpt_block, heads=heads, attend=attend)
    if remat:
        block = jax.checkpoint(block)
    def step(params, opt_state, x, y):
        loss, grads = jax.value_and_grad(gpt_loss)(params, x, y, heads, block, scan)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss
    tok = jax.ShapeDtypeStruct((batch, T), jnp.int32, sharding=NamedSharding(mesh, P("data" if has_data else None)))
    return jax.jit(step, donate_argnums=(0, 1), out_shardings=(ps, os_, rep)).lower(
        abstract(p, ps), abstract(jax.eval_shape(tx.init, p), os_), tok, tok)

# ---------------------------------------------------------------------------------------------------------------------------
# Llama as functions on a dictionary; stacked layers, scan, checkpoint, FSDP by the largest dimension.

def rms_norm(x, w, product=False):
    x32 = x.astype(f32)
    if product:
        return (x32 * jax.lax.rsqrt((x32 * x32).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * w.astype(x.dtype)
    return (x32 * jax.lax.rsqrt(jnp.square(x32).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * w.astype(x.dtype)

def rotary(x, theta=5e5):
    B, S, H, D = x.shape
    freq = theta ** (-jnp.arange(0, D, 2, dtype=f32) / D)
    angle = jnp.arange(S, dtype=f32)[:, None] * freq
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    x1, x2 = jnp.split(x.astype(f32), 2, axis=-1)
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1).astype(x.dtype)

def llama_init(L, d, ff, h, kv, hd, V, dtype=f32, gated=True, experts=0, tied=False):
    z = lambda *s: jnp.zeros((L,) + s, dtype)
    e = (experts,) if experts else ()
    layers = dict(ln1=z(d), wq=z(d, h * hd), wk=z(d, kv * hd), wv=z(d, kv * hd), wo=z(h * hd, d), ln2=z(d),
                  w_up=z(*e, d, ff), w_down=z(*e, ff, d))
    if gated: layers["w_gate"] = z(*e, d, ff)
    if experts: layers["router"] = z(d, experts)
    top = dict(embed=jnp.zeros((V, d), dtype), layers=layers, ln_f=jnp.zeros(d, dtype))
    if not tied: top["head"] = jnp.zeros((d, V), dtype)
    return top

@jax.custom_vjp
def permute(x, order):
    return x[order]
permute.defvjp(lambda x, order: (x[order], order), lambda order, g: (g[jnp.argsort(order)], None))

def sorted_experts(x, w, k, E, how, unsort="scatter"):
    """Tokens of one chip, sorted by expert, through grouped matmuls."""
    B, S, d = x.shape
    flat = x.reshape(B * S, d)
    top, chosen = jax.lax.top_k(flat @ w["router"].astype(x.dtype), k)
    gates = jax.nn.softmax(top.astype(f32), -1)
    order = jnp.argsort(chosen.reshape(-1))
    sizes = jnp.bincount(chosen.reshape(-1), length=E).astype(jnp.int32)
    rows = permute(jnp.repeat(flat, k, axis=0), order) if unsort == "permute" else flat[order // k]
    if how == "gmm":
        dot = lambda a, b: gmm(a, b, sizes, bf16, (512, 1024, 1024))
    else:
        dot = lambda a, b: jax.lax.ragged_dot(a, b, sizes)
    cast = lambda n: w[n].astype(x.dtype)
    y = dot(jax.nn.silu(dot(rows, cast("w_gate"))) * dot(rows, cast("w_up")), cast("w_down"))
    if unsort == "permute":      # gathers both ways, as MaxText's custom derivative has it
        y = permute(y, jnp.argsort(order))
    elif unsort == "gather":     # a gather forward, a scatter-add backward
        y = y[jnp.argsort(order)]
    else:
        y = jnp.zeros_like(y).at[order].set(y)
    y = y.reshape(B * S, k, d)
    return jnp.einsum("tkd,tk->td", y.astype(f32), gates).astype(x.dtype).reshape(B, S, d)

def llama(topo, mesh_shape, names=("fsdp",), L=8, d=2048, ff=5632, h=16, kv=8, hd=128, V=32000, S=2048, batch=16, remat="full",
          attention="splash", scan=True, constrain=False, gated=True, experts=0, top_k=2, how="gmm", optimizer=None, dtype=f32, cut="largest",
          accumulate=1, accumulate_how="scan", clip=False, tied=False, state_dtype=None, data_axes=None, prevent_cse=None, donate=True,
          loss="logp-take", square="square", unsort="scatter"):
    mesh = make_mesh(topo, mesh_shape, names)
    data = data_axes or names[0]
    tensor = "model" if "model" in names and mesh.shape["model"] > 1 else None
    lr = optax.warmup_cosine_decay_schedule(0, 3e-4, 100, 10000)
    tx = optimizer or optax.adamw(lr, b1=0.9, b2=0.95, weight_decay=0.1)
    if clip: tx = optax.chain(optax.clip_by_global_norm(1.0), tx)
    if accumulate_how == "multisteps" and accumulate > 1: tx = optax.MultiSteps(tx, accumulate)
    p = jax.eval_shape(lambda: llama_init(L, d, ff, h, kv, hd, V, dtype, gated, experts, tied))
    def megatron(path, x, shard):
        name, lead = path[-1].key, (None,) if path[0].key == "layers" else ()
        over = shard if not experts or name not in ("w_up", "w_gate", "w_down") else None
        if name in ("w_up", "w_gate", "w_down") and experts:
            return P(*lead, "expert", shard, tensor) if name != "w_down" else P(*lead, "expert", tensor, shard)
        if name in ("wq", "wk", "wv", "w_up", "w_gate"): return P(*lead, over, tensor)
        if name in ("wo", "w_down"): return P(*lead, tensor, over)
        if name == "embed": return P(tensor, over)
        if name == "head": return P(over, tensor)
        return P()
    def spec(path, x):
        if cut == "replicated": return P()
        if cut == "largest": return largest_dim(mesh, names[0], x.shape, 1 if path[0].key == "layers" else 0)
        return megatron(path, x, None if cut == "megatron" else cut.split(":")[1])
    ps = jax.tree_util.tree_map_with_path(lambda path, x: NamedSharding(mesh, spec(path, x)), p)
    rep = NamedSharding(mesh, P())
    init = jax.eval_shape(tx.init, p)
    if state_dtype == "rule":   # states that are no copies of parameters: cut by the same rule
        sh = jax.tree.map(lambda x: NamedSharding(mesh, largest_dim(mesh, names[0], x.shape, 1 if len(x.shape) > 1 and x.shape[0] == L else 0)), init)
    else:
        sh = optax.tree_utils.tree_map_params(tx, lambda _, s: s, init, ps, transform_non_params=lambda _: rep)
    con = (lambda x, *s: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*s)))) if constrain else (lambda x, *s: x)
    def attend(q, k, v):
        if attention == "splash":
            return splash_attention(mesh, q, k, v, data, tensor)
        if attention == "dpa":
            return jax.nn.dot_product_attention(q, k, v, is_causal=True)
        raise ValueError(attention)
    def block(x, w):
        c = lambda n: w[n].astype(bf16)
        B = x.shape[0]
        y = rms_norm(x, w["ln1"], square == "product")
        q, k, v = ((y @ c(n)).reshape(B, S, -1, hd) for n in ("wq", "wk", "wv"))
        q, k, v = (con(t, data, None, tensor, None) for t in (q, k, v))
        o = attend(rotary(q), rotary(k), v).reshape(B, S, h * hd)
        x = con(x + o @ c("wo"), data, None, None)
        y = rms_norm(x, w["ln2"], square == "product")
        if experts and how in ("gmm", "ragged"):
            own = {n: w[n].astype(bf16) for n in ("router", "w_gate", "w_up", "w_down")}
            f = jax.shard_map(lambda y, own: sorted_experts(y, own, top_k, experts, how, unsort), mesh=mesh, in_specs=(P(data), P()), out_specs=P(data), check_vma=False)
            return con(x + f(y, own), data, None, None)
        if experts:   # every token through every expert, weighted (small repositories): the expert axis is cut
            g = jax.nn.softmax((y @ c("router")).astype(f32), -1)
            top, at = jax.lax.top_k(g, top_k)
            g = (jax.nn.one_hot(at, experts) * top[..., None]).sum(-2).astype(bf16)
            z = jax.nn.silu(jnp.einsum("bsd,edf->ebsf", y, c("w_gate"))) * jnp.einsum("bsd,edf->ebsf", y, c("w_up"))
            return con(x + jnp.einsum("ebsf,efd,bse->bsd", z, c("w_down"), g), data, None, None)
        if gated:
            z = jax.nn.silu(y @ c("w_gate")) * (y @ c("w_up"))
        else:
            z = jax.nn.gelu(y @ c("w_up"))
        return con(x + con(z, data, None, tensor) @ c("w_down"), data, None, None)
    body = block
    if remat == "full": body = jax.checkpoint(block, policy=jax.checkpoint_policies.nothing_saveable, prevent_cse=not scan if prevent_cse is None else prevent_cse)
    if remat == "dots": body = jax.checkpoint(block, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable, prevent_cse=False)
    def loss_fn(p, tokens, targets):
        x = con(p["embed"].astype(bf16)[tokens], data, None, None)
        if scan:
            x, _ = jax.lax.scan(lambda x, w: (body(x, w), None), x, p["layers"])
        else:
            for i in range(L):
                x = body(x, jax.tree.map(lambda t: t[i], p["layers"]))
        x = rms_norm(x, p["ln_f"], square == "product")
        head = p["embed"].T if tied else p["head"]
        if loss == "f32-logits":   # the matmul hands out fp32
            logits = con(jnp.einsum("bsd,dv->bsv", x, head.astype(bf16), preferred_element_type=f32), data, None, tensor)
        else:
            logits = con(x @ head.astype(bf16), data, None, tensor).astype(f32)
        if loss == "lse-take":
            return (jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]).mean()
        if loss == "optax-int":
            return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()
        if loss == "optax-onehot":
            return optax.softmax_cross_entropy(logits, jax.nn.one_hot(targets, V)).mean()
        logp = jax.nn.log_softmax(logits, axis=-1)
        return -jnp.take_along_axis(logp, targets[..., None], axis=-1).mean()
    def step(p, state, tokens, targets):
        if accumulate > 1 and accumulate_how != "multisteps":
            cutup = lambda t: t.reshape(batch // accumulate, accumulate, S).swapaxes(0, 1)
            def micro(carry, at):
                l, g = jax.value_and_grad(loss_fn)(p, *at)
                total, acc = carry
                return (total + l, jax.tree.map(lambda a, b: a + b.astype(f32), acc, g)), None
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, f32), p)
            if accumulate_how == "maxtext":   # its utils/gradient_accumulation.py: zeros and sums are constrained to the parameters' shardings
                zeros = jax.tree.map(jax.lax.with_sharding_constraint, zeros, ps)
                tokens, targets = (jax.lax.with_sharding_constraint(cutup(t), NamedSharding(mesh, P(None, data))) for t in (tokens, targets))
            else:
                tokens, targets = cutup(tokens), cutup(targets)
            if accumulate_how == "loop":
                carry = (0.0, zeros)
                for i in range(accumulate): carry, _ = micro(carry, (tokens[i], targets[i]))
                l, g = carry
            else:
                (l, g), _ = jax.lax.scan(micro, (jnp.zeros(()), zeros), (tokens, targets))
            l, g = l / accumulate, jax.tree.map(lambda x: x / accumulate, g)
        else:
            l, g = jax.value_and_grad(loss_fn)(p, tokens, targets)
        updates, state = tx.update(g, state, p)
        return optax.apply_updates(p, updates), state, l
    tok = jax.ShapeDtypeStruct((batch, S), jnp.int32, sharding=NamedSharding(mesh, P(data)))
    return jax.jit(step, donate_argnums=(0, 1) if donate else (), out_shardings=(ps, sh, rep)).lower(abstract(p, ps), abstract(init, sh), tok, tok)

# ---------------------------------------------------------------------------------------------------------------------------
# flax.linen modules.

def linen(topo, mesh_shape, L, d, ff, heads, V, S, batch, remat=False, scan=False, kind="llama", clip=True):
    import flax.linen as nn
    mesh = make_mesh(topo, mesh_shape, ("data",))
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _=None):
            dense = lambda n, name: nn.Dense(n, use_bias=kind != "llama", dtype=bf16, param_dtype=f32, name=name)
            norm = (lambda name: nn.RMSNorm(dtype=bf16, name=name)) if kind == "llama" else (lambda name: nn.LayerNorm(dtype=bf16, name=name))
            B = x.shape[0]
            y = norm("ln1")(x)
            q, k, v = (dense(d, n)(y).reshape(B, S, heads, d // heads) for n in ("q", "k", "v"))
            if kind == "llama": q, k = rotary(q), rotary(k)
            a = splash_attention(mesh, q, k, v, "data").reshape(B, S, d)
            x = x + dense(d, "o")(a)
            y = norm("ln2")(x)
            if kind == "llama":
                z = nn.silu(dense(ff, "gate")(y)) * dense(ff, "up")(y)
            else:
                z = nn.gelu(dense(ff, "up")(y))
            return x + dense(d, "down")(z), None
    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            embed = nn.Embed(V, d, dtype=bf16, param_dtype=f32, name="embed")
            x = embed(tokens)
            if kind != "llama":
                x = x + self.param("wpe", nn.initializers.normal(0.02), (S, d), f32)[None].astype(bf16)
            one = nn.remat(Block, prevent_cse=not scan) if remat else Block
            if scan:
                x, _ = nn.scan(one, variable_axes={"params": 0}, split_rngs={"params": True}, length=L)(name="blocks")(x, None)
            else:
                for i in range(L): x, _ = one(name=f"h{i}")(x)
            x = (nn.RMSNorm if kind == "llama" else nn.LayerNorm)(dtype=bf16, name="ln_f")(x)
            return nn.Dense(V, use_bias=False, dtype=bf16, param_dtype=f32, name="head")(x) if kind == "llama" else embed.attend(x)
    model = Model()
    tx = optax.adamw(3e-4, b2=0.95, weight_decay=0.1)
    if clip: tx = optax.chain(optax.clip_by_global_norm(1.0), tx)
    tok = jax.ShapeDtypeStruct((batch, S), jnp.int32, sharding=NamedSharding(mesh, P("data")))
    p = jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct((mesh.size, S), jnp.int32))
    inner = lambda path: 1 if scan and any(getattr(k, "key", None) == "blocks" for k in path) else 0
    ps = jax.tree_util.tree_map_with_path(lambda path, x: NamedSharding(mesh, largest_dim(mesh, "data", x.shape, inner(path))), p)
    rep = NamedSharding(mesh, P())
    init = jax.eval_shape(tx.init, p)
    sh = optax.tree_utils.tree_map_params(tx, lambda _, s: s, init, ps, transform_non_params=lambda _: rep)
    def step(p, state, x, y):
        def loss(p):
            return optax.softmax_cross_entropy_with_integer_labels(model.apply(p, x).astype(f32), y).mean()
        l, g = jax.value_and_grad(loss)(p)
        updates, state = tx.update(g, state, p)
        return optax.apply_updates(p, updates), state, l
    return jax.jit(step, donate_argnums=(0, 1), out_shardings=(ps, sh, rep)).lower(abstract(p, ps), abstract(init, sh), tok, tok)

# ---------------------------------------------------------------------------------------------------------------------------
# Windtunnel's words.

def toml(topo, model, mesh, S, micro, **xla):
    keys = dict(remat_policy="full", attention="flash", gradient_clipping=False, use_iota_embed=False, targets="indexed", scan_layers=True,
                activation_embed=False, flags=[])
    keys.update(xla)
    line = lambda k, v: f"{k} = {json.dumps(v)}\n"
    return (f'runtime = "xla"\n[topology]\nname = "tpu-v6e"\nslice = "{topo}"\n[model]\n{model}[mesh]\n' + "".join(line(*i) for i in mesh.items()) +
            f"[batch]\nsequence = {S}\nmicro = {micro}\n[xla]\n" + "".join(line(*i) for i in keys.items()))

def llama_model(L=8, d=2048, ff=5632, h=16, kv=8, V=32000, tied=False, experts=0, top_k=2, **_):
    if experts:
        return (f'config = {{ model_type = "mixtral", hidden_act = "silu", hidden_size = {d}, intermediate_size = {ff}, num_attention_heads = {h}, '
                f'num_key_value_heads = {kv}, num_hidden_layers = {L}, num_local_experts = {experts}, num_experts_per_tok = {top_k}, '
                f'vocab_size = {V}, max_position_embeddings = 32768, tie_word_embeddings = false }}\n')
    return (f'name = "llama-3.1-8b"\nlayers = {L}\nhidden = {d}\nheads = {h}\nkv_heads = {kv}\nffn = {ff}\nvocab = {V}\n' +
            ("tied_head = true\n" if tied else ""))

def gpt_model(L, d, heads, T, V=50304, **_):
    return (f'config = {{ model_type = "gpt2", n_embd = {d}, n_head = {heads}, n_layer = {L}, n_positions = {T}, vocab_size = {V}, '
            f'n_inner = {4 * d}, activation_function = "gelu_new" }}\n')

CASES = {}

def case(name, what, build, scenario, cannot_say=None):
    CASES[name] = dict(what=what, build=build, scenario=scenario, cannot_say=cannot_say)

def chips(topo): return math.prod(map(int, topo.split("x")))

def llama_case(name, what, topo, cannot_say=None, words={}, mesh=None, **c):
    n = chips(topo)
    shape = c.pop("mesh_shape", (n,))
    o = {**dict(S=2048, batch=16, remat="full", attention="splash", scan=True, clip=False), **c}
    ways = {"full": "full", "none": "none", "dots": "minimal"}
    scenario = None if cannot_say else toml(topo, llama_model(**c), mesh or dict(data=1, fsdp=n, tensor=1), o["S"],
        o["batch"] // (math.prod((mesh or dict(fsdp=n)).get(k, 1) for k in ("data", "fsdp", "expert"))), **{**dict(remat_policy=ways[o["remat"]],
        attention="flash" if o["attention"] == "splash" else "dot_product", gradient_clipping=o["clip"], scan_layers=o["scan"]), **words})
    case(name, what, lambda: llama(topo, shape, **c), scenario, cannot_say)

def gpt_case(name, what, topo, mesh_shape, cannot_say=None, mesh=None, **c):
    n = chips(topo)
    rep = c.get("params") == "replicated"
    mesh = mesh or dict(data=n if rep else 1, fsdp=1 if rep else n, tensor=1)
    scenario = None if cannot_say else toml(topo, gpt_model(**c), mesh, c["T"], c["batch"] // (mesh["data"] * mesh["fsdp"]),
        remat_policy="full" if c.get("remat") else "none", attention="flash" if c.get("attention") == "splash" else "dot_product",
        scan_layers=c.get("scan", False))
    case(name, what, lambda: gpt2(topo, mesh_shape, **c), scenario, cannot_say)

# 5. Blocks without remat, scanned.
llama_case("none-swiglu-l12", "12 scanned SwiGLU blocks without remat, 4 chips, FSDP by largest dimension, splash", "2x2", L=12, d=2048, ff=5632, batch=8, remat="none")
llama_case("none-swiglu-l28", "28 scanned SwiGLU blocks without remat, 8 chips", "2x4", L=28, d=1536, ff=4096, h=12, kv=4, batch=16, remat="none")
llama_case("none-swiglu-l12-con", "none-swiglu-l12 with activations constrained", "2x2", L=12, d=2048, ff=5632, batch=8, remat="none", constrain=True)
gpt_case("none-gelu-l12", "GPT-2, 12 scanned GELU blocks without remat, splash, FSDP on 4 chips", "2x2", (4,), L=12, d=1536, heads=12, T=2048, batch=16, scan=True, attention="splash")
gpt_case("none-gelu-l28", "GPT-2, 28 scanned GELU blocks without remat, splash, FSDP on 8 chips", "2x4", (8,), L=28, d=1280, heads=10, T=1024, batch=32, scan=True, attention="splash")
gpt_case("none-gelu-l12-rep", "GPT-2, 12 scanned GELU blocks without remat, splash, parameters replicated on 4 chips", "2x2", (4,), L=12, d=1024, heads=8, T=1024, batch=32, scan=True, attention="splash", params="replicated")
# 6. Sorted experts, long sequences, one sequence a chip.
MIX = dict(L=2, d=2048, ff=3584, h=16, kv=4, experts=8, V=32000)
for S in (4096, 8192, 16384, 32768):
    llama_case(f"sorted-gmm-s{S}", f"2 blocks of 8 sorted experts (gmm under shard_map), one sequence of {S} a chip, 4 chips, full remat, constrained", "2x2", S=S, batch=4, constrain=True, **MIX)
llama_case("sorted-gmm-s4096-plain", "sorted-gmm-s4096 without constraints", "2x2", S=4096, batch=4, **MIX)
llama_case("sorted-ragged-s4096", "sorted-gmm-s4096 with ragged_dot", "2x2", S=4096, batch=4, constrain=True, how="ragged", **MIX)
llama_case("sorted-ragged-s16384", "sorted-gmm-s16384 with ragged_dot", "2x2", S=16384, batch=4, constrain=True, how="ragged", **MIX)
# 7. Gradient accumulation.
NO_ACC = "batch.accumulation: gradient accumulation has no key on XLA"
ACC = dict(L=8, d=2048, ff=5632, V=32000, S=2048, constrain=True)
llama_case("accum-scan4", "4 micro-batches in a scan, gradients added in fp32, 4 chips, full remat", "2x2", cannot_say=NO_ACC, batch=32, accumulate=4, **ACC)
llama_case("accum-none", "accum-scan4's micro-batch alone, without accumulation", "2x2", batch=8, **ACC)
llama_case("accum-maxtext4", "accum-scan4 with zeros constrained to the parameters' shardings (MaxText's gradient_accumulation.py)", "2x2", cannot_say=NO_ACC, batch=32, accumulate=4, accumulate_how="maxtext", **ACC)
llama_case("accum-maxtext4-noremat", "accum-maxtext4, blocks without remat", "2x2", cannot_say=NO_ACC, batch=16, accumulate=4, accumulate_how="maxtext", remat="none", **ACC)
llama_case("accum-multisteps4", "optax.MultiSteps of 4 around AdamW: one micro-batch a call", "2x2", cannot_say="optax.MultiSteps", batch=8, accumulate=4, accumulate_how="multisteps", **ACC)
llama_case("accum-multisteps2-l16", "optax.MultiSteps of 2, 16 blocks, clipped", "2x2", cannot_say="optax.MultiSteps", batch=8, accumulate=2, accumulate_how="multisteps", clip=True, **{**ACC, "L": 16})
llama_case("accum-loop2", "2 micro-batches in a Python loop", "2x2", cannot_say=NO_ACC, batch=16, accumulate=2, accumulate_how="loop", **ACC)
# 9. Shapes of Llama 8B near the limit, no flags; small steps.
BIG = dict(d=4096, ff=14336, h=32, kv=8, V=128256)
for L, S, b, con in ((8, 4096, 7, True), (16, 4096, 5, True), (32, 4096, 3, True), (32, 8192, 1, False), (32, 2048, 6, False)):
    llama_case(f"near8b-l{L}-s{S}-b{b}" + ("" if con else "-plain"), f"{L} blocks of Llama 8B, {b} sequences of {S} a chip, 8 chips, full remat, no flags, " + ("constrained" if con else "no constraints"),
               "2x4", L=L, S=S, batch=8 * b, constrain=con, **BIG)
llama_case("small-rep", "4 small blocks, replicated on 4 chips", "2x2", mesh=dict(data=4, fsdp=1, tensor=1), cut="replicated", L=4, d=1024, ff=2816, h=8, kv=8, batch=16, S=2048)
llama_case("small-rep-8", "8 small blocks, replicated on 8 chips", "2x4", mesh=dict(data=8, fsdp=1, tensor=1), cut="replicated", L=8, d=768, ff=2048, h=6, kv=6, batch=32, S=1024)
llama_case("small-long", "2 small blocks, one sequence of 16,384 a chip, 4 chips", "2x2", L=2, d=1024, ff=2816, h=8, kv=8, batch=4, S=16384, constrain=True)
llama_case("small-long-rep", "4 small blocks, replicated, one sequence of 8,192 a chip", "2x2", mesh=dict(data=4, fsdp=1, tensor=1), cut="replicated", L=4, d=1024, ff=2816, h=8, kv=8, batch=4, S=8192)
# 1. nanoGPT.
gpt_case("nanogpt-loop", "GPT-2 124M as nanoGPT writes it: Python loop, einsum attention, no remat, FSDP on 4 chips", "2x2", (4,), L=12, d=768, heads=12, T=1024, batch=32)
gpt_case("nanogpt-loop-remat", "nanogpt-loop with jax.checkpoint on each block", "2x2", (4,), L=12, d=768, heads=12, T=1024, batch=64, remat=True)
gpt_case("nanogpt-loop-rep", "nanogpt-loop with parameters replicated", "2x2", (4,), L=12, d=768, heads=12, T=1024, batch=32, params="replicated")
gpt_case("nanogpt-scan-remat-rep", "GPT-2, blocks in a scan with checkpoint, replicated, einsum attention", "2x2", (4,), L=12, d=768, heads=12, T=1024, batch=64, remat=True, scan=True, params="replicated")
# 2. Llama, FSDP without and with constraints.
llama_case("llama-fsdp-plain", "Llama style, scan, checkpoint, FSDP by largest dimension on 8 chips, no constraints", "2x4", L=12, d=2048, ff=5632, batch=64, S=2048)
llama_case("llama-fsdp-con", "llama-fsdp-plain with activations constrained", "2x4", L=12, d=2048, ff=5632, batch=64, S=2048, constrain=True)
llama_case("llama-fsdp-plain-4x4", "Llama style on 16 chips, no constraints", "4x4", L=16, d=3072, ff=8192, h=24, kv=8, V=50304, batch=64, S=2048)
llama_case("llama-fsdp-con-4x4", "llama-fsdp-plain-4x4 with constraints", "4x4", L=16, d=3072, ff=8192, h=24, kv=8, V=50304, batch=64, S=2048, constrain=True)
llama_case("llama-dpa-plain", "Llama style with jax.nn.dot_product_attention, full remat, 8 chips", "2x4", L=8, d=2048, ff=5632, batch=16, S=2048, attention="dpa", constrain=True)
llama_case("llama-dots-con", "Llama style, dots_with_no_batch_dims_saveable, constrained", "2x4", L=12, d=2048, ff=5632, batch=32, S=2048, remat="dots", constrain=True)
# 3. flax.linen.
def linen_case(name, what, topo, cannot_say=None, **c):
    n = chips(topo)
    model = llama_model(c["L"], c["d"], c["ff"], c["heads"], c["heads"], c["V"]) if c.get("kind", "llama") == "llama" else gpt_model(c["L"], c["d"], c["heads"], c["S"], c["V"])
    scenario = None if cannot_say else toml(topo, model, dict(data=1, fsdp=n, tensor=1), c["S"], c["batch"] // n, gradient_clipping=True,
                remat_policy="full" if c.get("remat") else "none", scan_layers=c.get("scan", False))
    case(name, what, lambda: linen(topo, (n,), **c), scenario, cannot_say)
linen_case("linen-llama-scan", "flax.linen Llama under nn.scan and nn.remat, AdamW, clipped by global norm", "2x4", L=16, d=2048, ff=5632, heads=16, V=32000, S=2048, batch=64, remat=True, scan=True)
linen_case("linen-llama-loop", "flax.linen Llama, Python loop with nn.remat", "2x2", L=8, d=2048, ff=5632, heads=16, V=32000, S=2048, batch=16, remat=True)
linen_case("linen-gpt-loop", "flax.linen GPT (LayerNorm, biases, GELU, tied), Python loop, no remat", "2x2", L=8, d=1024, ff=4096, heads=8, V=50304, S=1024, batch=32, kind="gpt")
# 4. Tensor parallelism.
gpt_case("gpt-tp4", "GPT-2 cut as Megatron does by in_shardings alone, 4 chips over model, scan with checkpoint", "2x2", (1, 4), mesh=dict(data=1, fsdp=1, tensor=4), L=12, d=2048, heads=16, T=2048, batch=4, scan=True, remat=True, params="megatron", attention="splash")
gpt_case("gpt-dp4-tp4", "GPT-2 2-D: 4 data × 4 model, weights replicated over data", "4x4", (4, 4), mesh=dict(data=4, fsdp=1, tensor=4), L=12, d=2048, heads=16, T=2048, batch=16, scan=True, remat=True, params="megatron", attention="splash")
llama_case("llama-fsdp2-tp4", "Llama 2-D: 2 fsdp × 4 model, constrained", "2x4", mesh=dict(data=1, fsdp=2, tensor=4), mesh_shape=(2, 4), names=("fsdp", "model"), cut="2d:fsdp", L=12, d=2048, ff=5632, batch=16, S=2048, constrain=True)
llama_case("llama-fsdp4-tp4-plain", "Llama 2-D: 4 fsdp × 4 model, no constraints", "4x4", mesh=dict(data=1, fsdp=4, tensor=4), mesh_shape=(4, 4), names=("fsdp", "model"), cut="2d:fsdp", L=12, d=4096, ff=11008, h=32, kv=8, batch=32, S=2048)
llama_case("llama-dp2-tp4", "Llama: 2 replicas × 4 model, constrained", "2x4", mesh=dict(data=2, fsdp=1, tensor=4), mesh_shape=(2, 4), names=("data", "model"), cut="megatron", L=12, d=2048, ff=5632, batch=16, S=2048, constrain=True)
# 8. Types, Adafactor, expert axis.
llama_case("bf16-weights", "weights in bf16, optax.adamw (moments in bf16, as it takes the parameters' type)", "2x4", cannot_say="precision: weights of XLA steps are fp32", dtype=bf16, L=12, batch=32, constrain=True)
llama_case("bf16-mu", "fp32 weights, optax.adamw(mu_dtype=bf16)", "2x4", words=dict(mu_dtype="bfloat16"), optimizer=optax.adamw(3e-4, b2=0.95, weight_decay=0.1, mu_dtype=bf16), L=12, batch=32, constrain=True)
llama_case("adafactor", "fp32 weights, optax.adafactor", "2x4", cannot_say="optimizer: Adafactor has no key", optimizer=optax.adafactor(1e-3), state_dtype="rule", L=12, batch=32, constrain=True)
llama_case("dense-experts-3d", "data × expert × model, attention replicated over expert, each token through every expert", "4x4", cannot_say="experts without routing of tokens (every token through every expert)",
           mesh_shape=(2, 4, 2), names=("data", "expert", "model"), cut="megatron", how="dense", L=4, d=2048, ff=2816, h=16, kv=8, experts=8, batch=8, S=1024, constrain=True)

# More of 5: which way of writing a norm keeps what; no repeated keys.
N5 = dict(L=12, d=2048, ff=5632, kv=16, batch=8, remat="none", constrain=True)
llama_case("none-swiglu-l12-kv16", "none-swiglu-l12-con with as many key heads as query heads (nothing repeated)", "2x2", **N5)
llama_case("none-swiglu-l12-kv16-product", "none-swiglu-l12-kv16, the norm's square written x * x instead of jnp.square(x)", "2x2", square="product", **N5)
llama_case("none-swiglu-l12-kv16-product-lse", "the same, loss = logsumexp - take_along_axis(logits)", "2x2", square="product", loss="lse-take", **N5)
llama_case("none-gelu-nogate-l12", "12 scanned blocks: RMSNorm, rotary, plain GELU MLP without gate, no remat", "2x2", cannot_say="model: a plain GELU MLP beside RMSNorm and rotary", gated=False, **{**N5, "ff": 8192})
llama_case("none-loop-l8", "8 SwiGLU blocks in a Python loop without remat, stacked parameters", "2x2", **{**N5, "L": 8, "scan": False})
linen_case("linen-llama-none-scan", "flax.linen Llama under nn.scan without remat", "2x2", L=12, d=2048, ff=5632, heads=16, V=32000, S=2048, batch=8, scan=True)
linen_case("linen-gpt-none-scan", "flax.linen GPT (nn.LayerNorm, nn.gelu) under nn.scan without remat", "2x2", L=12, d=1536, ff=6144, heads=12, V=50304, S=1024, batch=16, kind="gpt", scan=True)
# Ways of writing the loss.
for way in ("logp-take", "lse-take", "optax-int", "optax-onehot", "f32-logits"):
    llama_case(f"loss-{way}", f"2 blocks, 32,000 words, 16,384 tokens a chip; loss: {way}", "2x2", words=dict(targets="one_hot") if way == "optax-onehot" else {}, loss=way, L=2, d=1024, ff=2816, h=8, kv=8, batch=32, constrain=True)
    llama_case(f"loss8b-{way}", f"8 blocks of Llama 8B, 128,256 words, 4 sequences of 4,096 a chip; loss: {way}", "2x4", words=dict(targets="one_hot") if way == "optax-onehot" else {}, loss=way, L=8, S=4096, batch=32, constrain=True, **BIG)
llama_case("small-long-lse", "small-long with loss = logsumexp - take", "2x2", L=2, d=1024, ff=2816, h=8, kv=8, batch=4, S=16384, constrain=True, loss="lse-take")
llama_case("small-rep-lse", "small-rep with loss = logsumexp - take", "2x2", mesh=dict(data=4, fsdp=1, tensor=1), cut="replicated", L=4, d=1024, ff=2816, h=8, kv=8, batch=16, S=2048, loss="lse-take")
llama_case("small-rep-deep", "24 small blocks replicated: parameters and gradients outweigh the loss", "2x2", mesh=dict(data=4, fsdp=1, tensor=1), cut="replicated", L=24, d=1024, ff=2816, h=8, kv=8, batch=8, S=1024, loss="lse-take")
llama_case("small-rep-deep-4x4", "24 small blocks replicated on 16 chips", "4x4", mesh=dict(data=16, fsdp=1, tensor=1), cut="replicated", L=24, d=1024, ff=2816, h=8, kv=8, batch=32, S=1024, loss="lse-take")
# More of 6.
for S in (4096, 16384):
    for way in ("gather", "permute"):
        llama_case(f"sorted-gmm-s{S}-{way}", f"sorted-gmm-s{S}, results put back by {way}", "2x2", S=S, batch=4, constrain=True, unsort=way, loss="lse-take", **MIX)
llama_case("sorted-gmm-s16384-lse", "sorted-gmm-s16384 with loss = logsumexp - take", "2x2", S=16384, batch=4, constrain=True, loss="lse-take", **MIX)
llama_case("sorted-gmm-s32768-permute", "sorted-gmm-s32768, permute both ways, lse", "2x2", S=32768, batch=4, constrain=True, unsort="permute", loss="lse-take", **MIX)
# More of 9.
for L, S, b in ((8, 4096, 8), (8, 4096, 9), (16, 4096, 6), (16, 4096, 7), (32, 4096, 4), (32, 4096, 5)):
    llama_case(f"near8b-l{L}-s{S}-b{b}", f"{L} blocks of Llama 8B, {b} sequences of {S} a chip, 8 chips, full remat, no flags, constrained", "2x4", L=L, S=S, batch=8 * b, constrain=True, **BIG)
for L, S, b in ((16, 4096, 6), (32, 4096, 4), (32, 2048, 8)):
    llama_case(f"near8b-l{L}-s{S}-b{b}-lse", f"{L} blocks of Llama 8B, {b} sequences of {S} a chip, loss = logsumexp - take, constrained", "2x4", L=L, S=S, batch=8 * b, constrain=True, loss="lse-take", **BIG)
llama_case("near8b-l32-s2048-b8-plain", "32 blocks of Llama 8B, 8 sequences of 2048 a chip, no constraints", "2x4", L=32, S=2048, batch=64, **BIG)
# The same step with weights cut as MaxText cuts them (the model's width), not the largest dimension.
llama_case("llama-width-con-4x4", "llama-fsdp-con-4x4 with weights cut on the width", "4x4", mesh=dict(data=1, fsdp=16, tensor=1), mesh_shape=(16, 1), names=("fsdp", "model"), cut="2d:fsdp", L=16, d=3072, ff=8192, h=24, kv=8, V=50304, batch=64, S=2048, constrain=True, loss="lse-take")
llama_case("llama-width-plain-4x4", "llama-fsdp-plain-4x4 with weights cut on the width, no constraints", "4x4", mesh=dict(data=1, fsdp=16, tensor=1), mesh_shape=(16, 1), names=("fsdp", "model"), cut="2d:fsdp", L=16, d=3072, ff=8192, h=24, kv=8, V=50304, batch=64, S=2048, loss="lse-take")
llama_case("llama-fsdp-con-4x4-lse", "llama-fsdp-con-4x4 with loss = logsumexp - take", "4x4", L=16, d=3072, ff=8192, h=24, kv=8, V=50304, batch=64, S=2048, constrain=True, loss="lse-take")
# More of 7.
llama_case("accum-none-lse", "accum-none with loss = logsumexp - take", "2x2", batch=8, loss="lse-take", **ACC)
llama_case("accum-scan4-lse", "accum-scan4 with loss = logsumexp - take", "2x2", cannot_say=NO_ACC, batch=32, accumulate=4, loss="lse-take", **ACC)
llama_case("accum-maxtext8-lse-l24", "8 micro-batches in MaxText's scan, 24 blocks", "2x2", cannot_say=NO_ACC, batch=64, accumulate=8, accumulate_how="maxtext", loss="lse-take", **{**ACC, "L": 24})
llama_case("accum-none-lse-l24", "its micro-batch alone", "2x2", batch=8, loss="lse-take", **{**ACC, "L": 24})
llama_case("accum-multisteps4-lse-l24", "optax.MultiSteps of 4, 24 blocks", "2x2", cannot_say="optax.MultiSteps", batch=8, accumulate=4, accumulate_how="multisteps", loss="lse-take", **{**ACC, "L": 24})
# More of 8.
F32M = optax.chain(optax.scale_by_adam(b2=0.95, mu_dtype=f32), optax.scale(-3e-4))
llama_case("bf16-weights-mu32", "weights in bf16, first moment fp32 (mu_dtype)", "2x4", cannot_say="precision: weights of XLA steps are fp32", dtype=bf16, optimizer=F32M, L=24, batch=16, constrain=True, loss="lse-take")
llama_case("adafactor-l24", "fp32 weights, optax.adafactor, 24 blocks", "2x4", cannot_say="optimizer: Adafactor has no key", optimizer=optax.adafactor(1e-3), state_dtype="rule", L=24, batch=16, constrain=True, loss="lse-take")
llama_case("adamw-l24", "the same with optax.adamw", "2x4", L=24, batch=16, constrain=True, loss="lse-take")
llama_case("no-donate-l24", "adamw-l24 without donation", "2x4", cannot_say="donation", L=24, batch=16, constrain=True, loss="lse-take", donate=False)

# Sorted experts where blocks outweigh the loss: few words, wide experts.
MIX8 = dict(L=4, d=2048, ff=7168, h=16, kv=4, experts=8, V=8192)
for S in (4096, 8192, 16384, 32768):
    llama_case(f"sorted-v8k-s{S}-permute", f"4 blocks of 8 wide sorted experts, 8,192 words, one sequence of {S} a chip on 8 chips, gathers both ways", "2x4", S=S, batch=8, constrain=True, unsort="permute", loss="lse-take", **MIX8)
for S in (4096, 16384):
    llama_case(f"sorted-v8k-s{S}-scatter", f"the same, sequences of {S}, results scattered back", "2x4", S=S, batch=8, constrain=True, loss="lse-take", **MIX8)
llama_case("sorted-v8k-s16384-2x2", "the same on 4 chips", "2x2", S=16384, batch=4, constrain=True, unsort="permute", loss="lse-take", **MIX8)

# Near the limit with a loss whose peak is predicted.
for L, S, b in ((8, 4096, 8), (16, 4096, 7), (32, 4096, 5)):
    llama_case(f"near8b-l{L}-s{S}-b{b}-lse", f"{L} blocks of Llama 8B, {b} sequences of {S} a chip, loss = logsumexp - take, constrained", "2x4", L=L, S=S, batch=8 * b, constrain=True, loss="lse-take", **BIG)
# Dense blocks that outweigh the loss (few words): by cut and constraint.
for cut, con in (("largest", True), ("largest", False), ("width", True), ("width", False)):
    llama_case(f"blocks-{cut}-{'con' if con else 'plain'}", f"12 dense blocks of 2,048, 8,192 words, 8 sequences a chip on 8 chips; weights cut on {'their largest dimension' if cut == 'largest' else 'the width'}, " + ("constrained" if con else "no constraints"),
               "2x4", mesh=dict(data=1, fsdp=8, tensor=1), mesh_shape=(8, 1), names=("fsdp", "model"), cut="largest" if cut == "largest" else "2d:fsdp", L=12, d=2048, ff=8192, V=8192, batch=64, constrain=con, loss="lse-take")
llama_case("blocks-rep-2x2", "12 dense blocks of 1,536 replicated on 4 chips, 8,192 words", "2x2", mesh=dict(data=4, fsdp=1, tensor=1), cut="replicated", L=12, d=1536, ff=4096, h=12, kv=12, V=8192, batch=32, constrain=True, loss="lse-take")
llama_case("blocks-tp4", "12 dense blocks of 2,048 on 4 chips of tensor parallelism, 8,192 words", "2x2", mesh=dict(data=1, fsdp=1, tensor=4), mesh_shape=(1, 4), names=("data", "model"), cut="megatron", L=12, d=2048, ff=8192, V=8192, batch=8, constrain=True, loss="lse-take")
gpt_case("nanogpt-scan-none", "GPT-2, einsum attention, blocks in a scan without remat", "2x2", (4,), L=12, d=768, heads=12, T=1024, batch=32, scan=True)
llama_case("none-swiglu-l28-kvh-product-lse", "28 scanned blocks without remat, x * x, nothing repeated, logsumexp - take", "2x4", L=28, d=1536, ff=4096, h=12, kv=12, batch=16, remat="none", constrain=True, square="product", loss="lse-take")

if __name__ == "__main__":
    if sys.argv[1] == "--list":
        print("\n".join(CASES)); sys.exit()
    folder = sys.argv[1]
    for name in sys.argv[2:]:
        c = CASES[name]
        if c["scenario"]: open(f"{folder}/{name}.toml", "w").write(c["scenario"])
        json.dump({k: c[k] for k in ("what", "scenario", "cannot_say")}, open(f"{folder}/{name}.case.json", "w"))
        open(f"{folder}/{name}.mlir", "w").write(c["build"]().as_text())
