"""Kernels of mamba_ssm's scan for `kernels.csv`, out of the steps of `tests/oracles/hybrid-steps.jsonl`.

For each kernel its mean time in one profiled step, and the bytes that the simulator counts for it (`sim/runtime/eager/mamba.rs`).
Usage: python scans.py < ../../tests/oracles/hybrid-steps.jsonl >> kernels.csv
"""
import json
import math
import sys

# Heads, head dimension, groups, state and chunk of the models that were run.
MODELS = {"nemotron-h-8b": (128, 64, 8, 128, 128), "mamba2-2.7b": (80, 64, 1, 128, 256)}
PROCESSORS = 132


def moved(model, tokens):
    heads, width, groups, state, chunk = MODELS[model]
    chunks = math.ceil(tokens / chunk)
    inner, group = 2 * tokens * heads * width, 2 * tokens * groups * state
    numbers, states, products = 4 * chunks * heads * chunk, 4 * chunks * heads * width * state, 4 * chunks * groups * chunk * chunk
    ratio = heads // groups
    splits = math.ceil(ratio / max(1, min(math.ceil(chunks * heads / PROCESSORS), ratio)))
    narrow = states // 2
    return {
        ("chunk_scan", False): {"_chunk_scan_fwd_kernel": 2 * inner + narrow + products + group},
        ("chunk_scan", True): {
            "_chunk_scan_chunk_state_bwd_dx_kernel": 3 * inner + group + products + narrow,
            "_chunk_scan_bwd_ddAcs_stable_kernel": 2 * inner + products + chunk // 32 * numbers,
        },
        ("chunk_state", False): {"_chunk_state_fwd_kernel": inner + group + 2 * numbers + states},
        ("chunk_state", True): {
            "_chunk_scan_bwd_dstates_kernel": inner + group + states,
            "_chunk_state_bwd_db_kernel": inner + narrow + splits * 2 * group,
            "_chunk_scan_bwd_dc_kernel": inner + narrow + splits * 2 * group,
            "_chunk_scan_bwd_dcb_kernel": 2 * inner + splits * products,
        },
        ("gated_norm_backward", True): {"_layer_norm_bwd_kernel": 6 * inner},
    }


machine = None
for line in sys.stdin:
    row = json.loads(line)
    if row["kind"] == "machine":
        machine = row
    if row["kind"] != "step" or row["id"].split("/")[0] not in MODELS:
        continue
    times = {name: (calls, total / calls) for name, calls, total in row["kernels"]["longest"]}
    for (family, backward), kernels in moved(row["id"].split("/")[0], row["sequence"]).items():
        for name, size in kernels.items():
            if name in times:
                calls, mean = times[name]
                print(f"{machine['gpu']},{machine['torch']},{family},{backward},{size},,,,,{int(calls)},{mean:.1f},{row['id']}")
