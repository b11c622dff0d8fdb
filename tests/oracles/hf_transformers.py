"""What Hugging Face transformers' own decoders allocate in a training step under FSDP2, on a GPU that is not there.

`AutoModelForCausalLM.from_config` with dropouts as a config without their keys has them, in training mode; `fully_shard` of
each decoder block, then of the root; parameters in fp32, cast to bf16, reduced in fp32; AdamW; rank 0 of 8; third step. The
CUDA runtime and cuBLAS are stubs that do nothing (LD_PRELOAD), collectives are those of the `fake` process group. PyTorch's
allocator, autograd, FSDP2, Dynamo, inductor and transformers are the real ones; generated Triton kernels are neither compiled
nor run. Without cuDNN: its attention is off. Where transformers asks the device whether something holds (whether sequences are
packed, whether a mask masks nothing), the answer is yes to "it is the plain case".

    python hf_transformers.py OUT.json [ids]
"""
import json, os, pickle, re, sys, warnings

import torch
import torch.distributed as dist

BASE = dict(world=8, bs=1, seq=2048, mode="plain", loss="inside", held="output", attention=None, reentrant=None)
W = dict(vocab_size=32000, num_hidden_layers=3)
CONFIGS = {
    "llama": dict(W, model_type="llama", hidden_size=2048, intermediate_size=5632, num_attention_heads=16, num_key_value_heads=4,
                  max_position_embeddings=4096),
    "gpt2": dict(model_type="gpt2", vocab_size=32000, n_embd=1024, n_layer=3, n_head=16, n_positions=2048),
    "gemma": dict(W, model_type="gemma", hidden_size=1536, intermediate_size=6144, num_attention_heads=8, num_key_value_heads=1,
                  head_dim=256, max_position_embeddings=8192),
    "gemma2": dict(W, model_type="gemma2", hidden_size=1536, intermediate_size=6144, num_attention_heads=8, num_key_value_heads=4,
                   head_dim=256, max_position_embeddings=8192, sliding_window=1024),
    "mistral": dict(W, model_type="mistral", hidden_size=2048, intermediate_size=7168, num_attention_heads=16,
                    num_key_value_heads=4, sliding_window=None, max_position_embeddings=8192),
    "mistral_window": dict(W, model_type="mistral", hidden_size=2048, intermediate_size=7168, num_attention_heads=16,
                           num_key_value_heads=4, sliding_window=1024, max_position_embeddings=8192),
    "qwen2": dict(W, model_type="qwen2", hidden_size=1536, intermediate_size=6144, num_attention_heads=12, num_key_value_heads=2,
                  tie_word_embeddings=True, max_position_embeddings=4096),
    "qwen3": dict(W, model_type="qwen3", hidden_size=1024, intermediate_size=3072, num_attention_heads=16, num_key_value_heads=8,
                  head_dim=128, max_position_embeddings=4096),
    "gemma3": dict(W, model_type="gemma3_text", hidden_size=1152, intermediate_size=6912, num_attention_heads=4,
                   num_key_value_heads=1, head_dim=256, sliding_window=512, max_position_embeddings=8192,
                   layer_types=["sliding_attention", "sliding_attention", "full_attention"]),
    "phi3": dict(W, model_type="phi3", hidden_size=2048, intermediate_size=5632, num_attention_heads=16, num_key_value_heads=16,
                 max_position_embeddings=4096, pad_token_id=None),
    "olmo2": dict(W, model_type="olmo2", hidden_size=2048, intermediate_size=5632, num_attention_heads=16, num_key_value_heads=16,
                  max_position_embeddings=4096),
    "gpt_neox": dict(W, model_type="gpt_neox", hidden_size=2048, intermediate_size=8192, num_attention_heads=16,
                     max_position_embeddings=2048),
    "opt": dict(W, model_type="opt", hidden_size=1024, ffn_dim=4096, num_attention_heads=16, word_embed_proj_dim=1024,
                max_position_embeddings=2048),
    "bloom": dict(model_type="bloom", vocab_size=32000, hidden_size=1024, n_layer=3, n_head=16),
    "falcon": dict(W, model_type="falcon", hidden_size=2048, num_attention_heads=16, multi_query=True, parallel_attn=True, bias=False),
    "falcon_new": dict(W, model_type="falcon", hidden_size=2048, num_attention_heads=16, num_kv_heads=4, bias=False,
                       new_decoder_architecture=True),
    "mpt": dict(model_type="mpt", vocab_size=32000, d_model=1024, n_layers=3, n_heads=16, max_seq_len=2048),
}
CASES = {}
for name in CONFIGS:
    CASES[name] = {}
    CASES[name + "-again"] = dict(mode="checkpointed")
    CASES[name + "-compiled"] = dict(mode="compiled")
for name in ["llama", "gpt2", "gemma2"]:
    CASES[name + "-outside"] = dict(loss="outside")
    CASES[name + "-loss-only"] = dict(held="loss")
    CASES[name + "-single"] = dict(world=1)
for name in ["llama", "gpt2", "gemma2", "gpt_neox"]:
    CASES[name + "-eager"] = dict(attention="eager")
CASES["gemma2-eager-again"] = dict(attention="eager", mode="checkpointed")
CASES["llama-reentrant"] = dict(mode="checkpointed", reentrant=True)
CASES["llama-long"] = dict(bs=2, seq=4096)
for name in ["mistral_window", "gemma3", "bloom", "gpt2", "mpt"]: CASES[name + "-batch"] = dict(bs=2, seq=1024)
for name, over in CASES.items():
    over["model"] = next(m for m in sorted(CONFIGS, key=len, reverse=True) if name == m or name.startswith(m + "-"))


def no_triton():
    """Inductor's kernels are neither compiled nor run, and the target is an H100's."""
    import triton
    from torch._inductor.async_compile import AsyncCompile
    from triton.backends.compiler import GPUTarget

    class Driver:
        def __getattr__(self, name): return lambda *a, **k: 0
        def get_current_target(self): return GPUTarget("cuda", 90, 32)

    class Launched:
        def run(self, *a, **k): pass
        def __getattr__(self, name): return Launched()
        def __call__(self, *a, **k): pass

    triton.runtime.driver.set_active(Driver())
    AsyncCompile.triton = lambda self, *a, **k: Launched()


def blocks(model):
    body = model.base_model
    body = getattr(body, "decoder", body)
    for name in ("layers", "h", "blocks"):
        if hasattr(body, name): return getattr(body, name)


def build(c):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from transformers import AutoConfig, AutoModelForCausalLM
    keys = dict(CONFIGS[c["model"]])
    config = AutoConfig.for_model(**keys)
    single = c["world"] == 1
    with torch.device("meta"):
        asked = dict(attn_implementation=c["attention"]) if c["attention"] else {}
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if single else torch.float32, **asked)
    model.train()
    if c["mode"] == "checkpointed":
        model.gradient_checkpointing_enable(*([dict(use_reentrant=c["reentrant"])] if c["reentrant"] is not None else []))
    if c["mode"] == "compiled":
        for block in blocks(model): block.compile(fullgraph=True)
    if not single:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in blocks(model): fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    model.to_empty(device="cuda")
    if tied: model.get_output_embeddings().weight = model.get_input_embeddings().weight
    return model, config, keys


def operators(profile):
    """Who allocates: the innermost operator and the backward node or part of FSDP around it; and when such parts begin and end."""
    made, parts = [], []

    def walk(event, op, around):
        kind, name = event.tag.name, event.name
        if kind == "Allocation" and event.extra_fields.alloc_size > 0 and "cuda" in str(event.extra_fields.device).lower():
            made.append((event.start_time_ns, op, around))
        if name.startswith("autograd::engine::evaluate_function: "): around = name.split(": ")[1]
        elif name.startswith("FSDP::"): around = name
        elif kind == "TorchOp": op = name
        if around == name or name.startswith("autograd::engine"): parts.append((event.start_time_ns, event.end_time_ns, around))
        for child in event.children: walk(child, op, around)
    for event in profile.profiler.kineto_results.experimental_event_tree(): walk(event, "", "")
    return sorted(made), sorted(parts)


def run(c):
    import torch.cuda.memory as M
    from torch.nn import functional as F
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils.flop_counter import FlopCounterMode
    torch.backends.cuda.enable_cudnn_sdp(False)
    plain_bool = torch.Tensor.__bool__  # nothing can be read from the device
    torch.Tensor.__bool__ = lambda t: True if t.is_cuda else plain_bool(t)
    if c["mode"] == "compiled": no_triton()
    dist.init_process_group("fake", rank=0, world_size=c["world"], store=FakeStore())
    model, config, keys = build(c)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids, labels = (torch.zeros(c["bs"], c["seq"], dtype=torch.long, device="cuda") for _ in range(2))
    phases = {}

    def mark(name):
        s = torch.cuda.memory_stats()
        phases[name] = dict(peak=s["allocated_bytes.all.peak"], end=s["allocated_bytes.all.current"])
        torch.cuda.reset_peak_memory_stats()

    def forward():
        if c["loss"] == "inside":
            out = model(input_ids=ids, labels=labels, use_cache=False)
            return (out.loss, out) if c["held"] == "output" else (out.loss, None)
        logits = model(input_ids=ids, use_cache=False).logits
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), labels.view(-1)), None

    def step():
        loss, out = forward()
        mark("fwd")
        loss.backward()
        del loss, out
        mark("bwd")
        optimizer.step()
        mark("opt")
        optimizer.zero_grad()
        mark("zero")

    step(); step()
    reserved = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
    torch.cuda.reset_peak_memory_stats()
    named = c["world"] > 1
    M._record_memory_history(enabled="all", context=None, max_entries=10_000_000)
    if named:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile: step()
    else: step()
    reserved = max(reserved, torch.cuda.memory_stats()["reserved_bytes.all.peak"])
    trace = M._snapshot()["device_traces"][0]
    M._record_memory_history(enabled=None)
    got = dict(
        config=keys, model_class=type(model).__name__.removeprefix("FSDP"),
        seq=c["seq"], bs=c["bs"], world=c["world"], mode=c["mode"], loss=c["loss"], held=c["held"], attention=config._attn_implementation,
        use_reentrant=c["reentrant"], params=sum(p.numel() for p in model.parameters()),
        dropouts={k: v for k, v in config.to_dict().items() if ("drop" in k) and isinstance(v, (int, float))},
        peak_allocated=max(p["peak"] for p in phases.values()), peak_reserved=reserved, phases=dict(phases))
    if named: got["events"] = events(trace, *operators(profile))
    if c["mode"] != "compiled":
        counter = FlopCounterMode(display=False)
        with counter: forward()[0].backward()
        got["flops"] = counter.get_total_flops()
    return got


def events(trace, made, parts):
    """Allocations (+) and frees (-) in order: before the blocks, from the first one's forward to the second's, from the last one's
    forward to its backward, and in the second one's backward. Bytes asked for, operator that took them, backward node or part of FSDP
    at work."""
    at = {}
    for start, end, name in parts:
        if found := re.match(r"FSDP::(\w+) \(.*\b(\d+)\)", name): at.setdefault(found.groups(), (start // 1000, end // 1000 + 1))
    last = max(block for _, block in at)
    spans = {
        "before": (0, at["pre_forward", "0"][0]),
        "forward": (at["post_forward", "0"][1], at["post_forward", "1"][1]),
        "between": (at["post_forward", last][1], at["pre_backward", last][0]),
        "backward": (at["pre_backward", "1"][0], at["post_backward_reduce", "1"][1]),
    }
    inside, live, made = {name: [] for name in spans}, {}, iter(made)
    for e in trace:
        if e["action"] == "alloc":
            _, op, around = next(made)
            op = "inductor" if op.startswith("## Call") else op.removeprefix("aten::")
            live[e["addr"]] = op
            row = ["+", e["size"], op, around]
        elif e["action"] == "free_requested":
            now = e["time_us"] * 1000
            around = next((name for start, end, name in reversed(parts) if start <= now <= end), "")
            row = ["-", e["size"], live.pop(e["addr"], "earlier"), around]
        else: continue
        for name, (start, end) in spans.items():
            if start <= e["time_us"] <= end: inside[name].append(row)
    assert next(made, None) is None
    return inside


def child(c):
    """Each case runs in a process of its own, forked after the imports."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try: got = run(c)
        except BaseException as error:
            import traceback
            got = dict(config=c, error=f"{error!r}\n{traceback.format_exc()[-3000:]}")
        with os.fdopen(write, "wb") as pipe: pickle.dump(got, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe: data = pipe.read()
    os.waitpid(pid, 0)
    return pickle.loads(data) if data else dict(config=c, error="died")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    import torch._dynamo, torch._inductor.config, torch.distributed.fsdp, torch.testing._internal.distributed.fake_pg
    import transformers
    out, wanted = sys.argv[1], sys.argv[2:]
    cases = []
    for name, over in CASES.items():
        if wanted and name not in wanted: continue
        got = dict(id=name, **child({**BASE, **over}))
        print(name, got.get("error") or (got["peak_allocated"], got["phases"], {k: len(v) for k, v in got.get("events", {}).items()}), flush=True)
        cases.append(got)
    note = f"transformers {transformers.__version__}, torch {torch.__version__}"
    with open(out, "w") as file:
        file.write('{"note": %s, "cases": [\n%s\n]}\n' % (json.dumps(note), ",\n".join(json.dumps(case) for case in cases)))
