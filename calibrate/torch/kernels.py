"""Kernels whose times are assumed so far: optimizers, embeddings, gather and scatter, long attention, masks of documents, scans.

optimizer   one step over the parameters of layers: AdamW, Adam, SGD with momentum, Muon; fused, foreach, one by one; fp32, bf16
foreach     what training loops run over lists of tensors: norms, clipping, casts, copies
embedding   forward and backward, tokens all alike in frequency or as in text (Zipf)
indexing    gather, scatter and index kernels; cross-entropy over a vocabulary
sdpa        attention forward and backward to 128k tokens, by kernel
flex        FlexAttention, compiled, with masks of documents; making the mask by itself
mixer       Mamba-2 scan, gated DeltaNet, causal convolution, where flash-linear-attention or mamba_ssm is installed

To add a kernel, add a line to `plan` and a case to its function.
"""

from points import Point, run, torch

ATTENTION = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096)]
LAYERS = {"llama3-8b-layer": ATTENTION + [(14336, 4096), (14336, 4096), (4096, 14336), (4096,), (4096,)]}
INDEXING = (
    "gather_columns", "scatter_columns", "index_put", "index_put_accumulate", "index_copy", "cross_entropy", "cross_entropy_backward",
)
OPTIMIZERS = [
    ("AdamW", "fused"), ("AdamW", "foreach"), ("AdamW", "one_by_one"), ("Adam", "fused"), ("SGD", "fused"), ("SGD", "foreach"),
    ("Muon", "one_by_one"),
]
SMALL = [(1024,)] * 200 + [(256, 1024)] * 100


def plan(tiny):
    points = []

    def add(kind, priority, guess_s=0.6, regime="burst", **what):
        points.append(Point({kind: what}, priority, regime, guess_s))

    for name, how in OPTIMIZERS:
        for dtype in ("fp32", "bf16"):
            for tensors in ("tiny",) if tiny else ("llama3-8b-layer", "small"):
                if not (name == "Muon" and tensors == "small"):  # it takes matrices alone
                    priority = 0 if name == "AdamW" and how != "one_by_one" else 2
                    layers = 1 if tensors == "small" else 4
                    add("optimizer", priority, name=name, how=how, dtype=dtype, tensors=tensors, layers=layers)
    for name in ("norm", "clip_grad_norm", "multiply", "cast_to_bf16", "cast_to_fp32", "zero", "add"):
        add("foreach", 1, name=name, tensors="tiny" if tiny else "llama3-8b-layer", layers=4)
    for vocabulary, width in [(512, 128)] if tiny else [(128256, 4096), (151936, 2048), (129280, 7168), (32000, 4096)]:
        for tokens in (256,) if tiny else (8192, 32768):
            for dtype in ("bf16", "fp32"):
                for frequency in ("even", "zipf"):
                    for pass_ in ("forward", "backward"):
                        what = dict(V=vocabulary, D=width, tokens=tokens, dtype=dtype, frequency=frequency, call=pass_)
                        add("embedding", 0 if pass_ == "backward" and dtype == "bf16" else 2, **what)
    for rows, columns in [(64, 512)] if tiny else [(8192, 4096), (8192, 128256), (32768, 7168)]:
        for name in INDEXING:
            add("indexing", 1, name=name, rows=rows, columns=columns)
    for sequence in (256,) if tiny else (8192, 32768, 65536, 131072):
        heads = 4 if tiny else max(8, min(32, (1 << 20) // sequence))
        for kernel in ("flash", "cudnn"):
            for head_dim in (64, 128):
                for pass_ in ("forward", "backward"):
                    what = dict(sequence=sequence, heads=heads, kv_heads=heads // 4, head_dim=head_dim, kernel=kernel, call=pass_)
                    add("sdpa", 0 if head_dim == 128 and sequence >= 32768 else 2, 4.0, **what)
    for sequence in (256,) if tiny else (8192, 32768):
        for documents in (1, 8, 64):
            for pass_ in ("mask", "forward", "backward"):
                what = dict(sequence=sequence, documents=documents, heads=4 if tiny else 32, head_dim=128, call=pass_)
                add("flex", 1 if sequence == 8192 else 3, 8.0, **what)
    for name in ("gated_delta_rule", "causal_conv1d", "mamba2_scan"):
        for sequence in (256,) if tiny else (8192, 32768):
            for pass_ in ("forward", "backward"):
                add("mixer", 3, 15.0, name=name, sequence=sequence, heads=4 if tiny else 32, head_dim=128, call=pass_)
    return points


DTYPES = lambda name: {"fp32": torch.float32, "bf16": torch.bfloat16}[name]


def tensors_of(what, dtype):
    shapes = {"tiny": [(64, 64), (64, 32), (64,)], "small": SMALL}.get(what["tensors"]) or LAYERS[what["tensors"]]
    return [torch.randn(shape, device="cuda", dtype=dtype) for _ in range(what["layers"]) for shape in shapes]


def optimizer(what):
    dtype = DTYPES(what["dtype"])
    parameters = [torch.nn.Parameter(t) for t in tensors_of(what, dtype) if what["name"] != "Muon" or t.dim() == 2]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    options = {"fused": {"fused": True}, "foreach": {"foreach": True}, "one_by_one": {"foreach": False}}[what["how"]]
    if what["name"] == "SGD":
        options["momentum"] = 0.9
    if what["name"] == "Muon":
        options = {}
    return getattr(torch.optim, what["name"])(parameters, lr=1e-6, **options).step


def foreach(what):
    wide = tensors_of(what, torch.float32)
    narrow = [tensor.bfloat16() for tensor in wide]
    parameters = [torch.nn.Parameter(tensor) for tensor in wide]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return {
        "norm": lambda: torch._foreach_norm(narrow), "clip_grad_norm": lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True),
        "multiply": lambda: torch._foreach_mul_(narrow, 1.0),
        "cast_to_bf16": lambda: torch._foreach_copy_(narrow, wide),
        "cast_to_fp32": lambda: torch._foreach_copy_(wide, narrow), "zero": lambda: torch._foreach_zero_(narrow),
        "add": lambda: torch._foreach_add_(wide, wide),
    }[what["name"]]


def tokens_of(what):
    """Token ids, even or by 1 / rank, in a random order of ranks' ids."""
    if what["frequency"] == "even":
        return torch.randint(0, what["V"], (1, what["tokens"]), device="cuda")
    at = torch.rand(1, what["tokens"], device="cuda")
    return ((what["V"] + 1.0) ** at - 1).long().clamp(0, what["V"] - 1)


def either(function, inputs, pass_):
    """Forward without autograd, or backward alone."""
    if pass_ == "forward":
        def forward():
            with torch.no_grad():
                return function()

        return forward
    out = function()
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def embedding(what):
    weight = torch.randn(what["V"], what["D"], device="cuda", dtype=DTYPES(what["dtype"]), requires_grad=True)
    tokens = tokens_of(what)
    return either(lambda: torch.nn.functional.embedding(tokens, weight), [weight], what["call"])


def indexing(what):
    rows, columns, F = what["rows"], what["columns"], torch.nn.functional
    x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
    values, out = torch.randn_like(x), torch.zeros_like(x)
    labels = torch.randint(0, columns, (rows,), device="cuda")
    order = torch.randperm(rows, device="cuda")
    if what["name"].startswith("cross_entropy"):
        x.requires_grad_()
        return either(lambda: F.cross_entropy(x.float(), labels), [x], "backward" if what["name"].endswith("backward") else "forward")
    return {
        "gather_columns": lambda: x.gather(1, labels[:, None]), "scatter_columns": lambda: out.scatter_(1, labels[:, None], values),
        "index_put": lambda: out.index_put_((order,), values), "index_put_accumulate": lambda: out.index_put_((order,), values, accumulate=True),
        "index_copy": lambda: out.index_copy_(0, order, values),
    }[what["name"]]


def heads_of(what, kv_heads=None):
    make = lambda heads: torch.randn(1, heads, what["sequence"], what["head_dim"], device="cuda", dtype=torch.bfloat16, requires_grad=True)
    return make(what["heads"]), make(kv_heads or what["heads"]), make(kv_heads or what["heads"])


def sdpa(what):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = heads_of(what, what["kv_heads"])
    kernel = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[what["kernel"]]

    def attention():
        with sdpa_kernel(kernel):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    return either(attention, [q, k, v], what["call"])


def flex(what):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    S = what["sequence"]
    document = torch.arange(S, device="cuda") * what["documents"] // S

    def mask(batch, head, query, key):
        return (query >= key) & (document[query] == document[key])

    make = lambda: create_block_mask(mask, None, None, S, S, device="cuda", _compile=False)
    if what["call"] == "mask":
        return torch.compile(lambda: create_block_mask(mask, None, None, S, S, device="cuda"))
    q, k, v = heads_of(what)
    blocks, compiled = make(), torch.compile(flex_attention, dynamic=False, fullgraph=True)
    return either(lambda: compiled(q, k, v, block_mask=blocks), [q, k, v], what["call"])


def mixer(what):
    """Scans of packages that PyTorch does not bring; without them the import error is the reason in the file."""
    S, N, H = what["sequence"], what["heads"], what["head_dim"]
    make = lambda *shape: torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_()
    if what["name"] == "causal_conv1d":
        from fla.modules.convolution import causal_conv1d

        x, w = make(1, S, N * H), make(N * H, 4)
        return either(lambda: causal_conv1d(x=x, weight=w, activation="silu")[0], [x, w], what["call"])
    if what["name"] == "gated_delta_rule":
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        q, k, v = make(1, S, N, H), make(1, S, N, H), make(1, S, N, H)
        g, beta = -torch.rand(1, S, N, device="cuda"), torch.rand(1, S, N, device="cuda").bfloat16()
        call = lambda: chunk_gated_delta_rule(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)[0]
        return either(call, [q, k, v], what["call"])
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    x, b, c = make(1, S, N, H), make(1, S, 8, 128), make(1, S, 8, 128)
    dt, a = torch.rand(1, S, N, device="cuda"), -torch.rand(N, device="cuda")
    return either(lambda: mamba_chunk_scan_combined(x, dt, a, b, c, chunk_size=256), [x, b, c], what["call"])


def measure(point, board, settings):
    from timing import timed

    (kind, what), = point.what.items()
    make = {
        "optimizer": optimizer, "foreach": foreach, "embedding": embedding, "indexing": indexing, "sdpa": sdpa, "flex": flex, "mixer": mixer,
    }[kind]
    return timed([make(what)], point.regime, board)


if __name__ == "__main__":
    run(__doc__, plan, measure)
