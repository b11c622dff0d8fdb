#!/usr/bin/env python3
"""What PyTorch's own kernels take in training steps: the rows of kernels.csv, from files of the receipt maker.

    kernels.py RECEIPTS.jsonl ... > kernels.csv

A receipt holds the kernels of one profiled step, by part and operator. A row here is one operator of one receipt, whose work
follows from what was trained: bytes that it reads and writes, each once, or the shape of its attention. `us` is the time of one
call, all its kernels together.
"""
import json
import sys

HEAD = "gpu,pytorch,kernel,backward,bytes,batch,heads,sequence,head_dim,calls,us,receipt"


def parameters(model):
    """Of a receipt's model."""
    h, kv = model["hidden"], model["n_kv_heads"] * model["head_dim"]
    block = 2 * h * h + 2 * h * kv + 3 * h * model["ffn"] + 2 * h
    tables = model["vocab"] * h * (1 if model["tied_embeddings"] else 2)
    return model["n_layers"] * block + tables + h


def rows(receipt):
    """Of one receipt: (kernel, backward, bytes or shape, calls, seconds)."""
    model, switches = receipt["model"], receipt["switches"]
    parts = receipt["measured"]["raw"]["breakdown"]["parts"]
    tokens = receipt["batch"]["micro_batch"] * model["seq_len"]
    logits, mixed = tokens * model["vocab"], receipt["precision"]["params"] == "fp32"
    compiled_loss = not any(part["name"] == "aten._log_softmax" for part in parts)
    everything = parameters(model)
    found = {(part["part"], part["name"]): part["busy_s"] for part in parts}

    def one(where, name, kernel, moved):
        if (where, name) in found:
            yield kernel, where == "backward", moved, 1, found[where, name]

    if receipt["optimizer"] == "adamw fused":
        width = 4 if mixed else 2
        name = "fused_optimizer" if mixed else "fused_optimizer_16bit"
        yield from one("optimizer", "aten._fused_adamw_", name, 7 * width * everything)
    if mixed:
        yield from one("backward", "fsdp.chunk_cat", "chunk_cat", (2 + 4) * everything)
    yield from one("forward", "aten._log_softmax", "log_softmax", 8 * logits)
    yield from one("backward", "aten._log_softmax_backward_data", "log_softmax_backward", 12 * logits)
    if compiled_loss:
        for (_, name), seconds in found.items():
            backward = "log_softmax_backward_data" in name
            if backward or "prepare_softmax" in name:
                kernel = "compiled_log_softmax" + ("_backward" if backward else "")
                yield kernel, backward, (4 if backward else 2) * logits, 1, seconds
    # The logits' and the rotations' casts to fp32; those to bf16 have a kernel of their own.
    wide = switches["rope"] == "complex" and receipt["compile"] in (False, "none")
    if wide and not compiled_loss and not mixed:
        casts = found.get(("forward", "aten._to_copy"))
        heads = model["n_layers"] * tokens * (model["n_heads"] + model["n_kv_heads"]) * model["head_dim"]
        # Of each rotation one cast is to fp32 and one is back, as fast as a stream: 6 B an element both.
        if casts:
            back = 6 * heads / STREAM
            yield "widening_cast", False, 6 * (logits + heads), 1, casts - back
    kinds = {"flash2": "flash", "cudnn": "cudnn"}
    attention = f"aten._scaled_dot_product_{kinds[switches['attention']]}_attention"
    shape = (receipt["batch"]["micro_batch"], model["n_heads"], model["seq_len"], model["head_dim"])
    for where, suffix in [("forward", ""), ("recompute", ""), ("backward", "_backward")]:
        # Of every second block a recompute would be another number of calls.
        known = where != "recompute" or receipt["recompute"] == "full"
        if known and (where, attention + suffix) in found:
            yield switches["attention"], suffix != "", shape, model["n_layers"], found[where, attention + suffix]


# Bytes a second of a cast to a narrower type on an H200, by the calibrator's own kernel of 1 GiB
# (calibrate/measured/h200-sxm-141gb-2026-11-26-overlap.jsonl): what is taken off is a tenth of what is left at most.
STREAM = 4.33e12


def main():
    print(HEAD)
    for path in sys.argv[1:]:
        for line in open(path):
            receipt = json.loads(line)
            gpu, pytorch = receipt["hardware"]["device_name"], receipt["framework"]["version"].split()[-1]
            # Work is counted of one micro-batch.
            if "parts" not in receipt["measured"].get("raw", {}).get("breakdown", {}) or receipt["batch"]["grad_accum"] > 1:
                continue
            for kernel, backward, work, calls, seconds in rows(receipt):
                shape = ["", *work] if isinstance(work, tuple) else [work, "", "", "", ""]
                us = seconds / calls * 1e6
                print(gpu, pytorch, kernel, backward, *shape, calls, f"{us:.1f}", receipt["id"], sep=",")


if __name__ == "__main__":
    main()
