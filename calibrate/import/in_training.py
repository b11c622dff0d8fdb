#!/usr/bin/env python3
"""How much slower matmuls and attention are where a board trains at its power limit: rows of sustained.csv.

    in_training.py RECEIPTS.jsonl POINTS.jsonl ...

Matmuls: all of one profiled training step of the receipt maker, over what the chip's profile makes of the same matmuls in bursts
(`windtunnel run` with topology.clocks = "burst"). Attention: the calibrator's points, the same kernel in bursts and in a loop; of a
burst only the share is slowed in which the tensor cores are busy, as in `sim/cost/clock.rs`.
"""
import json
import statistics
import subprocess
import sys
import tempfile

MATMULS = ("aten.mm", "extern_kernels.mm")


# Of the tensor cores of H200 in bf16 [FLOP/us].
PEAK = 989.4e6


def factor(what, burst_us, loop_us):
    """The clock's factor, from a causal or full attention kernel in bursts and in a loop."""
    a = what["attention"]
    pairs = a["queries"] * a["keys"] / (2 if a["causal"] else 1)
    flops = (10 if a["backward"] else 4) * a["batch"] * a["heads"] * pairs * a["head_dim"]
    share = flops / PEAK / burst_us
    return 1 / (1 + (loop_us / burst_us - 1) / share)


def burst(path, receipt):
    """Seconds of a receipt's matmuls in bursts."""
    to = ["windtunnel", "receipt", "to-scenario", receipt["id"], "--from", path]
    text = subprocess.run(to, capture_output=True, text=True, check=True).stdout
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text.replace('clocks = "sustained"', 'clocks = "burst"'))
        file.flush()
        run = ["windtunnel", "--quiet", "run", file.name, "--changes", "none", "--json", "-"]
        parts = json.loads(subprocess.run(run, capture_output=True, text=True, check=True).stdout)["parts"]
    return sum(part["busy_s"] for part in parts if part["name"] in MATMULS)


def row(dtype, factors, source):
    """A row of sustained.csv: the median factor, its tenth and ninetieth percentile."""
    factors = sorted(factors)
    at = lambda share: factors[round(share * (len(factors) - 1))]
    median = statistics.median(factors)
    print(f'h200 in training,{dtype},1000.0,{median:.3f},{at(0.1):.3f},{at(0.9):.3f},{len(factors)},"{source}"')


def main():
    receipts, *points = sys.argv[1:]
    factors = []
    for line in open(receipts):
        receipt = json.loads(line)
        parts = receipt["measured"]["raw"]["breakdown"]["parts"]
        factors.append(burst(receipts, receipt) / sum(p["busy_s"] for p in parts if p["name"] in MATMULS))
    row("bf16", factors, "all matmuls of a profiled step of each receipt of tests/receipts/windtunnel-h200.jsonl, over bursts of this table")
    ratios = []
    for path in points:
        measured = [json.loads(line).get("point") for line in open(path)]
        attention = [p for p in measured if p and "attention" in p["what"]]
        bursts = {json.dumps(p["what"]): p["median"] for p in attention if p["regime"] == "burst"}
        loops = [p for p in attention if p["regime"] == "sustained"]
        pairs = [(p["what"], bursts.get(json.dumps(p["what"])), p["median"]) for p in loops]
        ratios += [factor(what, once, long) for what, once, long in pairs if once]
    row("attention", ratios, "cuDNN's kernels of calibrate/measured, in bursts and in loops of the calibrator")


if __name__ == "__main__":
    main()
