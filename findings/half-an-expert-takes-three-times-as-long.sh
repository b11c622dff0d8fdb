#!/usr/bin/env bash
# Library: aiconfigurator-core 0.12.0, NVIDIA's measured kernel times for planning inference, with pyarrow 21.0.0. No GPU is needed.
#
# Behaviour: on H100 and H200, TensorRT-LLM 1.3.0rc20's bf16 layer of 16 experts of 5,120 × 8,192, one expert a token, is measured at
# 2.7 to 3.3 times as long on one of two ranks that split each expert as on one rank that has all of it. On one of four ranks it
# takes less than a third of the whole again. GB200's and GB300's times fall with each split, as one would expect.
#
# Seen: 16,384 tokens, every expert with as many, milliseconds on one rank
#              whole    half   quarter
#     H100     5.21    17.01    1.54
#     H200     5.07    13.47    1.51
#     GB200    2.14     1.13    0.67
#     GB300    2.06     1.11    0.65
#
# Guess: half of the columns, half of the work, a little more than half of the time.
#
# Why it matters: a planner that interpolates these times proposes to split experts over four ranks and never over two, for a kernel that
# was chosen badly at one shape. Who fits curves to such tables has to notice that a layer is slower than a larger one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==21.0.0
"$folder/venv/bin/pip" download --quiet --no-deps --dest "$folder" aiconfigurator-core==0.12.0
python3 -m zipfile -e "$folder"/aiconfigurator_core-0.12.0-*.whl "$folder/wheel"
cat > "$folder/halves.py" <<'PY'
import pathlib, statistics, sys
from pyarrow import parquet

DATA = pathlib.Path(sys.argv[1]) / "wheel/aiconfigurator_core/systems/data"
WANTED = {"kernel_source": "moe_torch_flow_cutlass", "moe_dtype": "bfloat16", "distribution": "balanced", "moe_ep_size": 1,
          "num_tokens": 16384, "hidden_size": 5120, "inter_size": 8192, "num_experts": 16, "topk": 1}

def times(system):
    rows = parquet.read_table(DATA / system / "moe/trtllm/1.3.0rc20/moe_perf.parquet").to_pylist()
    rows = [row for row in rows if all(row[key] == value for key, value in WANTED.items())]
    split = lambda ranks: statistics.median(row["latency"] for row in rows if row["moe_tp_size"] == ranks)
    return [split(ranks) for ranks in (1, 2, 4)]

same = True
for system, expected in (("h100_sxm", True), ("h200_sxm", True), ("gb200", False), ("gb300", False)):
    whole, half, quarter = times(system)
    slower = half > 2.5 * whole and quarter < whole / 3
    falls = whole > half > quarter
    print(f"{system:10} whole {whole:6.2f} ms, half {half:6.2f} ms, quarter {quarter:6.2f} ms", flush=True)
    same &= slower if expected else falls
print("as described" if same else "CHANGED")
sys.exit(not same)
PY
"$folder/venv/bin/python" "$folder/halves.py" "$folder"
