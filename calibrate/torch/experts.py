"""Matmuls of experts: one kernel for all of them, in bf16 and in fp8 with a scale for each row.

For R rows sorted by expert, K inputs and N outputs, weights stored (E, N, K) as in nn.Linear:

  forward          y (R, N)     = x (R, K) · w[e]ᵀ      offsets cut the rows
  input_gradient   dx (R, K)    = dy (R, N) · w[e]
  weight_gradient  dw (E, N, K) = dyᵀ (N, R) · x (R, K)  offsets cut the dot products

These are the calls that autograd makes of `grouped_mm(x, w.transpose(-2, -1), offs=…)`. In fp8 each gets operands in the layout
that the kernel asks for; casts and transposes are not in the time (fp8.py has them).

To add a shape, add a line to `plan`. FLOPs are 2 R K N in all passes.
"""

import random

from models import MODELS
from points import Point, run, torch

ROWS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # of an expert
EXPERTS = (8, 16, 32, 64, 128, 256)
PASSES = ("forward", "input_gradient", "weight_gradient")
LARGEST_BYTES = 60 << 30  # of a call's operands and result


def matmuls(model):
    """Gate and up projection as one, and the down projection: (N, K)."""
    return {"gate_up": (2 * model.F, model.D), "down": (model.D, model.F)}


def bytes_of(what):
    e, rows, n, k = what["experts"], what["experts"] * what["rows"], what["n"], what["k"]
    return (rows * (n + k) + e * n * k) * (1 if what["dtype"].startswith("fp8") else 2)


def priority(model, experts, rows, dtype):
    """The model's own experts over few rows first, in bf16; then its share under expert parallelism; then the rest."""
    own = experts == model.E
    share = experts in (model.E // 8, model.E // 4)
    if rows in (128, 512, 2048):
        if own:
            return 0 if dtype == "bf16" else 1
        return 2 if share else 4
    if own or (share and rows in (16, 1024, 4096)):
        return 3 if dtype == "bf16" else 4
    return 5


def plan(tiny):
    models = [MODELS["tiny"]] if tiny else [model for model in MODELS.values() if not model.name.startswith("tiny")]
    rows_of = (16, 64) if tiny else ROWS
    experts_of = (2, 8) if tiny else EXPERTS
    points = {}

    def add(priority, regime="burst", **what):
        point = Point({"grouped_mm": what}, priority, regime)
        if bytes_of(what) <= LARGEST_BYTES:
            points.setdefault(point.key(), point)

    for model in models:
        for matmul, (n, k) in matmuls(model).items():
            for dtype in ("bf16", "fp8_row"):
                for pass_ in PASSES:
                    shape = dict(model=model.name, matmul=matmul, n=n, k=k, dtype=dtype)
                    shape["pass"] = pass_
                    for experts in experts_of:
                        for rows in rows_of:
                            rank = priority(model, experts, rows, dtype)
                            add(rank, experts=experts, rows=rows, routing="balanced", **shape)
                    for rows in (64,) if tiny else (128, 1024):  # the same rows in all, spread unevenly
                        for experts in {model.E, max(1, model.E // 8)}:
                            add(1, experts=experts, rows=rows, routing="uneven", **shape)
                    if dtype == "bf16" or matmul == "gate_up":
                        first = dtype == "bf16" and matmul == "gate_up"
                        rows = 64 if tiny else 1024
                        add(1 if first else 3, "sustained", experts=model.E, rows=rows, routing="balanced", **shape)
    return list(points.values())


def counts(what):
    """Rows of each expert, multiples of 16. Uneven: shares of a log-normal with sigma 1, the same each time."""
    experts, rows = what["experts"], what["rows"]
    if what["routing"] == "balanced":
        return [rows] * experts
    draw = random.Random(experts * 1000003 + rows)
    shares = [draw.lognormvariate(0.0, 1.0) for _ in range(experts)]
    tiles, total = experts * rows // 16, sum(shares)
    whole = [int(share / total * tiles) for share in shares]
    whole[whole.index(max(whole))] += tiles - sum(whole)
    return [16 * tile for tile in whole]


def grouped_mm():
    """The public function where there is one (PyTorch 2.10), else the private."""
    return getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm


def bf16_call(what, pool, offsets):
    e, rows, n, k = what["experts"], what["experts"] * what["rows"], what["n"], what["k"]
    mm = grouped_mm()
    if what["pass"] == "forward":
        x, w = pool.take(rows, k), pool.take(e, n, k)
        return lambda: mm(x, w.transpose(-2, -1), offs=offsets)
    if what["pass"] == "input_gradient":
        dy, w = pool.take(rows, n), pool.take(e, n, k)
        return lambda: mm(dy, w, offs=offsets)
    dy, x = pool.take(rows, n), pool.take(rows, k)
    return lambda: mm(dy.t(), x, offs=offsets)


def scaled_grouped_mm(a, b, scale_a, scale_b, offsets):
    """fp8 with a scale for each row of `a` and each column of `b`."""
    if hasattr(torch, "_scaled_grouped_mm"):
        return torch._scaled_grouped_mm(a, b, scale_a, scale_b, offs=offsets, out_dtype=torch.bfloat16, use_fast_accum=True)
    from torch.nn.functional import ScalingType, scaled_grouped_mm as call

    row = ScalingType.RowWise
    return call(a, b, scale_a, row, scale_b, row, offs=offsets, output_dtype=torch.bfloat16, use_fast_accum=True)


def fp8_call(what, pool, offsets):
    """`b` has to be column-major: what is taken from the pool is its transpose."""
    e, rows, n, k = what["experts"], what["experts"] * what["rows"], what["n"], what["k"]
    ones = lambda *shape: torch.ones(shape, device="cuda")
    if what["pass"] == "forward":
        a, b = pool.take(rows, k), pool.take(e, n, k).transpose(-2, -1)
        scale_a, scale_b = ones(rows), ones(e, n)
    elif what["pass"] == "input_gradient":
        a, b = pool.take(rows, n), pool.take(e, k, n).transpose(-2, -1)
        scale_a, scale_b = ones(rows), ones(e, k)
    else:  # one scale for each row of each expert's part
        a, b = pool.take(n, rows), pool.take(k, rows).t()
        scale_a, scale_b = ones(n * e), ones(k * e)
    return lambda: scaled_grouped_mm(a, b, scale_a, scale_b, offsets)


pools = {}


def measure(point, board, settings):
    from pool import Pool, copies
    from timing import timed

    what = point.what["grouped_mm"]
    fp8 = what["dtype"] == "fp8_row"
    if what["dtype"] not in pools:
        pools[what["dtype"]] = Pool(settings.tiny, torch.float8_e4m3fn if fp8 else torch.bfloat16, share=12 if fp8 else 6)
    pool = pools[what["dtype"]]
    rows = counts(what)
    offsets = torch.tensor(rows).cumsum(0).to(device="cuda", dtype=torch.int32)
    make = fp8_call if fp8 else bf16_call
    calls = [make(what, pool, offsets) for _ in range(copies(bytes_of(what)))]
    row = timed(calls, point.regime, board)
    flops = 2 * sum(rows) * what["n"] * what["k"]
    return row | {"flops": flops, "tflops_per_s": round(flops / row["median"] / 1e6, 1), "bytes": bytes_of(what), "most_rows": max(rows)}


if __name__ == "__main__":
    run(__doc__, plan, measure)
