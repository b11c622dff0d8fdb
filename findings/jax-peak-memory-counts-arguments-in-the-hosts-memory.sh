#!/usr/bin/env bash
# Library: JAX 0.12.0.1 (Python 3.12) with libtpu 0.0.51, which compiles a step for a TPU v6e ahead of time. No TPU is needed.
#
# Behaviour: `compiled.memory_analysis().peak_memory_in_bytes` counts arguments that live in the host's memory (`pinned_host`) as if they lay
# on the device. `argument_size_in_bytes` counts them apart, as `host_argument_size_in_bytes`.
#
# Seen, in MiB on each of four devices, of a step with a parameter and its moment of 256 MiB each, both donated:
#     moment on the device   arguments 512, temporary   0, on the host   0, peak  512
#     moment on the host     arguments 256, temporary 512, on the host 256, peak 1024
#
# Guess: 768 at the most with the moment on the host, which is all of the device's arguments and temporaries together.
#
# Why it matters: who offloads an optimizer's states, and asks the compiler whether the step fits, reads a peak that is too high by the states that
# left. MaxText's `optimizer_memory_host_offload` looks as if it cost memory.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet jax==0.12.0.1 jaxlib==0.12.0.1 libtpu==0.0.51
export JAX_PLATFORMS=cpu TPU_SKIP_MDS_QUERY=1 TPU_WORKER_HOSTNAMES=localhost TPU_WORKER_ID=0 TPU_ACCELERATOR_TYPE=v6e-4
cat > "$folder/peak.py" <<'PY'
import sys

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

slice_ = topologies.get_topology_desc(platform="tpu", topology_name="v6e:2x2")
mesh = topologies.make_mesh(slice_, (4,), ("data",))
device = NamedSharding(mesh, PartitionSpec("data"))
places = {"device": device, "host": device.with_memory_kind("pinned_host")}
expected = {"device": (512, 0, 0, 512), "host": (256, 512, 256, 1024)}

same = True
for name, place in places.items():

    def step(parameter, moment):
        moved = jax.device_put(moment, device) if place is not device else moment
        moved = 0.9 * moved + parameter
        return parameter - moved, jax.device_put(moved, place) if place is not device else moved

    parameter, moment = (jax.ShapeDtypeStruct((4096, 65536), jnp.float32, sharding=at) for at in (device, place))
    compiled = jax.jit(step, donate_argnums=(0, 1), out_shardings=(device, place)).lower(parameter, moment).compile()
    memory = compiled.memory_analysis()
    seen = tuple(
        size >> 20
        for size in (
            memory.argument_size_in_bytes,
            memory.temp_size_in_bytes,
            memory.host_argument_size_in_bytes,
            memory.peak_memory_in_bytes,
        )
    )
    print(f"moment on the {name:6} arguments {seen[0]}, temporary {seen[1]}, on the host {seen[2]}, peak {seen[3]}; expected {expected[name]}")
    same &= seen == expected[name]
print("as described" if same else "CHANGED")
sys.exit(not same)
PY
"$folder/venv/bin/python" "$folder/peak.py"
