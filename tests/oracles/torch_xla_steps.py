"""Training steps of PyTorch/XLA under SPMD, as people write them, for XLA's TPU compiler (ahead of time, no TPU).

    TXENV/bin/python torch_xla_steps.py trace  DIR NAME ...   traces the step on PyTorch/XLA's CPU client and keeps the very module
                                                              that goes to the compiler (DIR/NAME/step.pb, step.txt, host.json)
    JAXENV/bin/python torch_xla_steps.py compile DIR NAME ... compiles DIR/NAME/step.pb for v6e with libtpu; DIR/NAME/row.json
    python torch_xla_steps.py table DIR OUT.json              all rows in one list
    python torch_xla_steps.py --list

TXENV: torch and torch_xla (2.9.0 both, from PyPI); JAXENV: jax 0.10.2, jaxlib and libtpu 0.0.42.1 as for `xla_plain.py`.

The step that is traced is the steady one: optimizer states are there already (zeros, cut as their parameters: so the first step
leaves them). It is never run: when the CPU compiler has written `before_optimizations`, the process
ends itself. PJRT_DEVICE is set to TPU once the CPU client is up, so that lowerings and layouts that ask for it
(device.cpp `CheckTpuDevice`) answer as on a TPU; everything before the compiler is PyTorch/XLA's own. Compile options are those of
`PjRtComputationClient::Compile` (pjrt_computation_client.cpp): one replica, N partitions, GSPMD, shardings of outputs left free.
"""
import glob, json, math, os, re, subprocess, sys, threading, time

FULL = os.environ.get("FULL")            # compile to the end (minutes), not only as far as buffers are given places (seconds)
CASES = {}

def case(name, what, **c):
    CASES[name] = dict(what=what, **{**DEFAULTS, **c})

DEFAULTS = dict(
    topo="2x4", mesh=(8,), names=("fsdp",), parallel="fsdpv2", L=4, d=2048, ff=5632, h=16, kv=8, V=32000, S=2048, batch=8,
    patched=False,          # xs.apply_xla_patch_to_nn_linear before sharding
    precision="autocast",   # autocast: fp32 weights under torch.autocast("xla", bf16); bf16: weights and states; fp32
    attention="eager",      # eager: matmul, mask, fp32 softmax (Hugging Face's); einsum; sdpa: F.scaled_dot_product_attention; flash: Pallas
    remat=False,            # torch_xla.distributed.fsdp.checkpoint_module on each block
    wrap="blocks",          # blocks: auto_wrap_policy on blocks and the root; root: the root only
    accumulate=1, accumulate_sync=False,   # micro-batches; True: torch_xla.sync() after each backward (the last graph is traced)
    part="last",            # accumulate_sync: which graph: "first" micro-batch or "last" with the optimizer
    zero_grad="before",     # optimizer.zero_grad() before the sync, or at the start of the next step ("after": gradients are outputs)
    keep_logits=False,      # a Python name still holds the logits at the sync
    clip=False, constrain=False, experts=0, top_k=2, capacity=1.25, optimizer="adamw", float_logits=True)

def fill():
    F4 = dict(topo="2x2", mesh=(4,))
    case("fsdp8", "FSDPv2 on 8 chips, wrapped blocks, bf16 autocast, eager attention, no checkpoint")
    case("fsdp8-patched", "fsdp8 with the patched linear", patched=True)
    case("fsdp8-remat", "fsdp8 with checkpointed blocks", remat=True)
    case("fsdp8-remat-patched", "fsdp8-remat with the patched linear", remat=True, patched=True)
    case("fsdp8-root", "fsdp8 with the root wrapped only", wrap="root")
    case("fsdp8-sdpa", "fsdp8 with F.scaled_dot_product_attention", attention="sdpa")
    case("fsdp8-bf16", "fsdp8, weights and states in bf16", precision="bf16")
    case("fsdp8-bf16-remat-patched", "weights and states in bf16, checkpoint, patched linear", precision="bf16", remat=True, patched=True)
    case("fsdp8-fp32", "fsdp8 in fp32", precision="fp32")
    case("fsdp8-grads-live", "fsdp8, zero_grad after the sync: gradients are outputs", zero_grad="after")
    case("fsdp8-logits-live", "fsdp8, the logits are still named at the sync", keep_logits=True)
    case("fsdp8-clip", "fsdp8-remat-patched with clip_grad_norm_", clip=True, remat=True, patched=True)
    case("fsdp8-accum2", "two micro-batches in one graph", accumulate=2, remat=True, patched=True)
    case("fsdp8-accum2-sync-first", "two micro-batches, sync after each: the first graph", accumulate=2, accumulate_sync=True, part="first", remat=True, patched=True)
    case("fsdp8-accum2-sync-last", "two micro-batches, sync after each: the last graph, with the optimizer", accumulate=2, accumulate_sync=True, remat=True, patched=True)
    case("fsdp4", "FSDPv2 on 4 chips, 2 blocks of 1024", L=2, d=1024, ff=2816, h=8, kv=4, S=1024, batch=8, **F4)
    case("fsdp4-patched", "fsdp4 with the patched linear", L=2, d=1024, ff=2816, h=8, kv=4, S=1024, batch=8, patched=True, **F4)
    case("fsdp4-l8", "FSDPv2 on 4 chips, 8 blocks of 1024, checkpoint, patched", L=8, d=1024, ff=2816, h=8, kv=4, S=1024, batch=16, remat=True, patched=True, **F4)
    case("fsdp8-wide", "FSDPv2, 2 blocks of 4096, sequence 4096, checkpoint, patched", L=2, d=4096, ff=11008, h=32, kv=8, S=4096, batch=8, remat=True, patched=True, precision="bf16")
    case("dp4", "parameters replicated, batch cut over data on 4 chips", parallel="tp", names=("data", "model"), topo="2x2", mesh=(4, 1), L=2, d=1024, ff=2816, h=8, kv=4, S=1024, batch=16)
    case("tp4", "tensor parallel 4 by mark_sharding on weights", parallel="tp", names=("data", "model"), topo="2x2", mesh=(1, 4), batch=2)
    case("tp4-patched", "tp4 with the patched linear", parallel="tp", names=("data", "model"), topo="2x2", mesh=(1, 4), batch=2, patched=True)
    case("tp2-dp2", "data 2 × model 2", parallel="tp", names=("data", "model"), topo="2x2", mesh=(2, 2), batch=4)
    case("dp2-tp4", "data 2 × model 4, activations constrained, checkpoint, patched", parallel="tp", names=("data", "model"), mesh=(2, 4), batch=8, constrain=True, remat=True, patched=True)
    case("fsdp2-tp4", "fsdp 2 × tensor 4, activations constrained, checkpoint, patched", parallel="2d", names=("fsdp", "tensor"), mesh=(2, 4), batch=8, constrain=True, remat=True, patched=True)
    case("fsdp4-tp2-plain", "fsdp 4 × tensor 2, nothing constrained, no patch", parallel="2d", names=("fsdp", "tensor"), mesh=(4, 2), batch=8)
    case("moe-222", "data 2 × expert 2 × model 2, 8 experts by capacity einsum, constrained, patched", parallel="moe", names=("data", "expert", "model"), mesh=(2, 2, 2), experts=8, L=2, d=1024, ff=2816, h=8, kv=4, S=1024, batch=8, constrain=True, patched=True)
    case("moe-222-remat", "moe-222 with checkpoint", parallel="moe", names=("data", "expert", "model"), mesh=(2, 2, 2), experts=8, L=2, d=1024, ff=2816, h=8, kv=4, S=1024, batch=8, constrain=True, patched=True, remat=True)
    case("fsdp8-flash", "fsdp8-remat-patched with the Pallas flash attention", attention="flash", remat=True, patched=True)
    case("fsdp2-tp4-flash", "fsdp2-tp4 with the Pallas flash attention, heads cut over tensor", parallel="2d", names=("fsdp", "tensor"), mesh=(2, 4), batch=8, constrain=True, remat=True, patched=True, attention="flash")
    case("dp2-tp4-einsum", "dp2-tp4 with attention by torch.einsum", parallel="tp", names=("data", "model"), mesh=(2, 4), batch=8, constrain=True, remat=True, patched=True, attention="einsum")
    case("fsdp8-einsum", "fsdp8-patched with attention by torch.einsum", patched=True, attention="einsum")
    case("fsdp8-flash-none", "fsdp8-patched with the Pallas flash attention", attention="flash", patched=True)
    case("tiny", "for trying out", L=1, d=256, ff=512, h=2, kv=2, V=1024, S=256, batch=8)
fill()

# ---------------------------------------------------------------------------------------------------------------------------
# The step in PyTorch/XLA.

def start(chips, dump=None):
    """Brings the CPU client up with `chips` devices, then answers as a TPU."""
    os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES=str(chips), TPU_SKIP_MDS_QUERY="1")
    if dump:
        os.environ["XLA_FLAGS"] = f"--xla_dump_to={dump} --xla_dump_hlo_as_proto --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*SyncTensorsGraph.*"
    import torch, torch_xla, torch_xla.runtime as xr
    xr.use_spmd()
    assert xr.global_runtime_device_count() == chips
    torch.zeros(1).to("xla"); torch_xla.sync(wait=True)
    os.environ["PJRT_DEVICE"] = "TPU"

def pallas_for_tpus():
    """Lets PyTorch/XLA's Pallas kernels be lowered without a TPU, by jax 0.7.1 in TXENV: the CPU's rule becomes the TPU's."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax._src.pallas.pallas_call as pallas
    lower = pallas.mlir.lower_per_platform
    def as_tpu(ctx, name, rules, *a, **k):
        return lower(ctx, name, {**rules, "cpu": rules["tpu"]} if name == "pallas_call" and "tpu" in rules else rules, *a, **k)
    pallas.mlir.lower_per_platform = as_tpu

def model_of(c):
    import torch, torch.nn as nn, torch.nn.functional as F
    import torch_xla.distributed.spmd as xs
    hd = c["d"] // c["h"]
    heads = next((n for n in ("model", "tensor") if n in c["names"]), None)

    class RMSNorm(nn.Module):                      # Hugging Face's LlamaRMSNorm
        def __init__(self, d):
            super().__init__(); self.weight = nn.Parameter(torch.ones(d))
        def forward(self, x):
            dtype, x = x.dtype, x.to(torch.float32)
            x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
            return self.weight * x.to(dtype)

    def rotate(x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            lin = lambda a, b: nn.Linear(a, b, bias=False)
            self.q_proj, self.k_proj, self.v_proj, self.o_proj = lin(c["d"], c["h"] * hd), lin(c["d"], c["kv"] * hd), lin(c["d"], c["kv"] * hd), lin(c["h"] * hd, c["d"])
        def forward(self, x, cos, sin, mask):
            B, S, _ = x.shape
            q, k, v = (f(x).view(B, S, -1, hd).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
            q, k = rotate(q, cos.to(q.dtype), sin.to(q.dtype)), rotate(k, cos.to(q.dtype), sin.to(q.dtype))
            g = c["h"] // c["kv"]
            if g > 1:
                k, v = (t[:, :, None].expand(B, c["kv"], g, S, hd).reshape(B, c["h"], S, hd) for t in (k, v))
            if c["attention"] == "eager":
                w = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(hd) + mask.to(q.dtype)
                w = F.softmax(w, -1, dtype=torch.float32).to(q.dtype)
                y = torch.matmul(w, v)
            elif c["attention"] == "einsum":       # four dimensions to the dot: nothing is flattened
                w = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(hd) + mask.to(q.dtype)
                y = torch.einsum("bhqk,bhkd->bhqd", F.softmax(w, -1, dtype=torch.float32).to(q.dtype), v)
            elif c["attention"] == "sdpa":
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                from torch_xla.experimental.custom_kernel import flash_attention
                y = flash_attention(q / math.sqrt(hd), k, v, causal=True, partition_spec=(c["names"][0], heads, None, None), mesh=c["xs_mesh"])
            return self.o_proj(y.transpose(1, 2).reshape(B, S, -1))

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj, self.up_proj, self.down_proj = nn.Linear(c["d"], c["ff"], bias=False), nn.Linear(c["d"], c["ff"], bias=False), nn.Linear(c["ff"], c["d"], bias=False)
        def forward(self, x):
            return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

    class Experts(nn.Module):                      # tokens sent and fetched by einsum over a mask of places (GShard)
        def __init__(self):
            super().__init__()
            E, self.C = c["experts"], int(c["S"] * c["top_k"] * c["capacity"] / c["experts"])
            self.router = nn.Linear(c["d"], E, bias=False)
            self.w1, self.w3 = (nn.Parameter(torch.empty(E, c["d"], c["ff"]).normal_(0, 0.02)) for _ in range(2))
            self.w2 = nn.Parameter(torch.empty(E, c["ff"], c["d"]).normal_(0, 0.02))
        def forward(self, x):
            E = c["experts"]
            p = F.softmax(self.router(x).float(), -1)
            top, at = p.topk(c["top_k"], -1)
            top = top / top.sum(-1, keepdim=True)
            hot = F.one_hot(at, E).float()                                         # b s k e
            place = (hot.flatten(1, 2).cumsum(1) - 1).view_as(hot)                 # first come, first served
            keep = hot * (place < self.C)
            slot = F.one_hot((place * keep).sum(-1).long(), self.C).float()        # b s k c
            combine = torch.einsum("bsk,bske,bskc->bsec", top, keep, slot).to(x.dtype)
            dispatch = (combine > 0).to(x.dtype)
            con = lambda t, *s: xs.mark_sharding(t, c["xs_mesh"], s) if c["constrain"] else None
            y = torch.einsum("bsec,bsd->ebcd", dispatch, x); con(y, "expert", "data", None, None)
            z = F.silu(torch.einsum("ebcd,edf->ebcf", y, self.w1)) * torch.einsum("ebcd,edf->ebcf", y, self.w3); con(z, "expert", "data", None, "model")
            y = torch.einsum("ebcf,efd->ebcd", z, self.w2); con(y, "expert", "data", None, None)
            return torch.einsum("bsec,ebcd->bsd", combine, y)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.input_layernorm, self.self_attn, self.post_attention_layernorm = RMSNorm(c["d"]), Attention(), RMSNorm(c["d"])
            self.mlp = Experts() if c["experts"] else MLP()
        def forward(self, x, cos, sin, mask):
            x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
            x = x + self.mlp(self.post_attention_layernorm(x))
            if c["constrain"]: xs.mark_sharding(x, c["xs_mesh"], (c["names"][0], None, None))
            return x

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = nn.Embedding(c["V"], c["d"])
            self.layers = nn.ModuleList(Block() for _ in range(c["L"]))
            self.norm, self.lm_head = RMSNorm(c["d"]), nn.Linear(c["d"], c["V"], bias=False)
        def forward(self, tokens):
            S, device = tokens.shape[1], tokens.device
            x = self.embed_tokens(tokens)
            inv = 5e5 ** (-torch.arange(0, hd, 2, device=device).float() / hd)
            angle = torch.arange(S, device=device).float()[:, None] * inv
            angle = torch.cat((angle, angle), -1)[None, None]
            mask = None
            if c["attention"] in ("eager", "einsum"):
                mask = torch.triu(torch.full((S, S), torch.finfo(torch.float32).min, device=device), 1)[None, None]
            for layer in self.layers: x = layer(x, angle.cos(), angle.sin(), mask)
            return self.lm_head(self.norm(x))
    return Llama, Block

def build(c):
    """Model, optimizer and step. Returns a function that traces a whole step up to its sync."""
    import functools, numpy as np, torch, torch.nn.functional as F, torch_xla
    import torch_xla.distributed.spmd as xs
    from torch_xla.distributed.fsdp import checkpoint_module
    from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
    from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel as FSDPv2
    torch.manual_seed(0)
    n = math.prod(c["mesh"])
    mesh = c["xs_mesh"] = xs.Mesh(np.arange(n), c["mesh"], c["names"])
    xs.set_global_mesh(mesh)
    Llama, Block = model_of(c)
    model = Llama()
    if c["precision"] == "bf16": model = model.to(torch.bfloat16)
    if c["patched"]: model = xs.xla_sharding.apply_xla_patch_to_nn_linear(model)
    model = model.to("xla")
    if c["parallel"] == "fsdpv2":
        wrapper = (lambda m, *a, **k: FSDPv2(checkpoint_module(m), *a, **k)) if c["remat"] else None
        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}) if c["wrap"] == "blocks" else None
        model = FSDPv2(model, mesh=mesh, auto_wrap_policy=policy, auto_wrapper_callable=wrapper)
    else:
        over = {"tp": (None, "model"), "2d": ("fsdp", "tensor"), "moe": (None, "model")}[c["parallel"]]
        for name, p in model.named_parameters():
            f, t = over
            if re.search(r"q_proj|k_proj|v_proj|gate_proj|up_proj|lm_head|embed", name): spec = (t, f)
            elif re.search(r"o_proj|down_proj", name): spec = (f, t)
            elif re.search(r"mlp\.w[13]", name): spec = ("expert", f, t)
            elif re.search(r"mlp\.w2", name): spec = ("expert", t, f)
            else: spec = (None,) * p.dim()
            xs.mark_sharding(p, mesh, spec)
        if c["remat"]:
            for layer in model.layers: checkpoint_module(layer)
    params = list(model.parameters())
    opt = torch.optim.AdamW(params, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    # States lie as their parameters do: so the first step leaves them (seen by running one).
    for p in params:
        state = {"step": torch.tensor(1.0)}
        for k in ("exp_avg", "exp_avg_sq"):
            z = torch.zeros_like(p)
            torch_xla._XLAC._xla_mark_sharding(z, op_sharding(p))
            state[k] = z
        opt.state[p] = state
    torch_xla.sync(wait=True)
    for s in opt.state.values(): s["step"] += 1.0

    data = {"fsdpv2": "fsdp", "2d": "fsdp"}.get(c["parallel"], "data")
    micro = c["batch"]
    def batch():
        out = []
        for _ in range(2):
            t = torch.randint(0, c["V"], (micro, c["S"])).to("xla")
            xs.mark_sharding(t, mesh, (data, None)); out.append(t)
        return out
    batches = [batch() for _ in range(c["accumulate"])]
    torch_xla.sync(wait=True)
    kept = []
    def micro_step(tokens, targets):
        with torch.autocast("xla", dtype=torch.bfloat16, enabled=c["precision"] == "autocast"):
            logits = model(tokens)
            flat = logits.view(-1, c["V"])
            loss = F.cross_entropy(flat.float() if c["float_logits"] else flat, targets.view(-1)) / c["accumulate"]
        if c["keep_logits"]: kept.append(logits)
        loss.backward()
        return loss.detach()
    def finish():
        if c["clip"]: torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        if c["zero_grad"] == "before": opt.zero_grad()
    def step():
        if c["zero_grad"] == "after": opt.zero_grad()
        if c["accumulate_sync"] and c["part"] == "first":
            return micro_step(*batches[0])
        if c["accumulate_sync"]:
            loss = micro_step(*batches[1])
        else:
            loss = sum(micro_step(*b) for b in batches)
        finish()
        return loss
    if c["accumulate_sync"] and c["part"] == "last":
        for p in params:                           # what the graph before left: whole on each chip, as nothing in it cuts them
            p.grad = torch.zeros_like(p)
        torch_xla.sync(wait=True)
    return model, opt, params, step

def op_sharding(t):
    """The sharding of a tensor as an object that marks another."""
    import torch_xla
    return torch_xla._XLAC._get_xla_op_sharding(t)

def trace(folder, name):
    c = dict(CASES[name])
    out = f"{folder}/{name}"; os.makedirs(out, exist_ok=True)
    dump = f"{out}/cpu"; subprocess.run(["rm", "-rf", dump])
    start(math.prod(c["mesh"]), dump)
    if c["attention"] == "flash": pallas_for_tpus()
    import torch_xla, torch_xla.debug.metrics as met
    model, opt, params, step = build(c)
    before = set(glob.glob(f"{dump}/*before_optimizations*"))
    t = time.perf_counter()
    loss = step()
    traced = time.perf_counter() - t
    host = dict(parameters=sum(p.numel() for p in params), trace_seconds=traced,
                shardings={n: torch_xla._XLAC._get_xla_sharding_spec(p) for n, p in model.named_parameters() if ".1." not in n or "layers" not in n},
                counters={k: met.counter_value(k) for k in met.counter_names() if k.startswith(("xla::", "aten::"))})
    json.dump(host, open(f"{out}/host.json", "w"), indent=1)
    def watch():
        while True:
            new = [f for f in set(glob.glob(f"{dump}/*before_optimizations*")) - before if f.endswith(".pb")]
            if new:
                size = -1
                while os.path.getsize(new[0]) != size or size == 0:
                    size = os.path.getsize(new[0]); time.sleep(1)
                os.rename(new[0], f"{out}/step.pb")
                text = glob.glob(new[0].replace(".hlo.pb", ".txt"))
                if text: os.rename(text[0], f"{out}/step.txt")
                subprocess.run(["rm", "-rf", dump])
                print(name, "traced", f"{traced:.2f} s", flush=True)
                os._exit(0)
            time.sleep(0.3)
    threading.Thread(target=watch, daemon=True).start()
    torch_xla.sync(wait=True)
    time.sleep(30)

# ---------------------------------------------------------------------------------------------------------------------------
# Its compilation.

BYTES = dict(pred=1, s8=1, u8=1, bf16=2, f16=2, s16=2, u16=2, s32=4, u32=4, f32=4, s64=8, u64=8, f64=8)

def bytes_of(shape):
    return sum(BYTES[t] * math.prod(int(x) for x in dims.split(",") if x) for t, dims in re.findall(r"\b(pred|bf16|f16|f32|f64|s8|u8|s16|u16|s32|u32|s64|u64)\[([\d,]*)\]", shape))

def dot_flops(text):
    """FLOPs of the dots of a module before optimisation, of all chips together."""
    total = 0
    for comp in re.split(r"\n\n", text):
        shapes = dict(re.findall(r"^\s+(?:ROOT )?(%?[\w.\-]+) = (\S+?\[[\d,]*\])", comp, re.M))
        for shape, lhs, contract in re.findall(r"= (\S+?\[[\d,]*\])\S* dot\((?:\S+ )?(%?[\w.\-]+), .*?lhs_contracting_dims=\{([\d,]*)\}", comp):
            dims = [int(x) for x in re.search(r"\[([\d,]*)\]", shapes[lhs])[1].split(",") if x]
            out = math.prod(int(x) for x in re.search(r"\[([\d,]*)\]", shape)[1].split(",") if x)
            total += 2 * out * math.prod(dims[int(i)] for i in contract.split(",") if i)
    return total

def turns(bodies, line):
    """How often a loop turns that counts from 0: its condition's constant over what its body adds (windowed einsums, unrolled)."""
    condition, body = re.search(r"condition=(%[\w.\-]+), body=(%[\w.\-]+)", line).groups()
    defined = {m[1]: l for name in (condition, body) for l in bodies[name] if (m := re.match(r"\s+(?:ROOT )?(%[\w.\-]+) = ", l))}
    constant = lambda name: int(m[1]) if (m := re.search(r" constant\((\d+)\)", defined.get(name, ""))) else None
    test = re.search(r"ROOT .* compare\((%[\w.\-]+), (%[\w.\-]+)\), direction=LT", "\n".join(bodies[condition]))
    if not test: return 1
    index = int(re.search(r"index=(\d+)", defined[test[1]])[1])
    root = next(l for l in bodies[body] if l.lstrip().startswith("ROOT"))
    new = re.findall(r"%[\w.\-]+", re.sub(r"/\*[^*]*\*/", "", root[root.index(" tuple("):].split("), ")[0]))[index]
    step = re.search(r" add\((%[\w.\-]+), (%[\w.\-]+)\)", defined[new])
    step = step and (constant(step[2]) or constant(step[1]))
    return -(-(constant(test[2]) or 1) // (step or 1))

def calls(text):
    """How often each computation of a compiled module runs, and its lines."""
    bodies, name = {}, None
    for line in text.splitlines():
        if m := re.match(r"(?:ENTRY )?(%[\w.\-]+) .*\{$", line): name = m[1]; bodies[name] = []
        elif name: bodies[name].append(line)
    times = {n: 0 for n in bodies}
    entry = re.search(r"^ENTRY (%[\w.\-]+)", text, re.M)[1]
    def visit(n, k):
        times[n] += k
        for line in bodies[n]:
            trips = turns(bodies, line) if " while(" in line else 1
            for kind, called in re.findall(r"(body|condition|calls|to_apply)=(%[\w.\-]+)", line):
                if called in bodies and kind in ("body", "calls"): visit(called, k * trips if kind == "body" else k)
            if m := re.search(r"called_computations=\{([^}]*)\}", line):
                for called in re.findall(r"%[\w.\-]+", m[1]): visit(called, k)
    visit(entry, 1)
    return times, bodies

def conv_flops(text):
    """FLOPs of a chip's matmuls, convolutions by the time they are compiled, in and outside fusions; loops as often as they turn."""
    times = calls(text)
    total = 0
    for n, lines in times[1].items():
        if not times[0][n]: continue
        shapes = {}
        for line in lines:
            m = re.match(r"\s+(?:ROOT )?(%[\w.\-]+) = \w+\[([\d,]*)\]", line)
            if m: shapes[m[1]] = [int(x) for x in m[2].split(",") if x]
        for line in lines:
            m = re.match(r"\s+(?:ROOT )?(%[\w.\-]+) = \S+ convolution\((%[\w.\-]+), (%[\w.\-]+)\)(.*)", line)
            if not m: continue
            l, k, o = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", m[4]).groups()
            lhs, rhs, out = shapes[m[2]], shapes[m[3]], shapes[m[1]]
            w = re.search(r"window=\{([^}]*)\}", m[4]); w = dict(i.split("=") for i in w[1].split()) if w else {}
            spatial = sorted(x for x in l if x.isdigit())
            get = lambda key, default: w[key].split("x") if key in w else [default] * len(spatial)
            flops = 2 * out[o.index("b")] * out[o.index("f")] * rhs[k.index("i")]
            for i, x in enumerate(spatial):
                size, stride, lo = int(get("size", "1")[i]), int(get("stride", "1")[i]), int(get("pad", "0_0")[i].split("_")[0])
                ld, rd = int(get("lhs_dilate", "1")[i]), int(get("rhs_dilate", "1")[i])
                O, I = out[o.index(x)], lhs[l.index(x)]
                flops *= sum(1 for a in range(O) for b in range(size) if 0 <= (at := a * stride + b * rd - lo) <= (I - 1) * ld and at % ld == 0)
            total += flops * times[0][n]
    return total

def collectives(text):
    """Kind, bytes of the result, size of groups and times, of a compiled module; loops count as often as they turn."""
    times, bodies = calls(text)
    found = {}
    for n, lines in bodies.items():
        if not times[n]: continue
        for line in lines:
            m = re.match(r"\s+(?:ROOT )?%([\w.\-]+) = (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute|ragged-all-to-all)(-start)?\(", line)
            if not m: continue
            shape = m[2]
            if m[4] and m[3] in ("all-gather", "collective-permute"):    # (operands, results)
                parts = re.findall(r"\w+\[[\d,]*\]", shape)
                shape = " ".join(parts[len(parts) // 2:len(parts) // 2 * 2] if m[3] == "all-gather" else parts[1:2])
            if g := re.search(r"replica_groups=\[(\d+),(\d+)\]", line): size = int(g[2])
            elif g := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", line):
                axes = {n: int(k) for n, k in re.findall(r"'(\w+)'=(\d+)", g[1])}
                size = math.prod(axes[n] for n in re.findall(r"'(\w+)'", g[2]))
            elif g := re.search(r"replica_groups=\{\{([\d,]+)\}", line): size = len(g[1].split(","))
            else: size = 2 if m[3] == "collective-permute" else 0
            types = "+".join(sorted(set(re.findall(r"\b(pred|bf16|f32|s32|u32|s64)\[", shape))))
            kind = "reduce-scatter" if m[3] == "all-reduce" and "all-reduce-scatter" in n else m[3]   # as TPUs have it: bytes before
            key = kind, types, bytes_of(shape), size
            found[key] = found.get(key, 0) + times[n]
    return [dict(kind=k, type=t, bytes=b, group=g, times=n) for (k, t, b, g), n in sorted(found.items(), key=lambda i: -i[0][2] * i[1])]

def counts(hlo):
    header = hlo.split("\n")[0]
    return dict(collectives=collectives(hlo), output=bytes_of(header[header.index(")->"):]), input_output_alias=len(re.findall(r"(?:may|must)-alias", hlo.split("\n")[0])),
                matmul_flops_per_chip=conv_flops(hlo), instructions_compiled=sum(" = " in line for line in hlo.splitlines()))

def donors_of(text):
    """Parameters whose buffers the module gives away (`AddBufferDonor`)."""
    found = re.search(r"buffer_donor=\{([^\n]*?)\}, entry", text)
    return [int(i) for i in re.findall(r"\((\d+), \{\}\)", found[1])] if found else []

def module_of(proto):
    """HloModuleProto of an HloProto: its first field."""
    assert proto[0] == 0x0a
    size = shift = 0; at = 1
    while True:
        byte = proto[at]; size |= (byte & 127) << shift; shift += 7; at += 1
        if byte < 128: return proto[at:at + size]

def compile_(folder, name):
    os.environ.update(TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1", TPU_WORKER_HOSTNAMES="localhost", TPU_WORKER_ID="0",
                      TPU_ACCELERATOR_TYPE="v6e-16", JAX_PLATFORMS="cpu")
    import jax, numpy as np
    from jax.experimental import topologies
    from jaxlib import _jax, xla_client as xc
    from jax._src.interpreters import mlir as jmlir
    from jax._src.lib.mlir import ir
    c = CASES[name]; out = f"{folder}/{name}"; n = math.prod(c["mesh"])
    devices = topologies.get_topology_desc(platform="tpu", topology_name=f"v6e:{c['topo']}").devices
    assert len(devices) == n
    raw = module_of(open(f"{out}/step.pb", "rb").read())
    stablehlo = _jax.mlir.hlo_to_stablehlo(raw)
    o = xc.CompileOptions()
    o.num_partitions, o.num_replicas = n, 1
    e = o.executable_build_options
    e.num_partitions, e.num_replicas = n, 1
    e.use_spmd_partitioning, e.use_shardy_partitioner = True, False
    e.allow_spmd_sharding_propagation_to_output = [True]
    e.device_assignment = xc.DeviceAssignment.create(np.array([[d.id for d in devices]]))
    dump = f"{out}/tpu"; subprocess.run(["rm", "-rf", dump])
    o.env_option_overrides = [("xla_dump_to", dump)]
    t = time.time()
    row = dict(name=name, what=c["what"], case={k: v for k, v in c.items() if k != "what"}, torch_xla="2.9.0", jaxlib=__import__("jaxlib").__version__, libtpu="0.0.42.1")
    plain = open(f"{out}/step.txt").read()
    row.update(instructions=sum(" = " in line for line in plain.splitlines()), parameters_of_graph=len(re.findall(r" parameter\(\d+\)", plain.split("ENTRY")[1])),
               scalars=len(re.findall(r"= (?:f32|f64|s64|bf16|s32)\[\]\S* parameter\(", plain.split("ENTRY")[1])),
               dot_flops_all_chips=dot_flops(plain), donors=len(donors := donors_of(plain)))
    def finish(text):
        hlo = open(text).read()
        row.update(**counts(hlo), compile_seconds=time.time() - t)
        here = os.path.dirname(os.path.abspath(__file__)) + "/xla_buffers.py"
        got = subprocess.run([sys.executable, here, dump], capture_output=True, text=True)
        open(f"{out}/live.txt", "w").write(got.stdout + got.stderr)
        if found := re.match(r"argument (\d+) peak (\d+) total (\d+) at (\d+) (.*)", got.stdout):
            row.update(argument=int(found[1]), peak=int(found[2]), temp=int(found[2]) - int(found[1]), total=int(found[3]), peak_at=found[5])
        os.rename(text, f"{out}/compiled.txt")
        for f in glob.glob(f"{dump}/*"):
            if not re.search("live-range|buffer-assignment.txt|memory-usage", f): subprocess.run(["rm", "-rf", f])
        json.dump(row, open(f"{out}/row.json", "w"), indent=1)
        print(json.dumps({k: v for k, v in row.items() if k not in ("case", "collectives", "torch_xla", "jaxlib", "libtpu")}), flush=True)
    def watch():
        while not (text := glob.glob(f"{dump}/*after_optimizations_after_buffer_assignment.txt")): time.sleep(0.3)
        time.sleep(2)
        try: finish(text[0])
        finally: os._exit(0)
    if not FULL: threading.Thread(target=watch, daemon=True).start()
    try:
        with jmlir.make_ir_context():
            module = ir.Module.parse(stablehlo)
            main = next(f for f in module.body.operations if f.attributes["sym_name"].value == "main")
            given = [dict((a.name, a.attr) for a in attrs) for attrs in main.attributes["arg_attrs"]] if "arg_attrs" in main.attributes else [{} for _ in main.arguments]
            for i in donors: given[i]["jax.buffer_donor"] = ir.BoolAttr.get(True)     # what the conversion drops
            main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in given])
            x = devices[0].client.compile(module, executable_devices=_jax.DeviceList(tuple(devices)), compile_options=o)
        m = x.get_compiled_memory_stats()
        row.update(argument_stats=m.argument_size_in_bytes, output_stats=m.output_size_in_bytes, alias_stats=m.alias_size_in_bytes, temp_stats=m.temp_size_in_bytes, peak_stats=m.peak_memory_in_bytes,
                   flops_stats=x.cost_analysis().get("flops"))
        finish(glob.glob(f"{dump}/*after_optimizations_after_buffer_assignment.txt")[0])
    except Exception as why:
        row["refused"] = str(why)[:2000]
        json.dump(row, open(f"{out}/row.json", "w"), indent=1)
        print(json.dumps({k: v for k, v in row.items() if k != "case"}), flush=True)

def scenario(c):
    """The step as a scenario of this program has it; none for what no scenario says (fp32 matmuls, one graph of several)."""
    if c["precision"] == "fp32" or c["part"] == "first": return None
    axes = {"fsdp": "fsdp", "data": "data", "model": "tensor", "tensor": "tensor", "expert": "expert"}
    sizes = {axes[name]: size for name, size in zip(c["names"], c["mesh"])}
    replicas = sizes.get("data", 1) * sizes.get("fsdp", 1)
    flag = lambda b: str(bool(b)).lower()
    if c["experts"]:
        config = dict(model_type="mixtral", hidden_size=c["d"], num_attention_heads=c["h"], num_key_value_heads=c["kv"], num_hidden_layers=c["L"], intermediate_size=c["ff"],
                      vocab_size=c["V"], num_local_experts=c["experts"], num_experts_per_tok=c["top_k"], rms_norm_eps=1e-5, rope_theta=5e5, hidden_act="silu")
        model = "config = { " + ", ".join(f"{k} = {json.dumps(v)}" for k, v in config.items()) + " }\n"
    else:
        words = dict(layers="L", hidden="d", heads="h", kv_heads="kv", ffn="ff", vocab="V")
        model = 'name = "llama-3.1-8b"\n' + "".join(f"{k} = {c[v]}\n" for k, v in words.items())
    text = f'runtime = "torch_xla"\n[topology]\nname = "tpu-v6e"\nslice = "{c["topo"]}"\n[model]\n{model}[mesh]\n'
    text += "".join(f"{axis} = {size}\n" for axis, size in sizes.items())
    text += f'[batch]\nsequence = {c["S"]}\nmicro = {max(1, c["batch"] // replicas)}\naccumulation = {c["accumulate"]}\n[torch_xla]\n'
    text += f'attention = "{c["attention"]}"\nprecision = "{"bfloat16" if c["precision"] == "bf16" else "autocast"}"\n'
    text += f'gradient_checkpointing = {flag(c["remat"])}\nclip_grad_norm = {flag(c["clip"])}\n'
    if c["accumulate"] > 1: text += f'sync_every_micro_batch = {flag(c["accumulate_sync"])}\n'
    if c["experts"]: text += f'[xla]\ncapacity_factor = {c["capacity"]}\n'
    return text

def table(folder, to):
    rows = [json.load(open(f)) for name in CASES if name != "tiny" and os.path.exists(f := f"{folder}/{name}/row.json")]
    for row in rows:
        row.update(counts(open(f"{folder}/{row['name']}/compiled.txt").read()))
        f = f"{folder}/{row['name']}/host.json"
        if os.path.exists(f): row["host"] = json.load(open(f))
        if text := scenario(CASES[row["name"]]): row["scenario"] = text
    open(to, "w").write("[\n" + ",\n".join(" " + json.dumps(r) for r in rows) + "\n]\n")

if __name__ == "__main__":
    if sys.argv[1] == "--list": print("\n".join(CASES)); sys.exit()
    if sys.argv[1] == "table": table(*sys.argv[2:]); sys.exit()
    if len(sys.argv) > 4:                          # a process for each
        for name in sys.argv[3:]: subprocess.run([sys.executable, __file__, *sys.argv[1:3], name])
    else:
        {"trace": trace, "compile": compile_}[sys.argv[1]](sys.argv[2], sys.argv[3])
