"""A Llama as codebases write it, in the variants that a scenario names (`[framework] rope, repeat_kv, fused_rms_norm`).

Shapes: B batch, S sequence, D width, N query heads, K key-value heads, H head dimension, F feed-forward width, V vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Shape:
    """A model, by the name that scenarios know it under."""

    name: str  # in scenarios: model.name
    title: str  # in receipts: model.name
    layers: int  # of the whole model
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    tied_head: bool


SHAPES = {
    "1b": Shape("llama-3.2-1b", "Llama 3.2 1B", 16, 2048, 32, 8, 64, 8192, 128256, True),
    "8b": Shape("llama-3-8b", "Llama 3 8B", 32, 4096, 32, 8, 128, 14336, 128256, False),
    "70b": Shape("llama-3-70b", "Llama 3 70B", 80, 8192, 64, 8, 128, 28672, 128256, False),
}


class ComposedNorm(nn.Module):
    """RMSNorm written out, operator by operator as PyTorch 2.6 composes `nn.RMSNorm`: the squares live as long as there."""

    def __init__(self, width, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x):
        wide = x.float()
        squares = wide.pow(2)
        scale = torch.rsqrt(squares.mean(-1, keepdim=True).add_(self.eps))
        del squares
        return (wide * scale).type_as(x) * self.weight


def norm(kind, width):
    return nn.RMSNorm(width, eps=1e-5) if kind == "fused" else ComposedNorm(width, 1e-5)


def complex_table(shape, sequence):
    """Unit complex numbers, S × H/2 (torchtitan's rotary table)."""
    inverse = 500000.0 ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angles = torch.outer(torch.arange(sequence).float(), inverse)
    return torch.polar(torch.ones_like(angles), angles)


def pairs(x_BSNH):
    """As complex numbers in fp32, H / 2 of them."""
    return torch.view_as_complex(x_BSNH.float().reshape(*x_BSNH.shape[:-1], -1, 2))


def rotate_complex(q_BSNH, k_BSKH, table_SH):
    """Both are cast before either is turned, and cast back when both are: torchtitan's order, which the allocator sees."""
    q, k = pairs(q_BSNH), pairs(k_BSKH)
    table = table_SH.view(1, q.shape[1], 1, -1)
    q_turned, k_turned = torch.view_as_real(q * table).flatten(3), torch.view_as_real(k * table).flatten(3)
    return q_turned.type_as(q_BSNH), k_turned.type_as(k_BSKH)


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class Attention(nn.Module):
    def __init__(self, shape, c):
        super().__init__()
        self.head_dim, self.rope, self.repeats = shape.head_dim, c.rope, shape.heads // shape.kv_heads
        self.repeat_kv = c.repeat_kv
        self.wq = nn.Linear(shape.width, shape.heads * shape.head_dim, bias=False)
        self.wk = nn.Linear(shape.width, shape.kv_heads * shape.head_dim, bias=False)
        self.wv = nn.Linear(shape.width, shape.kv_heads * shape.head_dim, bias=False)
        self.wo = nn.Linear(shape.heads * shape.head_dim, shape.width, bias=False)

    def turn(self, q, k, table):
        if self.rope == "complex":
            return rotate_complex(q, k, table)
        cosine, sine = table.view(2, 1, 1, q.shape[2], self.head_dim)
        return q * cosine + rotate_half(q) * sine, k * cosine + rotate_half(k) * sine

    def forward(self, x_BSD, table):
        b, s, _ = x_BSD.shape
        q, k, v = self.wq(x_BSD), self.wk(x_BSD), self.wv(x_BSD)
        q, k, v = (t.view(b, s, -1, self.head_dim) for t in (q, k, v))
        # transformers has heads before tokens when it turns and repeats; torchtitan has tokens before heads.
        heads_first = self.rope == "rotate_half"
        if heads_first:
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        q, k = self.turn(q, k, table)
        if self.repeat_kv:
            k, v = (t.repeat_interleave(self.repeats, dim=1 if heads_first else 2) for t in (k, v))
        if not heads_first:
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return self.wo(o.transpose(1, 2).contiguous().view(b, s, -1))


class FeedForward(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.w1 = nn.Linear(shape.width, shape.ffn, bias=False)
        self.w2 = nn.Linear(shape.ffn, shape.width, bias=False)
        self.w3 = nn.Linear(shape.width, shape.ffn, bias=False)

    def forward(self, x_BSD):
        return self.w2(F.silu(self.w1(x_BSD)) * self.w3(x_BSD))


class Block(nn.Module):
    def __init__(self, shape, c):
        super().__init__()
        self.attention = Attention(shape, c)
        self.feed_forward = FeedForward(shape)
        self.attention_norm = norm(c.norm, shape.width)
        self.ffn_norm = norm(c.norm, shape.width)

    def forward(self, x_BSD, table):
        h_BSD = x_BSD + self.attention(self.attention_norm(x_BSD), table)
        return h_BSD + self.feed_forward(self.ffn_norm(h_BSD))


class Llama(nn.Module):
    """Token embedding, blocks, norm and head. The rotary table is a buffer that `train` fills in."""

    def __init__(self, shape, c):
        super().__init__()
        self.shape = shape
        self.tok_embeddings = nn.Embedding(shape.vocabulary, shape.width)
        self.register_buffer("table", None, persistent=False)
        self.layers = nn.ModuleList(Block(shape, c) for _ in range(c.layers))
        self.norm = norm(c.norm, shape.width)
        self.output = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def make_table(self, c, device):
        """The rotary table on the device: computed on the host, so that nothing is left behind in the allocator."""
        table = complex_table(self.shape, c.sequence)
        if c.rope == "rotate_half":
            angles = table.angle().repeat(1, 2)
            table = torch.stack((angles.cos(), angles.sin())).to(torch.bfloat16)
        self.table = table.to(device)

    def forward(self, tokens_BS):
        h_BSD = self.tok_embeddings(tokens_BS)
        for layer in self.layers:
            h_BSD = layer(h_BSD, self.table)
        return self.output(self.norm(h_BSD))


def parameters(shape, layers):
    """Parameters of the model with so many blocks, and how many of them are in matmuls (no look-up table)."""
    attention = 2 * shape.width * shape.head_dim * (shape.heads + shape.kv_heads)
    block = attention + 3 * shape.width * shape.ffn + 2 * shape.width
    table = shape.vocabulary * shape.width
    matmuls = layers * block + shape.width + table
    return matmuls + (0 if shape.tied_head else table), matmuls
