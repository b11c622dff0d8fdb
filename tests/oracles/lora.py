"""What training steps allocate and compute in which not every parameter is trained, on a GPU that is not there.

`peft` cases: transformers' own decoders in bf16 on one device, `LoraConfig` of peft around them (or `requires_grad_(False)` alone).
`tune` cases: a Llama of `nn.RMSNorm`, complex rotary embedding and fused attention, whose linears are torchtune's `LoRALinear`
(`torchtune/modules/peft/lora.py`, 0.6.1), in bf16, on one device or under `fully_shard` of each block and of the root, rank 0 of 8.
Third step of AdamW; then FLOPs of one more forward and backward by `FlopCounterMode`. The CUDA runtime and cuBLAS are stubs that do
nothing (LD_PRELOAD), collectives are those of the `fake` process group; PyTorch, transformers and peft are the real ones.

    python lora.py OUT.json [ids]
"""
import json, os, pickle, sys, warnings

import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist

ATTENTION, FFN = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
QV, ALL = ["q_proj", "v_proj"], ATTENTION + FFN
W = dict(vocab_size=32000, num_hidden_layers=3)
CONFIGS = {
    "llama": dict(W, model_type="llama", hidden_size=2048, intermediate_size=5632, num_attention_heads=16, num_key_value_heads=4,
                  max_position_embeddings=4096),
    "qwen2": dict(W, model_type="qwen2", hidden_size=1536, intermediate_size=6144, num_attention_heads=12, num_key_value_heads=2,
                  tie_word_embeddings=True, max_position_embeddings=4096),
    "qwen3": dict(W, model_type="qwen3", hidden_size=1024, intermediate_size=3072, num_attention_heads=16, num_key_value_heads=8,
                  head_dim=128, max_position_embeddings=4096),
    "gemma2": dict(W, model_type="gemma2", hidden_size=1536, intermediate_size=6144, num_attention_heads=8, num_key_value_heads=4,
                   head_dim=256, max_position_embeddings=8192, sliding_window=1024),
}
BASE = dict(code="peft", model="llama", world=1, bs=1, seq=2048, rank=None, modules=[], dropout=0.0, dtype="fp32", ac="none", reentrant=False,
            inputs=False, freeze=[], last=None, base=None, wrap="block", mp="bf16", fused=False, hsdp=1)
TUNE = dict(code="tune", dtype="bf16")
CASES = {
    "peft-qv": dict(rank=16, modules=QV),
    "peft-all": dict(rank=16, modules=ALL),
    "peft-all-dropout": dict(rank=16, modules=ALL, dropout=0.05),
    "peft-rank-128": dict(rank=128, modules=ALL, dropout=0.1),
    "peft-attention": dict(rank=8, modules=ATTENTION),
    "peft-ffn": dict(rank=32, modules=FFN, dropout=0.05),
    "peft-up": dict(rank=16, modules=["up_proj"]),
    "peft-bf16": dict(rank=16, modules=ALL, dropout=0.05, dtype="bf16"),
    "peft-checkpointed": dict(rank=16, modules=ALL, dropout=0.05, ac="full"),
    "peft-checkpointed-qv": dict(rank=16, modules=QV, ac="full"),
    "peft-checkpointed-down": dict(rank=16, modules=["down_proj"], ac="full"),
    "peft-reentrant": dict(rank=16, modules=ALL, dropout=0.05, ac="full", reentrant=True, inputs=True),
    "peft-inputs": dict(rank=16, modules=QV, inputs=True),
    "peft-batch": dict(rank=16, modules=ALL, bs=2, seq=1024),
    "peft-qwen2": dict(model="qwen2", rank=16, modules=ALL),
    "peft-qwen3": dict(model="qwen3", rank=16, modules=ALL, dropout=0.05),
    "peft-gemma2": dict(model="gemma2", rank=16, modules=QV),
    "frozen-embedding": dict(freeze=["embedding"]),
    "frozen-ends": dict(freeze=["embedding", "norm", "head"]),
    "frozen-head": dict(freeze=["head"]),
    "frozen-last-1": dict(freeze=["embedding"], last=1),
    "frozen-last-2-checkpointed": dict(freeze=["embedding"], last=2, ac="full"),
    "frozen-layers": dict(freeze=["embedding"], last=0),
    "qlora-qv": dict(rank=16, modules=QV, base="nf4"),
    "qlora-all": dict(rank=64, modules=ALL, dropout=0.05, base="nf4"),
    "qlora-checkpointed": dict(rank=16, modules=ALL, base="nf4", ac="full", inputs=True),
    "tune-qv": dict(TUNE, rank=8, modules=QV),
    "tune-all-dropout": dict(TUNE, rank=16, modules=ALL, dropout=0.05),
    "tune-checkpointed": dict(TUNE, rank=16, modules=ALL, ac="full"),
    "tune-selective": dict(TUNE, rank=16, modules=ALL, ac="selective_op"),
    "tune-frozen-embedding": dict(TUNE, freeze=["embedding"]),
    "tune-fsdp2-qv": dict(TUNE, world=8, rank=8, modules=QV),
    "tune-fsdp2-all": dict(TUNE, world=8, rank=16, modules=ALL, dropout=0.05),
    "tune-fsdp2-checkpointed": dict(TUNE, world=8, rank=16, modules=ALL, ac="full"),
    "tune-fsdp2-selective": dict(TUNE, world=8, rank=16, modules=ALL, ac="selective_op"),
    "tune-fsdp2-ends": dict(TUNE, world=8, rank=64, modules=ALL, wrap="ends"),
    "tune-fsdp2-hsdp": dict(TUNE, world=8, hsdp=2, rank=16, modules=ALL),
    "tune-fsdp2-fused": dict(TUNE, world=8, rank=16, modules=ATTENTION, fused=True, ac="full"),
    "tune-fsdp2-frozen-embedding": dict(TUNE, world=8, freeze=["embedding"], mp="mixed"),
    "tune-fsdp2-frozen-embedding-ends": dict(TUNE, world=8, freeze=["embedding"], mp="mixed", wrap="ends"),
    "tune-fsdp2-last-1": dict(TUNE, world=8, freeze=["embedding"], last=1, mp="mixed"),
    "tune-fsdp2-last-2-ends": dict(TUNE, world=8, freeze=["embedding", "norm", "head"], last=2, mp="mixed", wrap="ends", ac="full"),
    "tune-fsdp2-lora-mixed": dict(TUNE, world=8, rank=16, modules=ALL, mp="mixed", dtype="fp32"),
}


class LoRALinear(nn.Module):
    """As torchtune writes it."""
    def __init__(self, inputs, outputs, rank, dropout):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.dropout = nn.Dropout(p=dropout) if dropout > 0.0 else nn.Identity()
        self.lora_a = nn.Linear(inputs, rank, bias=False)
        self.lora_b = nn.Linear(rank, outputs, bias=False)
        self.scale = 2.0

    def forward(self, x):
        out = F.linear(x, self.weight, None)
        lora_out = self.lora_a(self.dropout(x))
        lora_out = self.scale * self.lora_b(lora_out)
        return out + lora_out


D, N, K, H, FF, V, LAYERS = 2048, 16, 4, 128, 5632, 32000, 3


def linear(c, name, inputs, outputs):
    return LoRALinear(inputs, outputs, c["rank"], c["dropout"]) if name in c["modules"] else nn.Linear(inputs, outputs, bias=False)


def turned(xq, xk, freqs):
    xq_, xk_ = (torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) for x in (xq, xk))
    f = freqs[: xq.shape[1]].view(1, xq.shape[1], 1, -1)
    xq_out, xk_out = torch.view_as_real(xq_ * f).flatten(3), torch.view_as_real(xk_ * f).flatten(3)
    return xq_out.type_as(xq), xk_out.type_as(xk)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wq, self.wk, self.wv = linear(c, "q_proj", D, N * H), linear(c, "k_proj", D, K * H), linear(c, "v_proj", D, K * H)
        self.wo = linear(c, "o_proj", N * H, D)

    def forward(self, x, freqs):
        b, s, _ = x.shape
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        q, k, v = q.view(b, s, -1, H), k.view(b, s, -1, H), v.view(b, s, -1, H)
        q, k = turned(q, k, freqs)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(o.transpose(1, 2).contiguous().view(b, s, -1))


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.w1, self.w2, self.w3 = linear(c, "gate_proj", D, FF), linear(c, "down_proj", FF, D), linear(c, "up_proj", D, FF)

    def forward(self, x): return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attention, self.feed_forward = Attention(c), FeedForward(c)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(D, eps=1e-5), nn.RMSNorm(D, eps=1e-5)

    def forward(self, x, freqs):
        h = x + self.attention(self.attention_norm(x), freqs)
        return h + self.feed_forward(self.ffn_norm(h))


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok_embeddings = nn.Embedding(V, D)
        self.register_buffer("freqs", torch.empty(c["seq"], H // 2, dtype=torch.complex64), persistent=False)
        self.layers = nn.ModuleDict({str(i): Block(c) for i in range(LAYERS)})
        self.norm, self.output = nn.RMSNorm(D, eps=1e-5), nn.Linear(D, V, bias=False)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values(): h = layer(h, self.freqs)
        return self.output(self.norm(h))


def selective():
    """torchtitan's operator-level policy."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
    save = {torch.ops.aten.mm.default, torch.ops.aten._scaled_dot_product_flash_attention.default,
            torch.ops.aten._scaled_dot_product_efficient_attention.default}

    def make():
        meta = {True: 0, False: 0}

        def policy(ctx, func, *args, **kwargs):
            if func == torch.ops.aten.mm.default: meta[ctx.is_recompute] += 1
            kept = func in save and not (func == torch.ops.aten.mm.default and meta[ctx.is_recompute] % 2 == 0)
            return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
        return policy
    return create_selective_checkpoint_contexts(make())


def freeze(c, ends, blocks):
    """Frozen parts by name, and all blocks but the last so many."""
    for name in c["freeze"]:
        for p in ends[name].parameters(): p.requires_grad_(False)
    if c["last"] is not None:
        for block in list(blocks)[: len(blocks) - c["last"]]:
            for p in block.parameters(): p.requires_grad_(False)


def build_tune(c):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    wide = c["mp"] == "mixed"
    with torch.device("meta"):
        m = Llama(c)
    if not wide:
        freqs = m.freqs
        m = m.to(torch.bfloat16)
        m.freqs = freqs
    if c["rank"]:
        for name, p in m.named_parameters(): p.requires_grad_("lora_" in name)
    freeze(c, dict(embedding=m.tok_embeddings, norm=m.norm, head=m.output), m.layers.values())
    for k in list(m.layers):
        if c["ac"] == "full": m.layers[k] = checkpoint_wrapper(m.layers[k], early_stop=True)
        if c["ac"] == "selective_op": m.layers[k] = checkpoint_wrapper(m.layers[k], context_fn=selective, early_stop=True)
    if c["world"] > 1:
        mesh = init_device_mesh("cuda", (c["hsdp"], 8 // c["hsdp"]) if c["hsdp"] > 1 else (8,),
                                mesh_dim_names=("rep", "shard") if c["hsdp"] > 1 else ("dp",))
        kw = dict(mesh=mesh)
        if wide: kw["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if c["wrap"] == "ends":
            fully_shard(m.tok_embeddings, **kw)
            fully_shard([m.norm, m.output], reshard_after_forward=False, **kw)
        for layer in m.layers.values(): fully_shard(layer, **kw)
        fully_shard(m, **kw)
    m.to_empty(device="cuda")
    return m


def build_peft(c):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM
    config = AutoConfig.for_model(**CONFIGS[c["model"]])
    with torch.device("meta"):
        m = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tied = m.get_output_embeddings().weight is m.get_input_embeddings().weight
    if c["base"] == "nf4":
        import bitsandbytes as bnb
        kept = []
        for name, module in list(m.named_modules()):
            if isinstance(module, nn.Linear) and "lm_head" not in name:
                parent = m.get_submodule(name.rpartition(".")[0])
                new = bnb.nn.Linear4bit(module.in_features, module.out_features, bias=module.bias is not None, compute_dtype=torch.bfloat16,
                                        compress_statistics=True, quant_type="nf4")
                new.weight = bnb.nn.Params4bit(torch.zeros(module.out_features, module.in_features, dtype=torch.bfloat16), requires_grad=False,
                                               compress_statistics=True, quant_type="nf4", module=new)
                setattr(parent, name.rpartition(".")[2], new.to("cuda"))
        for name, module in list(m.named_modules()):
            if isinstance(module, bnb.nn.Linear4bit): continue
            for key, p in list(module.named_parameters(recurse=False)):
                if p.device.type == "meta": setattr(module, key, nn.Parameter(torch.empty_like(p, device="cuda"), requires_grad=False))
            for key, b in list(module.named_buffers(recurse=False)):
                if b.device.type == "meta": module._buffers[key] = torch.empty_like(b, device="cuda")
        torch.cuda.empty_cache()
    else: m.to_empty(device="cuda")
    if tied: m.get_output_embeddings().weight = m.get_input_embeddings().weight
    m.train()
    if c["rank"]:
        lora = LoraConfig(r=c["rank"], lora_alpha=2 * c["rank"], lora_dropout=c["dropout"], target_modules=c["modules"], task_type="CAUSAL_LM")
        m = get_peft_model(m, lora, autocast_adapter_dtype=c["dtype"] == "fp32")
        inner = m.get_base_model()
    else: inner = m
    freeze(c, dict(embedding=inner.get_input_embeddings(), norm=inner.model.norm, head=inner.get_output_embeddings()), inner.model.layers)
    if c["ac"] == "full": inner.gradient_checkpointing_enable(dict(use_reentrant=c["reentrant"]))
    if c["inputs"]: inner.enable_input_require_grads()
    return m


def ce_loss(pred, labels): return F.cross_entropy(pred.flatten(0, 1).float(), labels.flatten(0, 1))


def run(c):
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils.flop_counter import FlopCounterMode
    torch.backends.cuda.enable_cudnn_sdp(False)
    if c["code"] == "tune": torch.backends.cuda.enable_mem_efficient_sdp(False)
    plain_bool = torch.Tensor.__bool__
    torch.Tensor.__bool__ = lambda t: True if t.is_cuda else plain_bool(t)
    if c["world"] > 1: dist.init_process_group("fake", rank=0, world_size=c["world"], store=FakeStore())
    m = build_tune(c) if c["code"] == "tune" else build_peft(c)
    trained = [p for p in m.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=c["fused"], foreach=not c["fused"])
    ids, labels = (torch.zeros(c["bs"], c["seq"], dtype=torch.long, device="cuda") for _ in range(2))
    phases = {}

    def mark(name):
        s = torch.cuda.memory_stats()
        phases[name] = dict(peak=s["allocated_bytes.all.peak"], end=s["allocated_bytes.all.current"])
        torch.cuda.reset_peak_memory_stats()

    def forward():
        if c["code"] == "tune": return ce_loss(m(ids), labels)
        return m(input_ids=ids, labels=labels, use_cache=False).loss

    mark("init")
    def step():
        loss = forward()
        mark("fwd")
        loss.backward()
        del loss
        mark("bwd")
        optimizer.step()
        mark("opt")
        optimizer.zero_grad()
        mark("zero")

    step(); step()
    reserved = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
    torch.cuda.reset_peak_memory_stats()
    step()
    reserved = max(reserved, torch.cuda.memory_stats()["reserved_bytes.all.peak"])
    got = dict(c)
    if c["code"] == "peft": got["config"] = CONFIGS[c["model"]]
    of_phases = {k: v for k, v in phases.items() if k != "init"}
    got.update(trained=sum(p.numel() for p in trained), peak_allocated=max(p["peak"] for p in of_phases.values()), peak_reserved=reserved,
               phases=of_phases, init=phases["init"]["end"])
    counter = FlopCounterMode(display=False)
    with counter: forward().backward()
    got["flops"] = counter.get_total_flops()
    # The counter does not see into the operator that unpacks and multiplies in forward.
    packed = sum(x.in_features * x.out_features for x in m.modules() if type(x).__name__ == "Linear4bit")
    got["uncounted"] = 2 * c["bs"] * c["seq"] * packed * (2 if c["ac"] == "full" else 1)
    return got


def child(c):
    """Each case runs in a process of its own, forked after the imports."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try: got = run(c)
        except BaseException as error:
            import traceback
            got = dict(c, error=f"{error!r}\n{traceback.format_exc()[-3000:]}")
        with os.fdopen(write, "wb") as pipe: pickle.dump(got, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe: data = pipe.read()
    os.waitpid(pid, 0)
    return pickle.loads(data) if data else dict(c, error="died")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    import torch.distributed.fsdp, torch.testing._internal.distributed.fake_pg, torch.distributed.algorithms._checkpoint.checkpoint_wrapper
    import transformers  # not peft: bitsandbytes, which it imports, asks CUDA for devices, and a process that has cannot be forked
    from importlib.metadata import version
    out, wanted = sys.argv[1], sys.argv[2:]
    cases = []
    for name, over in CASES.items():
        if wanted and not any(name.startswith(w) for w in wanted): continue
        got = dict(id=name, **child({**BASE, **over}))
        print(name, got.get("error") or (got["peak_allocated"], got["trained"], got["flops"]), flush=True)
        cases.append(got)
    note = f"peft {version('peft')}, bitsandbytes {version('bitsandbytes')}, transformers {transformers.__version__}, torch {torch.__version__}"
    with open(out, "w") as file:
        file.write('{"note": %s, "cases": [\n%s\n]}\n' % (json.dumps(note), ",\n".join(json.dumps(case) for case in cases)))
