"""What training steps allocate whose sequences are packed documents, with attention inside each, on a GPU that is not there.

`varlen` cases: the Llama of lora.py (`nn.RMSNorm`, complex rotary embedding) with PyTorch's own `varlen_attn` on FlashAttention 2's
kernels and `cu_seqlens`. `flex` cases: the same with FlexAttention, compiled on its own, and a `BlockMask` by document, which a compiled
`create_block_mask` makes for every step. `transformers` cases: transformers' own Llama with `attn_implementation="flash_attention_2"`
and the arguments that `DataCollatorWithFlattening(return_flash_attn_kwargs=True)` hands it: one row of all documents. The package
flash_attn needs a compiler of CUDA, so its `flash_attn_varlen_func` is written here around the same kernels in PyTorch
(`aten._flash_attention_forward`, `_backward`), which keep what the package keeps.

All documents of a case have one length. One device, or `fully_shard` of each block and of the root, rank 0 of 8. Third step of AdamW.
The CUDA runtime and cuBLAS are stubs that do nothing (LD_PRELOAD), collectives are those of the `fake` process group; PyTorch and
transformers are the real ones. Last, FLOPs of one more forward and backward by `FlopCounterMode`.

    python documents.py OUT.json [ids]
"""
import json, os, pickle, sys, types

import torch, torch.nn.functional as F
import torch.distributed as dist

import lora

VARLEN, FLEX = dict(code="varlen"), dict(code="flex")
HF = dict(code="transformers")
CASES = {
    "varlen-256": dict(VARLEN, length=256),
    "varlen-64": dict(VARLEN, length=64),
    "varlen-1024": dict(VARLEN, length=1024),
    "varlen-long": dict(VARLEN, seq=8192, length=512),
    "varlen-batch": dict(VARLEN, bs=2, length=128),
    # Many documents and few words: the step's peak lies in attention's backward, and most of it is what that keeps for each document.
    "varlen-16": dict(VARLEN, length=16, words=1024),
    "varlen-64-words": dict(VARLEN, length=64, words=1024),
    "varlen-16-full": dict(VARLEN, length=16, ac="full", words=1024),
    "varlen-full": dict(VARLEN, length=128, ac="full"),
    "varlen-selective": dict(VARLEN, length=128, ac="selective_op"),
    "varlen-fsdp2": dict(VARLEN, world=8, length=128, mp="mixed"),
    "varlen-fsdp2-full": dict(VARLEN, world=8, length=128, mp="mixed", ac="full"),
    "varlen-fsdp2-ends": dict(VARLEN, world=8, length=512, mp="mixed", wrap="ends"),
    "flex-256": dict(FLEX, length=256),
    "flex-long": dict(FLEX, seq=8192, length=512),
    "flex-batch": dict(FLEX, bs=2, length=128),
    "flex-full": dict(FLEX, length=256, ac="full"),
    "flex-fsdp2": dict(FLEX, world=8, length=256, mp="mixed"),
    "flex-fsdp2-full": dict(FLEX, world=8, seq=8192, length=256, mp="mixed", ac="full"),
    "transformers-256": dict(HF, length=256),
    "transformers-64": dict(HF, length=64),
    "transformers-16-full": dict(HF, length=16, ac="full", words=1024),
    "transformers-long": dict(HF, seq=8192, length=1024),
    "transformers-full": dict(HF, length=128, ac="full"),
    "transformers-lora": dict(HF, length=128, rank=16, modules=lora.ALL),
}


def sizes(c): return dict(lora.CONFIGS["llama"], vocab_size=c["words"])


def documents(c): return c["bs"] * c["seq"] // c["length"]


class Varlen(lora.Attention):
    def forward(self, x, freqs):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.attention.varlen import varlen_attn
        (b, s, _), ends = x.shape, Varlen.ends
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        q, k, v = q.view(b, s, -1, lora.H), k.view(b, s, -1, lora.H), v.view(b, s, -1, lora.H)
        q, k = lora.turned(q, k, freqs)
        q, k, v = (t.view(b * s, -1, lora.H) for t in (q, k, v))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            o = varlen_attn(q, k, v, ends, ends, Varlen.longest, Varlen.longest, window_size=(-1, 0), enable_gqa=True)
        return self.wo(o.view(b, s, -1))


class Flex(lora.Attention):
    def forward(self, x, freqs):
        b, s, _ = x.shape
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        q, k, v = q.view(b, s, -1, lora.H), k.view(b, s, -1, lora.H), v.view(b, s, -1, lora.H)
        q, k = lora.turned(q, k, freqs)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        o = Flex.attend(q, k, v, block_mask=Flex.mask, enable_gqa=True)
        return self.wo(o.transpose(1, 2).contiguous().view(b, s, -1))


def flex_masks(c, number):
    """The mask by document, made anew for each step."""
    import torchtitan
    from torch.nn.attention.flex_attention import and_masks, create_block_mask, flex_attention
    torchtitan.no_kernels()
    Flex.attend = staticmethod(torch.compile(flex_attention))
    make = torch.compile(create_block_mask)
    causal = lambda b, h, q, k: q >= k
    def before():
        of = number
        own = lambda b, h, q, k: of[b, q] == of[b, k]
        Flex.mask = make(and_masks(causal, own), c["bs"], None, c["seq"], c["seq"], device="cuda")
    return before


class FlashVarlen(torch.autograd.Function):
    """`FlashAttnVarlenFunc` of flash_attn 2.8 (`flash_attn/flash_attn_interface.py`)."""
    @staticmethod
    def forward(ctx, q, k, v, ends, longest, scale):
        out, sums, rng, _, _ = torch.ops.aten._flash_attention_forward(
            q, k, v, ends, ends, longest, longest, 0.0, True, False, scale=scale)
        ctx.save_for_backward(q, k, v, out, sums, ends, rng)
        ctx.longest, ctx.scale = longest, scale
        return out

    @staticmethod
    def backward(ctx, gradient):
        q, k, v, out, sums, ends, rng = ctx.saved_tensors
        made = torch.ops.aten._flash_attention_backward(
            gradient, q, k, v, out, sums, ends, ends, ctx.longest, ctx.longest, 0.0, True, rng, rng.new_empty(0), scale=ctx.scale)
        return *made, None, None, None


def flash_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False, **rest):
    return FlashVarlen.apply(q, k, v, cu_seqlens_q, max_seqlen_q, softmax_scale)


def never(*arguments, **options): raise NotImplementedError("packed documents take the kernel of variable lengths")


def build_transformers(c):
    package = types.ModuleType("flash_attn")
    package.flash_attn_func, package.flash_attn_varlen_func, package.__version__ = never, flash_varlen, "2.8.3"
    package.flash_attn_with_kvcache = never
    padding = types.ModuleType("flash_attn.bert_padding")
    padding.pad_input = padding.unpad_input = never
    package.bert_padding = padding
    import importlib.machinery
    package.__spec__ = importlib.machinery.ModuleSpec("flash_attn", None)
    sys.modules.update({"flash_attn": package, "flash_attn.bert_padding": padding})
    from transformers import AutoConfig, AutoModelForCausalLM, modeling_flash_attention_utils as utils, modeling_utils
    utils._lazy_imports = lambda *arguments, **options: (never, flash_varlen, None, never, never)
    config = AutoConfig.for_model(**sizes(c))
    modeling_utils.PreTrainedModel._flash_attn_2_can_dispatch = lambda self, *a, **k: True
    modeling_utils.PreTrainedModel._flash_attn_can_dispatch = lambda self, *a, **k: True
    modeling_utils.PreTrainedModel._check_and_adjust_attn_implementation = lambda self, given, *a, **k: "flash_attention_2"
    with torch.device("meta"):
        m = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="flash_attention_2")
    m.to_empty(device="cuda")
    m.train()
    assert m.config._attn_implementation == "flash_attention_2", m.config._attn_implementation
    if c["rank"]:
        from peft import LoraConfig, get_peft_model
        adapters = LoraConfig(r=c["rank"], lora_alpha=2 * c["rank"], lora_dropout=0.0, target_modules=c["modules"], task_type="CAUSAL_LM")
        m = get_peft_model(m, adapters, autocast_adapter_dtype=True)
    if c["ac"] == "full": (m.get_base_model() if c["rank"] else m).gradient_checkpointing_enable(dict(use_reentrant=False))
    return m


def run(c):
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils import flop_counter
    torch.backends.cuda.enable_cudnn_sdp(False)
    plain_bool = torch.Tensor.__bool__
    torch.Tensor.__bool__ = lambda t: True if t.is_cuda else plain_bool(t)
    if c["world"] > 1: dist.init_process_group("fake", rank=0, world_size=c["world"], store=FakeStore())
    rows = (1, c["bs"] * c["seq"]) if c["code"] == "transformers" else (c["bs"], c["seq"])
    ends = torch.empty(documents(c) + 1, dtype=torch.int32, device="cuda")
    before = lambda: None
    if c["code"] == "transformers": m = build_transformers(c)
    else:
        lora.V = c["words"]
        lora.Attention = {"varlen": Varlen, "flex": Flex}[c["code"]]
        Varlen.ends, Varlen.longest = ends, c["length"]
        if c["ac"] == "selective_op": lora.selective = selective
        m = lora.build_tune(c)
    ids, labels, number = (torch.zeros(rows, dtype=torch.long, device="cuda") for _ in range(3))
    if c["code"] == "flex": before = flex_masks(c, number)
    else: del number
    trained = [p for p in m.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=c["fused"], foreach=not c["fused"])
    places = torch.zeros(rows, dtype=torch.long, device="cuda") if c["code"] == "transformers" else None
    phases = {}

    def mark(name):
        s = torch.cuda.memory_stats()
        phases[name] = dict(peak=s["allocated_bytes.all.peak"], end=s["allocated_bytes.all.current"])
        torch.cuda.reset_peak_memory_stats()

    def forward():
        before()
        if c["code"] != "transformers": return lora.ce_loss(m(ids), labels)
        return m(input_ids=ids, position_ids=places, labels=labels, use_cache=False, cu_seq_lens_q=ends, cu_seq_lens_k=ends,
                 max_length_q=c["length"], max_length_k=c["length"]).loss

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
    of_phases = {k: v for k, v in phases.items() if k != "init"}
    got = dict(c, trained=sum(p.numel() for p in trained), peak_allocated=max(p["peak"] for p in of_phases.values()), peak_reserved=reserved,
               phases=of_phases, init=phases["init"]["end"])
    if c["code"] == "transformers": got["config"] = sizes(c)
    if c["code"] != "flex":
        # What `cu_seqlens` holds cannot be read here: it is told.
        flop_counter._offsets_to_lengths = lambda ends, longest: [c["length"]] * documents(c)
        with flop_counter.FlopCounterMode(display=False) as counter: forward().backward()
        got["flops"] = counter.get_total_flops()
    return got


def selective():
    """torchtitan's operator-level policy, which saves what `varlen_attn` returns."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
    import torch.nn.attention.varlen
    save = {torch.ops.aten.mm.default, torch.ops.torch_attn._varlen_attn.default}

    def make():
        meta = {True: 0, False: 0}

        def policy(ctx, func, *args, **kwargs):
            if func == torch.ops.aten.mm.default: meta[ctx.is_recompute] += 1
            kept = func in save and not (func == torch.ops.aten.mm.default and meta[ctx.is_recompute] % 2 == 0)
            return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
        return policy
    return create_selective_checkpoint_contexts(make())


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
    out, wanted = sys.argv[1], sys.argv[2:]
    cases = []
    for name, over in CASES.items():
        if wanted and name not in wanted: continue
        got = dict(id=name, **child({**lora.BASE, "words": 32000, **over}))
        print(name, got.get("error") or (got["peak_allocated"], got["peak_reserved"]), flush=True)
        cases.append(got)
    note = "torch " + torch.__version__
    with open(out, "w") as file:
        file.write('{"note": %s, "cases": [\n%s\n]}\n' % (json.dumps(note), ",\n".join(json.dumps(case) for case in cases)))
