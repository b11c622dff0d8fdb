"""Other decoders than Llama under `torch.autocast` in bf16, with no GPU: PyTorch 2.15's autocast, autograd, caching allocator and
optimizer themselves on "cuda" tensors whose kernels do nothing; one device, third step. Every case is a process of its own. Of a
case's `events`: `+` allocation and `-` free in host order (bytes asked for), `|` and a phase's name at its end.

    python autocast.py OUT.json [ids]      # VERBOSE=1 prints where each block is taken instead
"""
import json, os, sys

import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from fsdp2_pipeline import rotate
from fsdp2_switches import child, frames

SMALL = dict(dim=1024, n_layers=3, n_heads=16, n_kv_heads=16, head_dim=64, ffn=4096, vocab=4096, n_experts=0, rope="none", norm="rms",
             placement="pre", act="silu", gated=True, positions=0, qkv_bias=False, output_bias=False, ffn_bias=False, qk_norm="", tied_head=False)
BIASES = dict(qkv_bias=True, output_bias=True, ffn_bias=True)
GPT2 = dict(SMALL, norm="ln", act="gelu_tanh", gated=False, positions=2048, tied_head=True, **BIASES)
NEOX = dict(SMALL, norm="ln", act="gelu", gated=False, rope="complex", placement="parallel", **BIASES)
QWEN2 = dict(SMALL, rope="complex", n_kv_heads=4, qkv_bias=True)
QWEN3 = dict(SMALL, rope="complex", n_kv_heads=4, qk_norm="head")
OLMO2 = dict(SMALL, rope="complex", placement="post", qk_norm="full")
MPT = dict(SMALL, norm="ln_nobias", act="gelu", gated=False, positions=2048)
RELU2 = dict(SMALL, rope="complex", act="relu2", gated=False)
DEFAULTS = dict(seq=2048, bs=1, world=1, hsdp=1, tp=1, cpu_offload=False, clip=0, fwd_prefetch=0, bwd_prefetch=0, rs_max_input_buffers=1,
                wrap="block", reshard="default", root_reshard="default", mp="fp32", ga=1, ga_sync="last", ac="none", early_stop=True,
                opt="adamw_foreach", cache=True)
CASES = {name + end: (dims, over) for name, dims in dict(gpt2=GPT2, neox=NEOX, qwen2=QWEN2, qwen3=QWEN3, olmo2=OLMO2, mpt=MPT, relu2=RELU2).items()
         for end, over in {"": {}, "_full": dict(ac="full"), "_ga": dict(ga=2), "_no_cache": dict(ac="full", cache=False)}.items()}


def norm(d, width):
    return nn.RMSNorm(width, eps=1e-5) if d["norm"] == "rms" else nn.LayerNorm(width, bias=d["norm"] == "ln")


class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.d, h = d, d["head_dim"]
        linear = lambda heads: nn.Linear(d["dim"], heads * h, bias=d["qkv_bias"])
        self.wq, self.wk, self.wv = linear(d["n_heads"]), linear(d["n_kv_heads"]), linear(d["n_kv_heads"])
        self.wo = nn.Linear(d["n_heads"] * h, d["dim"], bias=d["output_bias"])
        if d["qk_norm"]:
            whole = d["qk_norm"] == "full"
            self.q_norm, self.k_norm = (norm(d, h * (n if whole else 1)) for n in (d["n_heads"], d["n_kv_heads"]))

    def forward(self, x, table):
        b, s, h = *x.shape[:2], self.d["head_dim"]
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        if self.d["qk_norm"] == "full":
            q = self.q_norm(q); k = self.k_norm(k)
        q = q.view(b, s, -1, h); k = k.view(b, s, -1, h); v = v.view(b, s, -1, h)
        if self.d["qk_norm"] == "head":
            q = self.q_norm(q); k = self.k_norm(k)
        if table is not None: q, k = rotate(q, k, table)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        o = o.transpose(1, 2).contiguous().view(b, s, -1)
        return self.wo(o)


class FeedForward(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.d, linear = d, lambda i, o: nn.Linear(i, o, bias=d["ffn_bias"])
        self.w1, self.w2 = linear(d["dim"], d["ffn"]), linear(d["ffn"], d["dim"])
        if d["gated"]: self.w3 = linear(d["dim"], d["ffn"])

    def act(self, x):
        if self.d["act"] == "relu2": return F.relu(x).square()
        return F.silu(x) if self.d["act"] == "silu" else F.gelu(x, approximate="tanh" if self.d["act"] == "gelu_tanh" else "none")

    def forward(self, x):
        return self.w2(self.act(self.w1(x)) * self.w3(x)) if self.d["gated"] else self.w2(self.act(self.w1(x)))


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.placement = d["placement"]
        self.attention, self.feed_forward = Attention(d), FeedForward(d)
        self.attention_norm, self.ffn_norm = norm(d, d["dim"]), norm(d, d["dim"])

    def forward(self, x, table):
        if self.placement == "parallel":
            return x + (self.attention(self.attention_norm(x), table) + self.feed_forward(self.ffn_norm(x)))
        if self.placement == "post":
            h = x + self.attention_norm(self.attention(x, table))
            return h + self.ffn_norm(self.feed_forward(h))
        h = x + self.attention(self.attention_norm(x), table)
        return h + self.feed_forward(self.ffn_norm(h))


class Model(nn.Module):
    def __init__(self, c, d):
        super().__init__()
        self.full = c["ac"] == "full"
        self.tok_embeddings = nn.Embedding(d["vocab"], d["dim"])
        if d["positions"]: self.positions = nn.Embedding(d["positions"], d["dim"])
        if d["rope"] == "complex": self.register_buffer("table", torch.empty(c["seq"], d["head_dim"] // 2, dtype=torch.complex64), persistent=False)
        else: self.table = None
        self.layers = nn.ModuleList(Block(d) for _ in range(d["n_layers"]))
        self.norm = norm(d, d["dim"])
        self.output = nn.Linear(d["dim"], d["vocab"], bias=False)
        if d["tied_head"]: self.output.weight = self.tok_embeddings.weight

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        if hasattr(self, "positions"): h = h + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            h = checkpoint(layer, h, self.table, use_reentrant=False) if self.full else layer(h, self.table)
        return self.output(self.norm(h))


def run(c, d):
    import torch.cuda.memory as M
    verbose = bool(os.environ.get("VERBOSE"))
    torch.backends.cuda.enable_cudnn_sdp(False)  # it needs a device
    with torch.device("cuda"): m = Model(c, d)
    opt = torch.optim.AdamW(m.parameters(), lr=1e-4)
    x, y = (torch.zeros(c["bs"], c["seq"], dtype=torch.long, device="cuda") for _ in range(2))
    mark = lambda name: M._annotate_tensor(x, "|" + name)

    def one():
        for micro in range(c["ga"]):
            at = str(micro) if c["ga"] > 1 else ""
            with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=c["cache"]):
                loss = F.cross_entropy(m(x).flatten(0, 1).float(), y.flatten(0, 1))
            mark("fwd" + at)
            loss.backward()
            del loss
            mark("bwd" + at)
        opt.step()
        mark("opt")
        opt.zero_grad()
        mark("zero")

    for _ in range(2): one()
    M._record_memory_history(enabled="all", context="alloc" if verbose else None, stacks="python", max_entries=10_000_000)
    torch.cuda.reset_peak_memory_stats()
    one()
    events, live = [], {}
    for e in M._snapshot()["device_traces"][0]:
        if e["action"] == "annotate": events.append(e["user_metadata"])
        elif e["action"] == "alloc":
            live[e["addr"]] = e["size"]
            if e["size"]: events.append(f"+{e['size']}" + frames(e))
        elif e["action"] == "free_requested" and (size := live.pop(e["addr"], e["size"])): events.append(f"-{size}")
    peaks = dict(peak_allocated=torch.cuda.max_memory_allocated(), peak_reserved=torch.cuda.max_memory_reserved())
    return dict(**peaks, events="\n".join(events) if verbose else " ".join(events))


if __name__ == "__main__":
    import torch._dynamo, fsdp2_switches  # noqa: F401, E401
    fsdp2_switches.run = run
    made = []
    for name, (dims, over) in CASES.items():
        if sys.argv[2:] and name not in sys.argv[2:]: continue
        config = {**DEFAULTS, **over}
        case = child(config, dims)
        print(name, case.get("peak_allocated"), case.get("peak_reserved"), case.get("error", ""), flush=True)
        if os.environ.get("VERBOSE"): print(case.get("events") or case["traceback"])
        made.append(dict(id=name, model_dims=dims, config=config, **case))
    if not os.environ.get("VERBOSE"):
        json.dump(dict(torch=torch.__version__, cases=made), open(sys.argv[1], "w"), separators=(",", ":"))
