"""What the power limit costs: loops of nearly all matmuls, of attention, of memory-bound kernels, and mixtures of them.

A loop repeats its parts, each so often that it takes about its share of a period of 20 ms. After three seconds two more are timed:
how long each part takes in the loop, beside how long it takes alone in a burst, and the power and clocks meanwhile. If one power
budget holds for a whole step, a part slows by the loop's clock, not by its own.

A point holds `parts`: name, calls in a period, time of a call in a burst and in the loop [us]; `median` is the period [us]; `series`
has power [W], clock [MHz] and temperature [°C] about every 100 ms from the first second on.
"""

import time

from points import Point, run, torch

PERIOD_S = 0.02
WARM_S, TIMED_S = 3.0, 2.0
LOOPS = {  # shares of a period
    "matmul": {"matmul": 1.0},
    "attention": {"attention": 0.33, "attention_backward": 0.67},
    "memory": {"add": 1.0},
    "matmul_fp8": {"matmul_fp8": 1.0},
    "experts": {"grouped_mm": 1.0},
    "matmul_memory": {"matmul": 0.5, "add": 0.5},
    "matmul_attention": {"matmul": 0.5, "attention": 0.17, "attention_backward": 0.33},
    "dense_step": {"matmul": 0.6, "attention": 0.05, "attention_backward": 0.1, "add": 0.25},
    "experts_step": {"grouped_mm": 0.45, "matmul": 0.15, "attention": 0.05, "attention_backward": 0.1, "add": 0.25},
    "matmul_zeros": {"matmul_zeros": 1.0},
    "matmul_idle": {"matmul": 0.7, "idle": 0.3},
    "matmul_memory_1_3": {"matmul": 0.25, "add": 0.75},
}


def plan(tiny):
    guess_s = 1.0 if tiny else WARM_S + TIMED_S + 1.0
    return [Point({"power": {"loop": name}}, place // 4, "sustained", guess_s) for place, name in enumerate(LOOPS)]


def parts_of(names, tiny):
    """A call for each part. Operands are random numbers: zeros draw less power."""
    n, tokens, heads = (256, 256, 2) if tiny else (8192, 8192, 32)
    random = lambda *shape: torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    calls = {}
    if "matmul" in names:
        a, b = random(n, n), random(n, n)
        calls["matmul"] = lambda: torch.mm(a, b)
    if "matmul_zeros" in names:
        zeros = torch.zeros(n, n, device="cuda", dtype=torch.bfloat16)
        calls["matmul_zeros"] = lambda: torch.mm(zeros, zeros)
    if "matmul_fp8" in names:
        c, d, one = random(n, n).to(torch.float8_e4m3fn), random(n, n).to(torch.float8_e4m3fn).t(), torch.ones((), device="cuda")
        calls["matmul_fp8"] = lambda: torch._scaled_mm(c, d, one, one, out_dtype=torch.bfloat16)
    if "grouped_mm" in names:
        from experts import grouped_mm

        groups, k, m = (4, 64, 128) if tiny else (128, 2048, 1536)
        x, w = random(groups * (16 if tiny else 512), k), random(groups, m, k)
        offsets = torch.arange(1, groups + 1, device="cuda", dtype=torch.int32) * (x.shape[0] // groups)
        calls["grouped_mm"] = lambda: grouped_mm()(x, w.transpose(-2, -1), offs=offsets)
    if "attention" in names:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k_, v = (random(1, heads, tokens, 128).requires_grad_() for _ in range(3))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(q, k_, v, is_causal=True)
        gradient = torch.randn_like(out)

        def attention():
            with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                torch.nn.functional.scaled_dot_product_attention(q, k_, v, is_causal=True)

        calls["attention"] = attention
        calls["attention_backward"] = lambda: torch.autograd.grad(out, (q, k_, v), gradient, retain_graph=True)
    if "add" in names:
        big = random(1 << (16 if tiny else 28))
        calls["add"] = lambda: big.mul_(1.0)
    if "idle" in names:
        calls["idle"] = lambda: torch.cuda._sleep(2_000_000)  # about a millisecond, one warp
    return calls


def one_period(calls, counts):
    """The parts in turn, with an event between them."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(counts) + 1)]
    marks[0].record()
    for mark, (name, count) in zip(marks[1:], counts.items()):
        for _ in range(count):
            calls[name]()
        mark.record()
    return marks


def repeat(calls, counts, seconds, board, series):
    """Periods back to back for a while, at most two ahead of the device."""
    periods, begun, next_look = [], time.monotonic(), 0.0
    while time.monotonic() - begun < seconds or len(periods) < 5:
        periods.append(one_period(calls, counts))
        if len(periods) > 2:
            periods[-3][-1].synchronize()
        if time.monotonic() >= next_look:
            reading = board.read()
            series.append([round(time.monotonic() - begun, 2), reading["power"], reading["clock"], reading["temperature"]])
            next_look = time.monotonic() + 0.1
    torch.cuda.synchronize()
    return periods


def measure(point, board, settings):
    from board import Watch
    from timing import quantiles, timed

    shares = LOOPS[point.what["power"]["loop"]]
    calls = parts_of(set(shares), settings.tiny)
    alone = {name: timed([calls[name]], "burst", board)["median"] for name in shares}
    counts = {name: max(1, round(share * PERIOD_S * 1e6 / max(alone[name], 20.0))) for name, share in shares.items()}
    warm, series = [], []
    repeat(calls, counts, 0.2 if settings.tiny else WARM_S, board, warm)
    watch, before, begun = Watch(board), board.energy_j(), time.monotonic()
    watch.look()
    periods = repeat(calls, counts, 0.2 if settings.tiny else TIMED_S, board, series)
    seconds, after = time.monotonic() - begun, board.energy_j()
    summary = watch.summary()
    known = before is not None and after is not None
    rows = []
    for at, (name, count) in enumerate(counts.items()):
        inside = quantiles([marks[at].elapsed_time(marks[at + 1]) * 1000 / count for marks in periods])
        rows.append({"name": name, "calls": count, "alone_us": alone[name], "in_loop_us": inside["median"]})
    return quantiles([marks[0].elapsed_time(marks[-1]) * 1000 for marks in periods]) | {
        "parts": rows, "energy_per_period_j": (after - before) / len(periods) if known else None,
        "mean_power": (after - before) / seconds if known else None, "board": summary, "series": warm + [[WARM_S + t, *rest] for t, *rest in series],
    }


if __name__ == "__main__":
    run(__doc__, plan, measure)
