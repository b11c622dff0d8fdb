"""Transformer layers in plain PyTorch, with and without experts, and a model of a few of them.

Shapes: B batch, S sequence, T = B S tokens, D width, N query heads, K key-value heads, H head dimension, F inner size, E experts,
k experts of a token, R = T k rows. Left out: auxiliary losses, attention sinks and windows of GPT-OSS, dropped tokens.
"""

import torch
import torch.nn.functional as F
from torch import nn

from experts import grouped_mm
from permutation import clamped_geglu_bias, swiglu_probs

Q_RANK, KV_RANK = 1536, 512  # of latent attention


def weight(*shape, dtype=torch.bfloat16):
    return nn.Parameter(torch.empty(shape, device="cuda", dtype=dtype).normal_(0.0, 0.02))


def linear(inputs, outputs):
    layer = nn.Linear(inputs, outputs, bias=False, device="meta", dtype=torch.bfloat16)
    layer.weight = weight(outputs, inputs)
    return layer


def norm(width):
    return nn.RMSNorm(width, eps=1e-6, device="cuda", dtype=torch.bfloat16)


def rotary_table(S, H):
    inverse = 1e6 ** (-torch.arange(0, H, 2, device="cuda").float() / H)
    angles = torch.outer(torch.arange(S, device="cuda").float(), inverse).repeat(1, 2)
    return angles.cos().bfloat16(), angles.sin().bfloat16()


def rotate(x, cosine, sine):
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class Attention(nn.Module):
    """Grouped queries, each head normed as in Qwen 3."""

    def __init__(self, m):
        super().__init__()
        self.m = m
        self.wqkv, self.wo = linear(m.D, (m.N + 2 * m.K) * m.H), linear(m.N * m.H, m.D)
        self.q_norm, self.k_norm = norm(m.H), norm(m.H)

    def forward(self, x_BSD, table):
        m, (B, S, _) = self.m, x_BSD.shape
        q, k, v = self.wqkv(x_BSD).view(B, S, -1, m.H).transpose(1, 2).split([m.N, m.K, m.K], dim=1)
        q, k = rotate(self.q_norm(q), *table), rotate(self.k_norm(k), *table)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=m.N != m.K)
        return self.wo(o.transpose(1, 2).reshape(B, S, -1))


class LatentAttention(nn.Module):
    """DeepSeek's: a third of each query and key is rotary, and that part of the key is shared by all heads."""

    def __init__(self, m):
        super().__init__()
        self.m, self.rope = m, m.H // 3
        self.plain = m.H - self.rope  # also the size of a value
        self.q_down, self.q_up = linear(m.D, Q_RANK), linear(Q_RANK, m.N * m.H)
        self.kv_down, self.kv_up = linear(m.D, KV_RANK + self.rope), linear(KV_RANK, m.N * 2 * self.plain)
        self.q_norm, self.kv_norm, self.wo = norm(Q_RANK), norm(KV_RANK), linear(m.N * self.plain, m.D)

    def forward(self, x_BSD, table):
        m, (B, S, _) = self.m, x_BSD.shape
        q = self.q_up(self.q_norm(self.q_down(x_BSD))).view(B, S, m.N, m.H).transpose(1, 2)
        q_plain, q_rope = q.split([self.plain, self.rope], dim=-1)
        latent, k_rope = self.kv_down(x_BSD).split([KV_RANK, self.rope], dim=-1)
        kv = self.kv_up(self.kv_norm(latent)).view(B, S, m.N, -1).transpose(1, 2)
        k_plain, v = kv.chunk(2, dim=-1)
        k_rope = rotate(k_rope.unsqueeze(1), *table).expand(-1, m.N, -1, -1)
        q = torch.cat([q_plain, rotate(q_rope, *table)], dim=-1)
        k = torch.cat([k_plain, k_rope], dim=-1)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(o.transpose(1, 2).reshape(B, S, -1))


class FeedForward(nn.Module):
    def __init__(self, D, inner):
        super().__init__()
        self.gate_up, self.down = linear(D, 2 * inner), linear(inner, D)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Experts(nn.Module):
    """Router, permutation, two grouped matmuls, and the sum of what a token's experts return."""

    def __init__(self, m, balanced):
        super().__init__()
        self.m, self.balanced = m, balanced
        self.router = linear(m.D, m.E)
        self.gate_up, self.down = weight(m.E, 2 * m.F, m.D), weight(m.E, m.D, m.F)
        self.gate_up_bias = weight(m.E, 2 * m.F, dtype=torch.float32) if m.biases else None
        self.down_bias = weight(m.E, m.D, dtype=torch.float32) if m.biases else None
        self.shared = FeedForward(m.D, m.F * m.shared) if m.shared else None

    def choose(self, x_TD):
        """Weights in fp32 and experts of each token. Balanced: experts in turn, whatever the router says."""
        m, logits = self.m, self.router(x_TD).float()
        scores = {"softmax": lambda: logits.softmax(-1), "softmax_after": lambda: logits, "sigmoid": logits.sigmoid}[m.router]()
        if self.balanced:
            chosen = (torch.arange(x_TD.shape[0] * m.top_k, device=x_TD.device) % m.E).view(-1, m.top_k)
            weights = scores.gather(1, chosen)
        else:
            weights, chosen = scores.topk(m.top_k, dim=-1, sorted=False)
        weights = weights.softmax(-1) if m.router == "softmax_after" else weights / weights.sum(-1, keepdim=True)
        return weights, chosen

    def counts(self, chosen):
        return torch.histc(chosen.float(), bins=self.m.E, min=0, max=self.m.E)

    def forward(self, x_BSD):
        m, x_TD, mm = self.m, x_BSD.flatten(0, 1), grouped_mm()
        weights, chosen = self.choose(x_TD)
        counts = self.counts(chosen)
        order = chosen.flatten().argsort(stable=True)
        token, weights = order // m.top_k, weights.flatten()[order]
        offsets = counts.cumsum(0).to(torch.int32)
        rows = x_TD.index_select(0, token)
        h = mm(rows, self.gate_up.transpose(-2, -1), offs=offsets)
        if m.biases:
            owner = chosen.flatten()[order]
            h = clamped_geglu_bias(h, self.gate_up_bias[owner].to(h.dtype)) * weights[:, None].to(h.dtype)
        else:
            h = swiglu_probs(h, weights)
        y = mm(h, self.down.transpose(-2, -1), offs=offsets)
        if m.biases:
            y = (y + self.down_bias[owner] * weights[:, None]).to(y.dtype)
        out = torch.zeros_like(x_TD).index_add_(0, token, y)
        if self.shared:
            out = out + self.shared(x_TD)
        return out.view_as(x_BSD)


class Layer(nn.Module):
    def __init__(self, m, balanced=False):
        super().__init__()
        self.before_attention, self.before_ffn = norm(m.D), norm(m.D)
        self.attention = LatentAttention(m) if m.latent else Attention(m)
        self.ffn = Experts(m, balanced) if m.E else FeedForward(m.D, m.F)

    def forward(self, x_BSD, table):
        x_BSD = x_BSD + self.attention(self.before_attention(x_BSD), table)
        return x_BSD + self.ffn(self.before_ffn(x_BSD))


class Transformer(nn.Module):
    """`count` layers between an embedding and a head of its own."""

    def __init__(self, m, count, S, balanced=False):
        super().__init__()
        self.embedding = nn.Embedding(m.V, m.D, device="meta", dtype=torch.bfloat16)
        self.embedding.weight = weight(m.V, m.D)
        self.layers = nn.ModuleList(Layer(m, balanced) for _ in range(count))
        self.norm, self.head = norm(m.D), linear(m.D, m.V)
        self.table = rotary_table(S, m.H // 3 if m.latent else m.H)

    def forward(self, tokens_BS):
        x = self.embedding(tokens_BS)
        for layer in self.layers:
            x = layer(x, self.table)
        return self.head(self.norm(x))

    def loss(self, tokens_BS, labels_BS):
        return F.cross_entropy(self(tokens_BS).flatten(0, 1).float(), labels_BS.flatten())
