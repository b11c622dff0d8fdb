"""Tables for `import published` out of aiconfigurator-core, NVIDIA's measured kernel times (Apache-2.0, on PyPI).

    pip download --no-deps aiconfigurator-core==0.12.0 && unzip aiconfigurator_core-0.12.0-*.whl -d wheel
    python3 calibrate/import/aiconfigurator.py --wheel wheel --tables TABLES --out MERGED
    windtunnel calibrate import published --from MERGED --out sim/cost/profiles --held-out tests/costs

MERGED holds the tables of TABLES, with what the wheel has beyond them: dense matmuls of B300, GB200 and GB300, the stream of
memory-bound kernels on these, and layers of experts on every chip. Times are microseconds. It needs pyarrow.
"""

import argparse
import csv
import gzip
import pathlib
import shutil
import sys

ENGINE = "trtllm/1.3.0rc20"
NEW = ("b300_sxm", "gb200", "gb300")
EXPERTS = ("h100_sxm", "h200_sxm", "b200_sxm") + NEW


def rows(wheel, system, folder, name):
    """The rows of one measured table, as dictionaries."""
    from pyarrow import parquet

    path = wheel / "aiconfigurator_core/systems/data" / system / folder / ENGINE / f"{name}.parquet"
    if not path.is_file():
        sys.exit(f"{path} is not there: expected the unpacked wheel of aiconfigurator-core 0.12.0")
    return parquet.read_table(path).to_pylist()


def write(path, head, lines):
    with gzip.open(path, "wt", newline="") as file:
        out = csv.writer(file)
        out.writerow(head)
        out.writerows(lines)


def source(system, folder):
    return f"aic:{system}/{folder}/{ENGINE}"


def matmuls(wheel, system):
    for row in rows(wheel, system, "gemm", "gemm_perf"):
        if row["gemm_dtype"] in ("bfloat16", "fp8") and min(row["m"], row["n"], row["k"]) > 0:
            shape = [row["m"], row["n"], row["k"]]
            yield [row["gemm_dtype"], *shape, round(1e3 * row["latency"], 3), source(system, "gemm")]


def streams(wheel, system):
    for row in rows(wheel, system, "quantize", "scale_matrix_perf"):
        moved = 3 * row["m"] * row["k"]
        us = 1e3 * row["latency"]
        where = source(system, "quantize")
        yield [system, "scale_matrix", "trtllm", "1.3.0rc20", row["kernel_source"], row["m"], row["k"], row["quant_dtype"],
               moved, round(us, 3), round(moved / us / 1e3, 1), where, ""]


def layers(wheel, system):
    """Whole layers of experts, all on one rank, gated, every expert with as many rows."""
    for row in rows(wheel, system, "moe", "moe_perf"):
        wanted = (
            row["kernel_source"] == "moe_torch_flow_cutlass"
            and row["moe_dtype"] in ("bfloat16", "fp8")
            and row["distribution"] == "balanced"
            and row["moe_ep_size"] == 1
        )
        if wanted:
            sizes = [row[key] for key in ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size")]
            yield [system, row["moe_dtype"], *sizes, round(1e3 * row["latency"], 3), source(system, "moe")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=pathlib.Path, required=True, help="the unpacked wheel of aiconfigurator-core 0.12.0")
    parser.add_argument("--tables", type=pathlib.Path, required=True, help="the published tables there are")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="a folder for them and what the wheel adds")
    asked = parser.parse_args()
    shutil.copytree(asked.tables, asked.out, dirs_exist_ok=True)
    for system in NEW:
        name = system.removesuffix("_sxm")
        write(asked.out / f"gemm_{name}.csv.gz", ["dtype", "m", "n", "k", "time_us", "source"], matmuls(asked.wheel, system))
    stream = "elementwise_quantize_aic.csv.gz"
    with gzip.open(asked.tables / stream, "rt", newline="") as file:
        head, *known = csv.reader(file)
    known = [row for row in known if row[0] not in NEW]
    write(asked.out / stream, head, known + [row for system in NEW for row in streams(asked.wheel, system)])
    head = ["system", "dtype", "tokens", "hidden", "inter", "topk", "experts", "tp", "time_us", "source"]
    write(asked.out / "moe_aic.csv.gz", head, [row for system in EXPERTS for row in layers(asked.wheel, system)])
    print(f"wrote {asked.out}: dense matmuls and streams of {', '.join(NEW)}; layers of experts of {', '.join(EXPERTS)}")


if __name__ == "__main__":
    main()
