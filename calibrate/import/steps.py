#!/usr/bin/env python3
"""What kernels took inside real steps, by published traces of PyTorch's profiler: the rows of steps.csv.

    steps.py FOLDER > steps.csv

FOLDER holds the files that tests/traces/index.tsv names. A row is one kind of work in one trace: all kernels of one operator
together, the median over its calls, apart for those that ran alone and those that had an exchange beside them for half of their
time or more. Calls in between are left out, and so are those that nothing tells the layout or the bytes of. Matmuls are
[m, k] by [k, n]; their layout is read from strides, or from the letters in the kernel's name. Matmuls with a side below 256 and
elementwise work on less than 8 MB are left out: they are launches. Bytes of elementwise work are those of its tensors, each once. It is
`elementwise` where PyTorch's kernel for contiguous operands ran, else `elementwise_strided`. What inductor wrote is left out: no trace
tells which of its tensors are written.
"""
import bisect
import collections
import glob
import gzip
import json
import os
import re
import statistics
import sys

# Trace, profile of its chip, files.
TRACES = (
    ("nanogpt-2025-10", "h100-sxm-80gb", "modded-nanogpt-h100-2025-10/*-rank0.json.gz"),
    ("nanogpt-2025-12", "h100-sxm-80gb", "modded-nanogpt-h100-2025-12/rank*.json.gz"),
    ("nanogpt-2026-02", "h100-sxm-80gb", "modded-nanogpt-h100-2026-02/rank0.json.gz"),
    ("qwen-prefill", "h100-sxm-80gb", "tracelens-h100-inference/Qwen*.json.gz"),
    ("timesformer", "h100-sxm-80gb", "tracelens-h100-inference/facebook*.json.gz"),
    ("owlv2", "h100-sxm-80gb", "tracelens-h100-inference/google*.json.gz"),
    ("bert-small", "h100-sxm-80gb", "tracelens-h100-inference/gaunernst*.json.gz"),
    ("megatron-tp8", "a100-sxm-80gb", "megatron-a100-tp8/rank*.json"),
    ("vllm-prefill", "b200-sxm", "tracelens-b200-vllm/*.json.gz"),
)
COLUMNS = (
    "trace,profile,family,dtype,layout,groups,m,n,k,backend,backward,batch,heads,kv_heads,queries,keys,head_dim,causal,window,read,"
    "written,beside,calls,us,p10,p90,kernel"
).split(",")

SIZES = {"c10::BFloat16": 2, "c10::Half": 2, "float": 4, "double": 8, "long int": 8, "int": 4, "unsigned char": 1, "bool": 1}
TYPES = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "c10::Float8_e4m3fn": "fp8", "c10::Float8_e5m2": "fp8", "float": "fp32"}
HOST = ("cuda_runtime", "cuda_driver")
# Smaller matmuls and smaller passes over memory are launches: sides, bytes.
SIDE, BYTES = 256, 8e6
# Shares of a kernel's time beside an exchange: below the first it ran alone, from the second on beside.
ALONE, BESIDE = 0.02, 0.5


def product(numbers):
    result = 1
    for number in numbers:
        result *= number
    return result


def layout(args, a, b, kernels):
    """Of [m, k] by [k, n]: from strides; else cuBLAS' letters, which are of column-major matrices and so of the transposes."""
    strides = args.get("Input Strides")
    if strides:
        def transposed(stride, dims):
            if len(stride) != 2:
                return None
            if stride[1] == 1 and stride[0] >= dims[1]:
                return False
            return True if stride[0] == 1 and stride[1] >= dims[0] else None

        pair = transposed(strides[a], args["Input Dims"][a]), transposed(strides[b], args["Input Dims"][b])
    else:
        letters = [re.search(r"(?:_|^)([tn])([tn])(?:_|$)", name) for name in kernels]
        found = next((match for match in letters if match), None)
        if not found:
            return None
        pair = found.group(2) == "t", found.group(1) == "t"
    return {(False, True): "forward", (False, False): "data_gradient", (True, False): "weight_gradient"}.get(pair)


def matmul(name, args, kernels):
    dims, types, concrete = args["Input Dims"], args["Input type"], args.get("Concrete Inputs", [])
    a = {"aten::mm": 0, "aten::addmm": 1, "aten::_scaled_mm": 0, "aten::bmm": 0, "aten::baddbmm": 1}[name]
    one, other = dims[a], dims[a + 1]
    dtype = TYPES.get(types[a])
    if dtype is None:
        return None
    batched = name in ("aten::bmm", "aten::baddbmm")
    work = {"family": "batched" if batched else "matmul", "dtype": dtype, "groups": one[0] if batched else 1}
    work |= {"m": one[-2], "k": one[-1], "n": other[-1]}
    if batched:
        return work
    if name == "aten::_scaled_mm":
        # Its eighth argument: without fast accumulation it is a gradient's, which of the two nobody says.
        work["layout"] = "forward" if concrete[7] == "True" else "data_gradient"
        return work
    work["layout"] = layout(args, a, a + 1, kernels)
    return work if work["layout"] else None


def attention(name, args):
    dims, concrete = args["Input Dims"], args.get("Concrete Inputs", [])
    if name.startswith("flash_attn_3::"):
        backward = name.endswith("bwd")
        q, k = (dims[1], dims[2]) if backward else (dims[0], dims[1])
        # What is packed is told by the longest sequence: here rows of one length, or documents within them.
        flat = [int(value) for value in concrete if value.isdigit() and int(value) >= 64]
        if len(q) != 3 or not flat:
            return None
        longest = flat[0]
        windows = [value for value in flat if value != longest]
        return {
            "family": "attention", "backend": "flash3", "backward": backward, "batch": q[0] // longest, "heads": q[1],
            "kv_heads": k[1], "queries": longest, "keys": longest, "head_dim": q[2], "causal": "True" in concrete,
            "window": windows[0] if windows else "",
        }
    backward = name.endswith("backward")
    q, k = dims[1 if backward else 0], dims[2 if backward else 1]
    if len(q) != 4:
        return None
    return {
        "family": "attention", "backend": "flash2", "backward": backward, "batch": q[0], "heads": q[2], "kv_heads": k[2],
        "queries": q[1], "keys": k[1], "head_dim": q[3], "causal": concrete[11 if backward else 8] == "True",
    }


def elementwise(name, args):
    """Bytes read and written, where the operator's name and shapes tell."""
    dims, types = args["Input Dims"], args["Input type"]
    tensors = [(dim, SIZES[kind]) for dim, kind in zip(dims, types) if kind in SIZES and dim and not isinstance(dim[0], list)]
    if not tensors:
        return None
    bytes_ = [product(dim) * size for dim, size in tensors]
    largest = max(product(dim) for dim, _ in tensors)
    if name in ("aten::mul", "aten::add", "aten::sub", "aten::silu", "aten::sigmoid", "aten::gelu"):
        wide = max((size for dim, size in tensors if product(dim) == largest))
        return {"family": "elementwise", "read": sum(bytes_), "written": largest * wide}
    if name in ("aten::add_", "aten::mul_"):
        return {"family": "elementwise", "read": sum(bytes_), "written": bytes_[0]}
    if name == "aten::copy_" and len(tensors) == 2:
        strides = args.get("Input Strides", [[], []])
        if strides[0] == strides[1] and strides[0]:
            return {"family": "elementwise", "read": bytes_[1], "written": bytes_[0]}
    if name == "aten::native_layer_norm":
        return {"family": "layer_norm", "read": sum(bytes_), "written": bytes_[0]}
    return None


def work(name, args, kernels):
    if not args.get("Input Dims"):
        return None
    if name in ("aten::mm", "aten::addmm", "aten::_scaled_mm", "aten::bmm", "aten::baddbmm"):
        return matmul(name, args, kernels)
    if name.startswith("flash_attn_3::") or name in ("aten::_flash_attention_forward", "aten::_flash_attention_backward"):
        return attention(name, args)
    return elementwise(name, args)


def read(path):
    """Of one trace: kinds of work with their times [us]."""
    opened = gzip.open(path) if path.endswith(".gz") else open(path, "rb")
    with opened as file:
        document = json.load(file)
    events = [e for e in (document["traceEvents"] if isinstance(document, dict) else document) if e.get("ph") == "X"]
    calls = {e["args"]["correlation"]: e for e in events if e.get("cat") in HOST and e.get("args", {}).get("correlation")}
    threads = collections.defaultdict(list)
    for event in events:
        if event.get("cat") == "cpu_op":
            threads[event["pid"], event["tid"]].append(event)
    inside = {key: nested(ops) for key, ops in threads.items()}
    exchanges, of_op = [], collections.defaultdict(list)
    for kernel in events:
        if kernel.get("cat") != "kernel":
            continue
        if "nccl" in kernel["name"].lower():
            exchanges.append((kernel["ts"], kernel["ts"] + kernel["dur"]))
            continue
        call = calls.get(kernel["args"].get("correlation"))
        if call is None or "GraphLaunch" in call["name"]:
            continue
        find = inside.get((call["pid"], call["tid"]))
        op = find and find(call["ts"])
        if op is not None:
            of_op[id(op)].append((op, kernel))
    exchanges = merged(exchanges)
    for group in of_op.values():
        op, kernels = group[0][0], [kernel for _, kernel in group]
        found = work(op["name"], op.get("args", {}), [kernel["name"] for kernel in kernels])
        total = sum(kernel["dur"] for kernel in kernels)
        if not found or small(found):
            continue
        share = sum(shared(exchanges, kernel) for kernel in kernels) / total
        if share <= ALONE or share >= BESIDE:
            main = max(kernels, key=lambda kernel: kernel["dur"])["name"]
            if found["family"] == "elementwise" and "vectorized_elementwise" not in main:
                found["family"] = "elementwise_strided"
            yield found | {"beside": share >= BESIDE}, total, main


def small(found):
    if found["family"] in ("matmul", "batched"):
        wide = ("m", "n", "k") if found["family"] == "matmul" else ("m", "n")
        return any(found[side] < (SIDE if found["family"] == "matmul" else 64) for side in wide)
    return "read" in found and found["read"] + found["written"] < BYTES


def nested(ops):
    """Finds the innermost operator of a thread at a time."""
    ops.sort(key=lambda op: (op["ts"], -op["dur"]))
    starts, parents, stack = [op["ts"] for op in ops], [], []
    for at, op in enumerate(ops):
        while stack and ops[stack[-1]]["ts"] + ops[stack[-1]]["dur"] < op["ts"]:
            stack.pop()
        parents.append(stack[-1] if stack else None)
        stack.append(at)

    def find(time):
        at = bisect.bisect_right(starts, time) - 1
        while at is not None and at >= 0:
            if ops[at]["ts"] + ops[at]["dur"] >= time:
                return ops[at]
            at = parents[at]
        return None

    return find


def merged(spans):
    result = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1][1] = max(result[-1][1], end)
        else:
            result.append([start, end])
    return result


def shared(spans, kernel):
    start, end = kernel["ts"], kernel["ts"] + kernel["dur"]
    at, total = max(bisect.bisect_right(spans, [start, float("inf")]) - 1, 0), 0
    while at < len(spans) and spans[at][0] < end:
        total += max(0, min(end, spans[at][1]) - max(start, spans[at][0]))
        at += 1
    return total


def main():
    folder = sys.argv[1]
    print(",".join(COLUMNS))
    for trace, profile, pattern in TRACES:
        times, names = collections.defaultdict(list), {}
        for path in sorted(glob.glob(os.path.join(folder, pattern))):
            for found, us, kernel in read(path):
                key = json.dumps(found, sort_keys=True)
                times[key].append(us)
                names[key] = re.sub(r"[<(,].*", "", kernel.removeprefix("void "))[:60]
        for key in sorted(times):
            all_ = sorted(times[key])
            quantile = lambda share: all_[round(share * (len(all_) - 1))]
            row = {"trace": trace, "profile": profile} | json.loads(key)
            row |= {"calls": len(all_), "us": statistics.median(all_), "p10": quantile(0.1), "p90": quantile(0.9)}
            row["kernel"] = names[key]
            print(",".join(text(row.get(column, "")) for column in COLUMNS))


def text(value):
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


main()
