"""How long something takes on the device [µs]: batches of calls between two CUDA events.

burst      a few warm-up calls, then batches with rests between them, so that clocks stay high
sustained  two seconds of the same calls first, then batches without rests, so that the board is at its power limit

In front of a batch of short kernels stands a kernel that only waits, so that the host has issued the whole batch when the
device starts on it. Calls are taken in turn from a list; give several, on different memory, and nothing stays in the L2 cache.
"""

import itertools
import math
import statistics
import time

from board import Watch
from points import torch

SOAK_S = 2.0  # of the same calls before sustained samples
SAMPLE_S = {"burst": 0.0004, "sustained": 0.02}
LIMIT_S = {"burst": 0.12, "sustained": 0.6}  # for all samples
FEWEST, MOST = 5, 60  # samples
LONGEST_BATCH = 64  # calls: the launch queue holds about a thousand kernels


def quantiles(values):
    """Median, 10th and 90th percentile; outliers lie more than five median absolute deviations from the median."""
    values = sorted(values)
    at = lambda share: values[round(share * (len(values) - 1))]
    median = statistics.median(values)
    spread = statistics.median(abs(value - median) for value in values)
    return {
        "median": round(median, 4), "p10": round(at(0.1), 4), "p90": round(at(0.9), 4), "repeats": len(values),
        "outliers": sum(abs(value - median) > 5 * spread for value in values) if spread else 0,
    }


def batch(turn, count, spin_s, watch=None):
    """Time of one call [s] in a batch of `count`, and how long the host took to issue one [s]."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if spin_s:
        torch.cuda._sleep(int(spin_s * 2e9))  # cycles of at most 2 GHz
    start.record()
    begun = time.perf_counter()
    for _ in range(count):
        next(turn)()
    issued = (time.perf_counter() - begun) / count
    end.record()
    if watch:
        watch.look()
    end.synchronize()
    return start.elapsed_time(end) / 1000 / count, issued


def soak(turn, seconds, one_s):
    """The calls back to back, the host a tenth of a second ahead at most."""
    end, ahead = time.monotonic() + seconds, max(1, min(1000, int(0.05 / max(one_s, 1e-6))))
    before = None
    while time.monotonic() < end:
        for _ in range(ahead):
            next(turn)()
        mark = torch.cuda.Event()
        mark.record()
        if before:
            before.synchronize()
        before = mark


def timed(calls, regime, board, limit_s=None, spin=True):
    """A point's times on the device, and the board meanwhile."""
    turn = itertools.cycle(calls)
    for _ in range(min(max(2, len(calls)), 4)):
        next(turn)()
    torch.cuda.synchronize()
    one_s, issue_s = batch(turn, 2, 0.0)
    if regime == "sustained":
        soak(turn, SOAK_S, one_s)
    count = max(1, min(LONGEST_BATCH, math.ceil(SAMPLE_S[regime] / max(one_s, 1e-6))))
    hidden = spin and regime == "burst" and issue_s > 0.3 * one_s
    spin_s = min(0.02, 1.5 * issue_s * count + 2e-5) if hidden else 0.0
    fewest = FEWEST if one_s < 0.2 else 3
    watch, samples = Watch(board), []
    end = time.monotonic() + (limit_s or LIMIT_S[regime])
    while len(samples) < fewest or (time.monotonic() < end and len(samples) < MOST):
        if regime == "burst":
            time.sleep(min(0.02, 2 * count * one_s))
        samples.append(batch(turn, count, spin_s, watch)[0] * 1e6)
    return quantiles(samples) | {"batch": count, "spin_us": round(spin_s * 1e6, 1), "board": watch.summary()}


def timed_by_host(call, board, limit_s=0.12, prepare=None):
    """Times on the host's clock [µs]: each call from a drained device, after `prepare` where one is given."""
    for _ in range(3):
        if prepare:
            prepare()
        call()
    samples, end = [], time.monotonic() + limit_s
    while len(samples) < FEWEST or (time.monotonic() < end and len(samples) < 200):
        torch.cuda.synchronize()
        if prepare:
            prepare()
        begun = time.perf_counter()
        call()
        samples.append((time.perf_counter() - begun) * 1e6)
    torch.cuda.synchronize()
    return quantiles(samples) | {"timed_by": "host", "board": board.read() | {"mean_power": None}}
