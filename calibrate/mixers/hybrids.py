"""Training steps of small stacks of mixers, attention and MLPs on one GPU, one JSON line a case.

    python hybrids.py OUT.jsonl --minutes 5     each case in a process of its own; the same command goes on
    python hybrids.py OUT.jsonl --list

A step is `loss = ce(model(x), y); loss.backward(); optimizer.step(); optimizer.zero_grad()`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

from common import BOARD, HERE, NULL, append, conv_stand_in, kernels, machine, quantiles, read, smi

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

BF16 = torch.bfloat16
WARM_UP, FEWEST, BURST = 4, 8, 2.5

# Widths by the published config.json of each model; experts left out, `mlp` is the width of a dense SwiGLU MLP.
WIDTH = {
    "nemotron-h-8b": dict(hidden=4096, mlp=21504, relu2=True, heads=32, kv=8, head=128, vocabulary=131072, ssm=dict(head_dim=64, expand=2, state_size=128, n_groups=8, chunk_size=128)),
    "mamba2-2.7b": dict(hidden=2560, vocabulary=50288, ssm=dict(head_dim=64, expand=2, state_size=128, n_groups=1, chunk_size=256)),
    "qwen3-next": dict(hidden=2048, mlp=5120, heads=16, kv=2, head=256, vocabulary=151936, gdn=dict(expand_v=1.0, head_dim=128, num_heads=16, num_v_heads=32)),
    "kimi-linear": dict(hidden=2304, mlp=9216, heads=32, kv=32, head=128, vocabulary=163840, kda=dict(expand_v=1.0, head_dim=128, num_heads=32)),
    "llama-3-8b": dict(hidden=4096, mlp=14336, heads=32, kv=8, head=128, vocabulary=128256),
}


def case(model, layers, sequence=8192, micro=1, ac="none", **more):
    """`layers`: M Mamba-2, G gated DeltaNet, K Kimi delta, * attention, - MLP; each with a norm and a residual."""
    extra = "".join(f"/{k}-{v}" for k, v in more.items())
    return dict(id=f"{model}/{layers}/{micro}x{sequence}/{ac}{extra}", model=model, layers=layers, sequence=sequence, micro=micro, ac=ac, **more)


CASES = [
    case("nemotron-h-8b", "M-M*-M-"),
    case("qwen3-next", "G-G-G-*-"),
    case("kimi-linear", "K-K-K-*-"),
    case("mamba2-2.7b", "MMMM"),
    case("llama-3-8b", "*-*-*-*-", optimizer="muon"),
    case("llama-3-8b", "llama4", lora="all-linear"),
    case("nemotron-h-8b", "M-M*-M-", ac="full"),
    case("qwen3-next", "G-G-G-*-", ac="full"),
    case("kimi-linear", "K-K-K-*-", ac="full"),
    case("llama-3-8b", "llama4", lora="attention"),
    case("llama-3-8b", "llama4", ac="full", lora="all-linear"),
    case("nemotron-h-8b", "MMM"),
    case("qwen3-next", "G-G-G-*-", micro=4, sequence=4096),
    case("mamba2-2.7b", "MMMM", micro=8, sequence=2048),
    case("llama-3-8b", "*-*-*-*-"),
    case("llama-3-8b", "*-*-*-*-", micro=2, sequence=2048, optimizer="muon"),
    case("nemotron-h-8b", "M-M*-M-", sequence=16384, ac="full"),
    case("mamba2-2.7b", "MMMM", ac="full"),
    case("kimi-linear", "KKKK"),
    case("qwen3-next", "GGGG"),
    case("llama-3-8b", "llama4", micro=4, sequence=2048, lora="all-linear"),
    case("nemotron-h-8b", "MMM", micro=4, sequence=2048),
    case("mamba2-2.7b", "fla-mamba2", sequence=8192),
    case("qwen3-next", "fla-gated_deltanet", sequence=8192),
    case("kimi-linear", "fla-kda", sequence=8192),
]


class Attention(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w = w
        self.q = nn.Linear(w["hidden"], w["heads"] * w["head"], bias=False)
        self.k = nn.Linear(w["hidden"], w["kv"] * w["head"], bias=False)
        self.v = nn.Linear(w["hidden"], w["kv"] * w["head"], bias=False)
        self.o = nn.Linear(w["heads"] * w["head"], w["hidden"], bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, -1, self.w["head"]).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.w["heads"] != self.w["kv"])
        return self.o(y.transpose(1, 2).reshape(b, t, -1))


class Mlp(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.relu2 = w.get("relu2", False)
        self.up = nn.Linear(w["hidden"], w["mlp"], bias=False)
        self.gate = None if self.relu2 else nn.Linear(w["hidden"], w["mlp"], bias=False)
        self.down = nn.Linear(w["mlp"], w["hidden"], bias=False)

    def forward(self, x):
        return self.down(F.relu(self.up(x)).square() if self.relu2 else F.silu(self.gate(x)) * self.up(x))


def mixer(kind, w, at):
    if kind == "*":
        return Attention(w)
    if kind == "-":
        return Mlp(w)
    if kind == "M":
        conv_stand_in()
        from fla.layers.mamba2 import Mamba2

        heads = int(w["hidden"] * w["ssm"]["expand"]) // w["ssm"]["head_dim"]
        return Mamba2(num_heads=heads, hidden_size=w["hidden"], layer_idx=at, backend="triton", **w["ssm"])
    if kind == "G":
        from fla.layers.gated_deltanet import GatedDeltaNet

        return GatedDeltaNet(hidden_size=w["hidden"], layer_idx=at, **w["gdn"])
    from fla.layers.kda import KimiDeltaAttention

    return KimiDeltaAttention(hidden_size=w["hidden"], layer_idx=at, **w["kda"])


class Block(nn.Module):
    def __init__(self, kind, w, at):
        super().__init__()
        self.norm = nn.RMSNorm(w["hidden"], eps=1e-5)
        self.mixer = mixer(kind, w, at)

    def forward(self, x):
        y = self.mixer(self.norm(x))
        return x + (y[0] if isinstance(y, tuple) else y)


class Stack(nn.Module):
    def __init__(self, c, w):
        super().__init__()
        self.full = c["ac"] == "full"
        self.embedding = nn.Embedding(w["vocabulary"], w["hidden"])
        self.layers = nn.ModuleList(Block(kind, w, at) for at, kind in enumerate(c["layers"]))
        self.norm = nn.RMSNorm(w["hidden"], eps=1e-5)
        self.head = nn.Linear(w["hidden"], w["vocabulary"], bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False) if self.full else layer(x)
        return self.head(self.norm(x))


def llama(c, w):
    """transformers' Llama with peft's LoRA: rank 16, base frozen in bf16, adapters in fp32 as peft makes them."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=w["hidden"], intermediate_size=w["mlp"], num_hidden_layers=int(c["layers"].removeprefix("llama")),
        num_attention_heads=w["heads"], num_key_value_heads=w["kv"], vocab_size=w["vocabulary"], rope_theta=5e5,
        max_position_embeddings=c["sequence"], use_cache=False, attn_implementation="sdpa", tie_word_embeddings=False,
    )
    with torch.device("cuda"):
        torch.set_default_dtype(BF16)
        model = LlamaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    if c["ac"] == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    targets = attention if c["lora"] == "attention" else attention + ["gate_proj", "up_proj", "down_proj"]
    return get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM"))


def fla_model(c, w):
    """FLA's own model class at this width, four layers, its defaults (fused norms, fused loss) otherwise."""
    conv_stand_in()
    from fla.models import GatedDeltaNetConfig, GatedDeltaNetForCausalLM, KDAConfig, KDAForCausalLM, Mamba2Config, Mamba2ForCausalLM

    common = dict(hidden_size=w["hidden"], num_hidden_layers=4, vocab_size=w["vocabulary"], use_cache=False, tie_word_embeddings=False)
    kind = c["layers"].removeprefix("fla-")
    if kind == "mamba2":
        heads = int(w["hidden"] * w["ssm"]["expand"]) // w["ssm"]["head_dim"]
        config, maker = Mamba2Config(**common, **w["ssm"], num_heads=heads), Mamba2ForCausalLM
    elif kind == "gated_deltanet":
        config, maker = GatedDeltaNetConfig(**common, **w["gdn"], intermediate_size=w["mlp"]), GatedDeltaNetForCausalLM
    else:
        config, maker = KDAConfig(**common, **w["kda"], intermediate_size=w["mlp"]), KDAForCausalLM
    with torch.device("cuda"):
        return maker(config).to(BF16)


class Training:
    def __init__(self, c):
        w = WIDTH[c["model"]]
        torch.manual_seed(0)
        self.kind = "stack"
        if c["layers"].startswith("fla-"):
            self.model, self.kind = fla_model(c, w), "hf"
        elif "lora" in c:
            self.model, self.kind = llama(c, w), "logits"
        else:
            with torch.device("cuda"):
                self.model = Stack(c, w)
            for module in self.model.modules():  # what Mamba-2, DeltaNet and Kimi keep in fp32 stays so
                for name, p in module.named_parameters(recurse=False):
                    if name not in ("A_log", "dt_bias", "D"):
                        p.data = p.data.to(BF16)
            with torch.no_grad():
                for name, p in self.model.named_parameters():
                    if p.ndim == 2:
                        p.normal_(0.0, 0.02)
        self.model.train()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        if c.get("optimizer") == "muon":
            inner = [p for n, p in self.model.named_parameters() if p.ndim == 2 and "layers." in n]
            ids = {id(p) for p in inner}
            self.optimizers = [
                torch.optim.Muon(inner, lr=1e-4, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
                torch.optim.AdamW([p for p in trained if id(p) not in ids], lr=1e-4, weight_decay=0.1, fused=True),
            ]
        else:
            self.optimizers = [torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.1, fused=True)]
        self.trained, self.all = sum(p.numel() for p in trained), sum(p.numel() for p in self.model.parameters())
        shape = (c["micro"], c["sequence"])
        self.tokens, self.labels = (torch.randint(w["vocabulary"], shape).to("cuda") for _ in range(2))

    def forward(self):
        if self.kind == "hf":
            return self.model(input_ids=self.tokens, labels=self.labels).loss
        logits = self.model(input_ids=self.tokens).logits if self.kind == "logits" else self.model(self.tokens)
        return F.cross_entropy(logits.flatten(0, 1).float(), self.labels.flatten())

    def step(self):
        loss = self.forward()
        loss.backward()
        self.loss = loss.detach()
        del loss
        for optimizer in self.optimizers:
            optimizer.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad()


def steady(step, seconds, least):
    event = lambda: torch.cuda.Event(enable_timing=True)
    marks, end = [event()], time.monotonic() + seconds
    marks[0].record()
    while (time.monotonic() < end or len(marks) <= least) and len(marks) < 500:
        step()
        marks.append(event())
        marks[-1].record()
        if len(marks) > 2:
            marks[-3].synchronize()
    torch.cuda.synchronize()
    return quantiles([a.elapsed_time(b) for a, b in zip(marks, marks[1:])])


def issued(step):
    """How long the host takes to issue a step to an idle device [ms]: median of three."""
    times = []
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1e3)
    torch.cuda.synchronize()
    return round(sorted(times)[1], 3)


def compiled(c):
    """One forward and backward of a short stack, so that its kernels are in the cache."""
    w = WIDTH[c["model"]]
    w["vocabulary"] = 1024
    c = c | {"layers": "".join(sorted(set(c["layers"]) & set("MGK")))}
    loss = Training(c).forward()
    loss.backward()
    torch.cuda.synchronize()


def warm(processes):
    """The stacks' kernels compiled in so many processes; choices made on a crowded device are not kept."""
    seen, running, begun = set(), [], time.monotonic()
    todo = [c for c in CASES if set(c["layers"]) & set("MGK") and "fla" not in c["layers"] and "llama" not in c["layers"]]
    env = os.environ | {"FLA_CACHE_RESULTS": "0", "TRITON_CACHE_AUTOTUNING": "0"}
    for c in todo:
        key = (c["model"], c["micro"] == 1)
        if key in seen:
            continue
        seen.add(key)
        while sum(p.poll() is None for p in running) >= processes:
            time.sleep(0.2)
        running.append(subprocess.Popen([sys.executable, str(HERE / "hybrids.py"), "-", "--compile", json.dumps(c)], env=env))
    codes = [p.wait() for p in running]
    print(f"hybrids compiled in {time.monotonic() - begun:.0f} s, exit codes {codes}", flush=True)


def run(c):
    row = {"kind": "step", **c, "attention": "flash (PyTorch's own)"}
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    training = Training(c)
    row |= {"parameters": training.all, "trained": training.trained, "allocated_before": torch.cuda.memory_allocated()}
    for at in range(1 if NULL else WARM_UP):
        training.step()
        if at == 0:
            row["peak_allocated_first_step"] = torch.cuda.max_memory_allocated()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    if NULL:
        training.step()
    else:
        time.sleep(2.0)
        row["step_ms"] = steady(training.step, BURST, FEWEST)
        row["board"] = smi(*BOARD)
        row["loss"] = float(training.loss)
    stats = torch.cuda.memory_stats()
    row["peak_allocated"], row["peak_reserved"] = stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"]
    row["allocator_retries"], row["allocated_between_steps"] = stats["num_alloc_retries"], torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    loss = training.forward()
    row["allocated_after_forward"] = torch.cuda.memory_allocated()
    loss.backward()
    for optimizer in training.optimizers:
        optimizer.zero_grad()
    del loss
    if not NULL:
        row["issue_ms"] = issued(training.step)
        try:
            row["kernels"] = kernels(training.step)
        except Exception as error:
            row["kernels"] = f"{type(error).__name__}: {error}"[:200]
    return row


def child(text):
    c = json.loads(text)
    try:
        row = run(c)
    except Exception as error:
        words = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        row = {"kind": "step", **c, "failed": words, "where": traceback.format_exc().splitlines()[-10:]}
    print("ROW " + json.dumps(row), flush=True)


def fly(c, limit):
    try:
        done = subprocess.run([sys.executable, str(HERE / "hybrids.py"), "-", "--case", json.dumps(c)], capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"kind": "step", **c, "failed": f"not done after {limit:.0f} s"}
    rows = [line[4:] for line in done.stdout.splitlines() if line.startswith("ROW ")]
    if rows:
        return json.loads(rows[-1])
    return {"kind": "step", **c, "failed": f"exit code {done.returncode}", "where": done.stderr.splitlines()[-8:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", default="", help="cases whose id has one of these words (a,b)")
    parser.add_argument("--case")
    parser.add_argument("--compile")
    parser.add_argument("--warm", type=int, metavar="PROCESSES", help="compiles only")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.case:
        child(options.case)
        return
    if options.compile:
        compiled(json.loads(options.compile))
        return
    if options.warm:
        warm(options.warm)
        return
    todo = [c for c in CASES if any(word in c["id"] for word in options.only.split(","))]
    if options.list:
        print("\n".join(c["id"] for c in todo))
        return
    start, limit = time.monotonic(), 3000 if NULL else 75
    done = {row["id"] for row in read(options.output) if row.get("kind") == "step" and "failed" not in row}
    append(options.output, machine())
    for c in todo:
        left = options.minutes * 60 - (time.monotonic() - start)
        if c["id"] in done:
            continue
        if left < 12:
            print("out of time at", c["id"])
            break
        began = time.monotonic()
        row = fly(c, min(limit, left))
        row["took_s"] = round(time.monotonic() - began, 1)
        append(options.output, row)
        time_words = f"{row['step_ms']['median']:9.2f} ms" if "step_ms" in row else ""
        words = row.get("failed") or f"{time_words} {row['peak_allocated'] / 2**30:7.2f} GiB"
        print(f"{c['id']:55} {words}  ({row['took_s']} s)", flush=True)
    print("done")


if __name__ == "__main__":
    main()
