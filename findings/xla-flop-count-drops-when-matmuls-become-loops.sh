#!/usr/bin/env bash
# Library: JAX 0.10.2 with libtpu 0.0.52, which compiles for TPU v6e ahead of time. No TPU is needed.
#
# Behaviour: `Compiled.cost_analysis()["flops"]` counts the body of a loop once, however often the loop runs. XLA's partitioner
# makes such loops by itself: it turns a matmul whose weight is sharded over chips into a loop over parts of the weight
# (a windowed einsum, or collective matmul). The loops are in no line of the JAX program.
#
# Seen: forward and backward of two feed-forward layers, weights sharded over all chips, 4,096 tokens a chip. By hand,
# 1.5118 TFLOP of matmuls a chip.
#     4 chips                               1.5159 TFLOP reported, 1.003 of the hand count
#     8 chips                               1.1722 TFLOP reported, 0.775 of the hand count
#     8 chips, windowed einsums turned off  1.5159 TFLOP reported, 1.003 of the hand count
# With each loop of the compiled program counted as often as it runs, all three have the hand count exactly. libtpu 0.0.42.1, of the
# same JAX, reports the same shares.
#
# Guess: each chip computes as much on 4 as on 8 chips, so the compiler reports the same FLOPs. That `lax.scan` over layers counts
# one layer is easier to expect. Here the program has no loop, and the first row shows that the count can be right.
#
# Why it matters: FLOPs from `cost_analysis` are a common numerator of MFU and of rooflines. From 4 to 8 chips this MFU falls by
# 23 % although every chip does the same work.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet jax==0.10.2 jaxlib==0.10.2 libtpu==0.0.52
export JAX_PLATFORMS=cpu TPU_SKIP_MDS_QUERY=1 TPU_WORKER_HOSTNAMES=localhost TPU_WORKER_ID=0 TPU_ACCELERATOR_TYPE=v6e-8
cat > "$folder/count.py" <<'PY'
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

LAYERS, WIDTH, HIDDEN, SEQUENCES, TOKENS = 2, 2048, 8192, 2, 2048  # sequences of a chip, tokens of a sequence

def reported(slice_, **options):
    devices = topologies.get_topology_desc(platform="tpu", topology_name=f"v6e:{slice_}").devices
    mesh = Mesh(np.array(devices), ("fsdp",))
    on = lambda *axes: NamedSharding(mesh, P(*axes))
    def loss(weights, x):
        for up, down in weights:
            x = jax.lax.with_sharding_constraint(x + jax.nn.gelu(x @ up) @ down, on("fsdp"))
        return jnp.square(x.astype(jnp.float32)).mean()
    array = lambda shape, *axes: jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=on(*axes))
    weights = [(array((WIDTH, HIDDEN), None, "fsdp"), array((HIDDEN, WIDTH), "fsdp"))] * LAYERS
    x = array((SEQUENCES * mesh.size, TOKENS, WIDTH), "fsdp")
    step = jax.jit(jax.grad(loss), out_shardings=jax.tree.map(lambda w: w.sharding, weights))
    compiled = step.lower(weights, x).compile(compiler_options=options or None)
    return compiled.cost_analysis()["flops"], compiled.as_text().count(" while(")

# Two matmuls a layer, each forward and twice backward; nothing asks for the gradient of the first layer's input.
by_hand = (6 * LAYERS - 1) * 2 * SEQUENCES * TOKENS * WIDTH * HIDDEN
off = dict(xla_jf_spmd_threshold_for_windowed_einsum_mib="1000000")
same = True
for name, slice_, options, expected in (("4 chips", "2x2", {}, 1.003), ("8 chips", "2x4", {}, 0.775), ("8 chips, windows off", "2x4", off, 1.003)):
    flops, loops = reported(slice_, **options)
    print(f"{name:22} by hand {by_hand:.5g}, reported {flops:.5g}, {loops} loops; share expected {expected}, seen {flops / by_hand:.3f}", flush=True)
    same &= abs(flops / by_hand - expected) < 0.002 and (loops > 0) == (expected < 1)
print("as described" if same else "CHANGED")
sys.exit(not same)
PY
"$folder/venv/bin/python" "$folder/count.py"
