"""When XLA's TPU partitioner exchanges a matmul's weight in windows (collective-permutes beside the matmul's parts), with no TPU.

One matmul of rows by a weight: rows are spread over data and fsdp, the weight over fsdp and, its outputs, over tensor, as
MaxText's rules spread them. Each is compiled ahead of time for a slice of v6e; nothing runs.

    python xla_windows.py WINDTUNNEL_CALIBRATE > xla-windows.json
"""
import json, os, subprocess, sys, tempfile

VERSION = "0.0.42.1"
WIDE = (512, 512)
# Slice, data, fsdp, tensor, rows of a chip, the weight's inputs and outputs.
ASKED = [
    ("2x2", 1, 4, 1, 256, *WIDE), ("2x2", 1, 4, 1, 8192, *WIDE), ("2x2", 1, 4, 1, 131072, 4096, 14336),
    ("2x4", 1, 8, 1, 1024, *WIDE), ("2x4", 1, 8, 1, 1280, *WIDE),
    ("4x4", 1, 16, 1, 512, *WIDE), ("4x4", 1, 16, 1, 768, *WIDE), ("4x4", 1, 16, 1, 131072, 256, 512),
    ("4x8", 1, 32, 1, 256, *WIDE), ("4x8", 1, 32, 1, 512, *WIDE),
    ("8x8", 1, 64, 1, 8192, 4096, 4096), ("8x8", 1, 64, 1, 65536, 4096, 1024), ("16x16", 1, 256, 1, 8192, 4096, 1024),
    ("2x4", 2, 4, 1, 8192, *WIDE), ("4x4", 2, 8, 1, 8192, *WIDE), ("4x8", 4, 8, 1, 8192, *WIDE),
    ("8x8", 2, 32, 1, 8192, *WIDE), ("16x16", 16, 16, 1, 8192, *WIDE),
    ("4x4", 1, 4, 4, 8192, *WIDE), ("4x8", 1, 8, 4, 8192, *WIDE), ("8x8", 1, 16, 4, 8192, *WIDE),
]

def program(data, fsdp, tensor, rows, inputs, outputs):
    chips, all_rows = data * fsdp * tensor, rows * data * fsdp
    spec = lambda *axes: "#sdy.sharding<@mesh, [" + ", ".join(axes) + "]>"
    x, w, y = spec('{"data", "fsdp"}', "{}"), spec('{"fsdp"}', '{"tensor"}'), spec('{"data", "fsdp"}', '{"tensor"}')
    tx, tw, ty = f"tensor<{all_rows}x{inputs}xbf16>", f"tensor<{inputs}x{outputs}xbf16>", f"tensor<{all_rows}x{outputs}xbf16>"
    return f"""module @matmul attributes {{mhlo.num_partitions = {chips} : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @mesh = <["data"={data}, "fsdp"={fsdp}, "tensor"={tensor}]>
  func.func public @main(%x: {tx} {{sdy.sharding = {x}}}, %w: {tw} {{sdy.sharding = {w}}}) -> ({ty} {{sdy.sharding = {y}}}) {{
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({tx}, {tw}) -> {ty}
    return %0 : {ty}
  }}
}}
"""

def main(calibrate):
    answers = []
    for asked in ASKED:
        slice_, *sizes = asked
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "matmul.mlir")
            open(file, "w").write(program(*sizes))
            command = [calibrate, "xla", "compile", file, "--topology", f"v6e:{slice_}", "--plugin", f"tpu@{VERSION}", "--json"]
            said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        windows = any(one["kind"] == "collective-permute" for one in said["collectives"])
        keys = ("slice", "data", "fsdp", "tensor", "rows", "inputs", "outputs")
        answers.append({**dict(zip(keys, asked)), "windows": windows})
        print(answers[-1], file=sys.stderr, flush=True)
    print(json.dumps({"libtpu": VERSION, "matmuls": answers}, indent=1))

main(sys.argv[1])
