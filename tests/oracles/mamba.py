"""Memory of stacks with Mamba-2 layers, as PyTorch's own allocator has it on a GPU that computes nothing.

Layers are `M` (mamba_ssm's `mamba_split_conv1d_scan_combined`, as its `Mamba2` module calls it), `*` (attention without positions)
and `-` (a feed-forward of squared ReLU), each with a norm and a residual sum, as Nemotron-H lists them. Triton kernels are not
run: what they are given is allocated all the same. The convolution allocates what causal_conv1d 1.5 does.

    PYTHONPATH=<mamba_ssm 2.3.2> python mamba.py > mamba.json
"""
import gc
import json
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import triton.runtime.autotuner as tuner
import triton.runtime.jit as jit
from einops import rearrange
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper


def first(self, *args, **kwargs):
    self.best_config = self.configs[0]


jit.JITFunction.run = lambda self, *args, **kwargs: None
tuner.Autotuner.run = first
tuner.Heuristics.run = lambda self, *args, **kwargs: self.fn.run(*args, **kwargs)

import mamba_ssm.ops.triton.ssd_combined as ssd  # noqa: E402


def conv_forward(x, weight, bias, seq_idx, initial, out, silu):
    return torch.empty_like(x)


def conv_backward(x, weight, bias, dy, seq_idx, initial, dfinal, dx, return_dinitial, silu):
    dweight = torch.zeros_like(weight, dtype=torch.float32)
    dbias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
    return dx, dweight.to(weight.dtype), None if bias is None else dbias.to(bias.dtype), None


ssd.causal_conv1d_fwd_function, ssd.causal_conv1d_bwd_function = conv_forward, conv_backward


class Mamba2(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        inner, bc = c["heads"] * c["head"], 2 * c["groups"] * c["state"]
        self.dt_bias = nn.Parameter(torch.empty(c["heads"]))
        self.A_log = nn.Parameter(torch.empty(c["heads"]))
        self.D = nn.Parameter(torch.empty(c["heads"]))
        self.conv1d = nn.Conv1d(inner + bc, inner + bc, 4, groups=inner + bc, padding=3, bias=c.get("conv_bias", True))
        self.in_proj = nn.Linear(c["dim"], 2 * inner + bc + c["heads"], bias=False)
        self.norm = nn.Module()
        self.norm.weight = nn.Parameter(torch.empty(inner))
        self.out_proj = nn.Linear(inner, c["dim"], bias=False)

    def forward(self, x):
        c = self.c
        zxbcdt = self.in_proj(x)
        A = -torch.exp(self.A_log.float())
        return ssd.mamba_split_conv1d_scan_combined(
            zxbcdt, rearrange(self.conv1d.weight, "d 1 w -> d w"), self.conv1d.bias, self.dt_bias, A, D=self.D,
            chunk_size=c["chunk"], activation="silu", rmsnorm_weight=self.norm.weight, rmsnorm_eps=1e-5,
            outproj_weight=self.out_proj.weight, outproj_bias=None, headdim=c["head"], ngroups=c["groups"],
            norm_before_gate=False,
        )


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.d = c["adim"]
        self.wq = nn.Linear(c["dim"], c["aheads"] * self.d, bias=False)
        self.wk = nn.Linear(c["dim"], c["akv"] * self.d, bias=False)
        self.wv = nn.Linear(c["dim"], c["akv"] * self.d, bias=False)
        self.wo = nn.Linear(c["aheads"] * self.d, c["dim"], bias=False)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = (w(x).view(b, s, -1, self.d) for w in (self.wq, self.wk, self.wv))
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return self.wo(o.transpose(1, 2).contiguous().view(b, s, -1))


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.w1 = nn.Linear(c["dim"], c["ffn"], bias=False)
        self.w2 = nn.Linear(c["ffn"], c["dim"], bias=False)

    def forward(self, x):
        return self.w2(F.relu(self.w1(x)).square())


PART = {"M": Mamba2, "*": Attention, "-": FeedForward}


class Block(nn.Module):
    def __init__(self, letter, c):
        super().__init__()
        self.mixer = PART[letter](c)
        self.norm = nn.RMSNorm(c["dim"], eps=1e-5)

    def forward(self, x):
        return x + self.mixer(self.norm(x))


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok_embeddings = nn.Embedding(c["vocab"], c["dim"])
        self.layers = nn.ModuleList(Block(letter, c) for letter in c["pattern"])
        self.norm = nn.RMSNorm(c["dim"], eps=1e-5)
        self.output = nn.Linear(c["dim"], c["vocab"], bias=False)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h)
        return self.output(self.norm(h))


BASE = dict(pattern="M-M*-M-", dim=2048, heads=64, head=64, groups=8, state=128, chunk=128, aheads=16, akv=4, adim=128, ffn=8192, vocab=32000,
            seq=4096, batch=1, ac="none", world=1)
LARGE = dict(dim=4096, heads=128, ffn=21504, aheads=32, akv=8)
PLAIN = dict(pattern="MMMM", groups=1, chunk=256, dim=2560, heads=80)
CASES = [
    {}, dict(world=8), dict(ac="full"), dict(world=8, ac="full"), dict(seq=8192), dict(batch=4, seq=2048), dict(pattern="M"), dict(pattern="MM"),
    dict(pattern="MMMMMM", world=8), dict(pattern="M*M-"), dict(pattern="-M-M", world=16, ac="full"), PLAIN, PLAIN | dict(world=8), PLAIN | dict(ac="full"),
    PLAIN | dict(seq=8192, batch=2), dict(state=256, seq=8192), dict(state=64), dict(chunk=256), dict(head=128, heads=32), dict(conv_bias=False),
    LARGE, LARGE | dict(world=8), LARGE | dict(world=64, ac="full"), LARGE | dict(seq=16384, ac="full", pattern="MMM*"),
]


def run(case):
    c = BASE | case
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)
    with torch.device("meta"):
        m = Model(c)
    if c["ac"] == "full":
        m.layers = nn.ModuleList(checkpoint_wrapper(layer) for layer in m.layers)
    if c["world"] > 1:
        from torch.testing._internal.distributed.fake_pg import FakeStore
        from torch.distributed.device_mesh import init_device_mesh

        dist.init_process_group("fake", rank=0, world_size=c["world"], store=FakeStore())
        kwargs = dict(mesh=init_device_mesh("cuda", (c["world"],)), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
        for layer in m.layers:
            fully_shard(layer, **kwargs)
        fully_shard(m, **kwargs)
    else:
        m = m.to(torch.bfloat16)
    m.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(m.parameters(), lr=1e-4, foreach=True)
    peaks = {}
    for step in range(3):
        x = torch.zeros(c["batch"], c["seq"], dtype=torch.long, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        loss = F.cross_entropy(m(x).flatten(0, 1).float(), x.flatten(0, 1))
        loss.backward()
        del loss
        optimizer.step()
        optimizer.zero_grad()
        peaks = dict(allocated=torch.cuda.max_memory_allocated(), reserved=torch.cuda.max_memory_reserved())
    return c | peaks | dict(params=sum(p.numel() for p in m.parameters()) if c["world"] == 1 else None)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(run(json.loads(sys.argv[1]))))
    else:
        import subprocess

        rows = []
        for case in CASES:
            done = subprocess.run([sys.executable, __file__, json.dumps(case)], capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(rows[-1], file=sys.stderr)
        print(json.dumps({"torch": torch.__version__, "mamba_ssm": "2.3.2.post1", "cases": rows}, indent=1))
