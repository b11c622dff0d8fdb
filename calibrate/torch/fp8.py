"""fp8: matmuls with one scale for a tensor, for each row, and for blocks of 128; and quantising and transposing by themselves.

matmul     C (m, n) = A (m, k) · B (k, n) through `torch.nn.functional.scaled_mm`, B column-major, result in bf16. The three passes of a
           linear layer of T tokens are shapes of their own: forward (T, out, in), input gradient (T, in, out), weight gradient
           (out, in, T). The fp8 operands and their scales are made before.
quantise   bf16 in, fp8 and scales out, as eager PyTorch writes it and compiled into one or two kernels
transpose  fp8 in, fp8 in the other order out: what the weight gradient needs of both operands

bf16 matmuls of the same shapes stand beside them, in the same order of the same run.
"""

from points import Point, run, torch

E4M3_LARGEST = 448.0
RECIPES = ("tensor", "row", "block", "block_1x128")
LINEARS = {  # (out, in) of training models
    "llama-8b-qkv": (6144, 4096), "llama-8b-o": (4096, 4096), "llama-8b-gate-up": (28672, 4096), "llama-8b-down": (4096, 14336),
    "llama-70b-qkv": (10240, 8192), "llama-70b-gate-up": (57344, 8192), "llama-70b-down": (8192, 28672),
    "deepseek-q-up": (24576, 1536), "deepseek-kv-up": (32768, 512), "deepseek-o": (7168, 16384), "deepseek-dense-gate-up": (36864, 7168),
}
BLOCK = 128


def plan(tiny):
    linears = {"tiny": (256, 512)} if tiny else LINEARS
    tokens_of = (256,) if tiny else (8192, 2048, 16384)
    points = []

    def add(kind, priority, regime="burst", guess_s=0.0, **what):
        points.append(Point({kind: what}, priority, regime, guess_s))

    for name, (outputs, inputs) in linears.items():
        for tokens in tokens_of:
            passes = {"forward": (tokens, outputs, inputs), "input_gradient": (tokens, inputs, outputs), "weight_gradient": (outputs, inputs, tokens)}
            for pass_, (m, n, k) in passes.items():
                for recipe in ("bf16", *RECIPES):
                    first = tokens == tokens_of[0] and name.startswith(("llama-8b", "tiny"))
                    shape = dict(linear=name, m=m, n=n, k=k, recipe=recipe) | {"pass": pass_}
                    add("scaled_mm", 0 if first else 2 if tokens == tokens_of[0] else 4, **shape)
                    if first and pass_ == "forward" and "gate-up" in name + "gate-up" * tiny:
                        add("scaled_mm", 3, "sustained", **shape)
    shapes = [(512, 256)] if tiny else [(8192, 4096), (8192, 14336), (8192, 8192), (2048, 4096), (16384, 7168), (28672, 4096)]
    for rows, columns in shapes:
        for recipe in RECIPES:
            add("quantise", 1, rows=rows, columns=columns, recipe=recipe, how="eager")
            add("quantise", 3, guess_s=10.0, rows=rows, columns=columns, recipe=recipe, how="compile")
        add("transpose", 1, rows=rows, columns=columns, dtype="fp8")
        add("transpose", 1, rows=rows, columns=columns, dtype="bf16")
    return points


def scaling(recipe):
    """Kinds of scales of A and of B. Blockwise is DeepSeek's: 1 × 128 of inputs, 128 × 128 of weights."""
    from torch.nn.functional import ScalingType as S

    return {
        "tensor": (S.TensorWise, S.TensorWise), "row": (S.RowWise, S.RowWise),
        "block": (S.BlockWise1x128, S.BlockWise128x128), "block_1x128": (S.BlockWise1x128, S.BlockWise1x128),
    }[recipe]


def scales(recipe, m, n, k):
    """Ones, in the order that cuBLASLt reads: the long side of a scale matrix is contiguous."""
    ones = lambda *shape: torch.ones(shape, device="cuda")
    columns = k // BLOCK
    if recipe == "tensor":
        return ones(1), ones(1)
    if recipe == "row":
        return ones(m, 1), ones(1, n)
    a = ones(columns, m).t()
    if recipe == "block":
        padded = -(-columns // 4) * 4  # columns of a 128 x 128 scale matrix lie on multiples of four
        return a, ones(n // BLOCK, padded).t()
    return a, ones(columns, n).t()


def scaled_mm_call(what, pool):
    m, n, k = what["m"], what["n"], what["k"]
    a, b = pool.take(m, k), pool.take(n, k).t()
    if what["recipe"] == "bf16":
        return lambda: torch.mm(a, b)
    scale_a, scale_b = scales(what["recipe"], m, n, k)
    fast = what["recipe"] in ("tensor", "row") and what["pass"] == "forward"
    if not hasattr(torch.nn.functional, "scaled_mm"):  # before PyTorch 2.10: kinds are read off the shapes, and blocks differ
        if what["recipe"] not in ("tensor", "row"):
            raise NotImplementedError("blockwise scales need torch.nn.functional.scaled_mm")
        return lambda: torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast)
    kinds = scaling(what["recipe"])
    call = torch.nn.functional.scaled_mm
    return lambda: call(a, b, scale_a, kinds[0], scale_b, kinds[1], output_dtype=torch.bfloat16, use_fast_accum=fast)


def quantise(x, recipe):
    """fp8 values and scales: the largest magnitude of a tensor, row or block becomes the largest number of e4m3."""
    wide = x.float()
    if recipe == "tensor":
        parts = wide
        largest = parts.abs().amax()
    elif recipe == "row":
        parts = wide
        largest = parts.abs().amax(dim=-1, keepdim=True)
    elif recipe == "block_1x128":
        parts = wide.unflatten(-1, (-1, BLOCK))
        largest = parts.abs().amax(dim=-1, keepdim=True)
    else:
        parts = wide.unflatten(-1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
        largest = parts.abs().amax(dim=(1, 3), keepdim=True)
    scale = largest.clamp(min=1e-12) / E4M3_LARGEST
    return (parts / scale).clamp(-E4M3_LARGEST, E4M3_LARGEST).to(torch.float8_e4m3fn).view(x.shape), scale


pools = {}


def pool_of(dtype, tiny):
    from pool import Pool

    if dtype not in pools:
        pools[dtype] = Pool(tiny, dtype, share=16)
    return pools[dtype]


def measure(point, board, settings):
    from pool import copies
    from timing import timed

    (kind, what), = point.what.items()
    bf16 = pool_of(torch.bfloat16, settings.tiny)
    if kind == "scaled_mm":
        pool = bf16 if what["recipe"] == "bf16" else pool_of(torch.float8_e4m3fn, settings.tiny)
        m, n, k = what["m"], what["n"], what["k"]
        calls = [scaled_mm_call(what, pool) for _ in range(copies(m * k + n * k + 2 * m * n))]
        row = timed(calls, point.regime, board)
        return row | {"flops": 2 * m * n * k, "tflops_per_s": round(2 * m * n * k / row["median"] / 1e6, 1)}
    rows, columns = what["rows"], what["columns"]
    sets = range(copies(3 * rows * columns))
    if kind == "transpose":
        pool = bf16 if what["dtype"] == "bf16" else pool_of(torch.float8_e4m3fn, settings.tiny)
        calls = [lambda x=pool.take(rows, columns): x.t().contiguous() for _ in sets]
    else:
        function = quantise
        if what["how"] == "compile":
            torch._dynamo.reset()
            function = torch.compile(quantise, dynamic=False, fullgraph=True)
        calls = [lambda x=bf16.take(rows, columns): function(x, what["recipe"]) for _ in sets]
    return timed(calls, point.regime, board)


if __name__ == "__main__":
    run(__doc__, plan, measure)
