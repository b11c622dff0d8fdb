#!/usr/bin/env bash
# Library: torch_xla 2.9.0 with torch 2.9.0, under SPMD, on its CPU client with 4 devices. What is read is the program of one device
# as XLA's partitioner (GSPMD) leaves it.
#
# Behaviour: `torch.matmul` of four-dimensional tensors, and `scaled_dot_product_attention`, reach XLA as products of three dimensions:
# sequences and heads become one. If heads are sharded and a device has more than one sequence, this one dimension has no sharding that
# says so. The partitioner gathers queries, keys and values, and every device computes the attention of all heads. `torch.einsum`
# keeps the dimensions apart, and with them the sharding.
#
# Seen: attention of 8 heads of 64, 256 tokens; query, key, value and output weights sharded over 4 devices as Megatron shards them.
# FLOPs of the two matmuls of attention on each device, beside an even share of them:
#     1 sequence,  torch.matmul    33,554,432, an even share,    no gather
#     2 sequences, torch.matmul   268,435,456, 4 times a share,  3 all-gathers
#     2 sequences, SDPA           268,435,456, 4 times a share,  3 all-gathers
#     2 sequences, torch.einsum    67,108,864, an even share,    no gather
#
# Guess: the number of sequences has nothing to do with which device has which heads. A test with one sequence confirms the guess,
# and a run with more does not follow it.
#
# Why it matters: under tensor parallelism of degree t a device computes t times its share of attention, and its forward has three
# gathers more in each layer. Scores of all heads lie on every device. Long sequences suffer most, for attention grows with their square.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.9.0 torch_xla==2.9.0 numpy==2.4.6
export PJRT_DEVICE=CPU CPU_NUM_DEVICES=4 DUMP="$folder/dump" TF_CPP_MIN_LOG_LEVEL=3
export XLA_FLAGS="--xla_dump_to=$DUMP --xla_dump_hlo_as_text --xla_dump_hlo_pass_re=spmd-partition.*"
cat > "$folder/attention.py" <<'PY'
import glob, math, os, re, sys
import numpy as np
import torch, torch.nn.functional as F
import torch_xla, torch_xla.runtime as runtime, torch_xla.distributed.spmd as spmd

TOKENS, HEADS, HEAD, DEVICES = 256, 8, 64, 4
WIDTH = HEADS * HEAD
runtime.use_spmd()
mesh = spmd.Mesh(np.arange(DEVICES), (DEVICES,), ("model",))

def weight(*sharding):
    w = torch.zeros(WIDTH, WIDTH, device="xla")
    spmd.mark_sharding(w, mesh, sharding)
    return w

def attend(how, q, k, v):
    if how == "SDPA":
        return F.scaled_dot_product_attention(q, k, v)
    if how == "einsum":
        return torch.einsum("bhst,bhtd->bhsd", torch.einsum("bhsd,bhtd->bhst", q, k).softmax(-1), v)
    return torch.matmul(torch.matmul(q, k.transpose(2, 3)).softmax(-1), v)

def device_program(how, sequences):
    """One device's program behind the partitioner: FLOPs of products with more than two dimensions, and how many all-gathers."""
    weights = [weight("model", None) for _ in "qkv"] + [weight(None, "model")]
    x = torch.zeros(sequences, TOKENS, WIDTH, device="xla")
    torch_xla.sync(wait=True)
    before = set(glob.glob(os.environ["DUMP"] + "/*"))
    q, k, v = (F.linear(x, w).view(sequences, TOKENS, HEADS, HEAD).transpose(1, 2) for w in weights[:3])
    out = F.linear(attend(how, q, k, v).transpose(1, 2).reshape(sequences, TOKENS, WIDTH), weights[3])
    torch_xla.sync(wait=True)
    (program,) = (f for f in set(glob.glob(os.environ["DUMP"] + "/*")) - before if "after_spmd-partitioning" in f)
    text = open(program).read()
    sizes = lambda written: [int(size) for size in written.split(",")]
    shapes = {name: sizes(shape) for name, shape in re.findall(r"(%[\w.\-]+) = \w+\[([\d,]+)\]", text)}
    dots = re.findall(r"= \w+\[([\d,]+)\]\S* dot\((?:\S+ )?(%[\w.\-]+), .*?lhs_contracting_dims=\{(\d+)\}", text)
    flops = [2 * math.prod(sizes(out)) * shapes[left][int(summed)] for out, left, summed in dots if out.count(",") > 1]
    assert len(dots) == 6 and len(flops) == 2, text
    return sum(flops), text.count(" all-gather(")

same = True
for sequences, how, expected in ((1, "matmul", (1, 0)), (2, "matmul", (4, 3)), (2, "SDPA", (4, 3)), (2, "einsum", (1, 0))):
    flops, gathers = device_program(how, sequences)
    share = 2 * 2 * sequences * HEADS * TOKENS * TOKENS * HEAD // DEVICES
    print(f"{sequences} sequences, {how:6}: {flops:,} FLOPs a device, even share {share:,}; "
          f"(times share, all-gathers) expected {expected}, seen {(flops / share, gathers)}", flush=True)
    same &= (flops / share, gathers) == expected
print("as described" if same else "CHANGED")
sys.exit(not same)
PY
"$folder/venv/bin/python" -W ignore "$folder/attention.py"
