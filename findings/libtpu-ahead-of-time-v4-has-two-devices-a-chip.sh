#!/usr/bin/env bash
# Library: JAX 0.10.2 with libtpu 0.0.52, which describes slices and compiles for them ahead of time. No TPU is needed.
#
# Behaviour: `topologies.get_topology_desc` gives a slice of TPU v4 two devices for each chip, one for each of its cores. Of v5p, whose chips have
# two cores as well, it gives one for each chip.
#
# Seen: devices, places in the torus, and the highest number of a core on its chip.
#     v4:2x2x1    8 devices in 4 places, cores to 1
#     v5p:2x2x1   4 devices in 4 places, cores to 0
#     v5e:2x2     4 devices in 4 places, cores to 0
#     v6e:2x2     4 devices in 4 places, cores to 0
#
# Guess: four devices in each. A job on a v4 pod sees a chip as one device: a report of its compiler there (erfanzar/EasyDeL#166, a v4-32) gives it
# 30.75 GiB, nearly all that the chip has.
#
# Why it matters: a step compiled ahead of time to learn whether it fits on v4 is compiled for half a chip. A mesh of as many devices as the
# slice has chips takes the cores of half the slice.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet jax==0.10.2 jaxlib==0.10.2 libtpu==0.0.52
export JAX_PLATFORMS=cpu TPU_SKIP_MDS_QUERY=1
cat > "$folder/devices.py" <<'PY'
import sys
from jax.experimental import topologies

same = True
for slice_, expected in (("v4:2x2x1", (8, 4, 1)), ("v5p:2x2x1", (4, 4, 0)), ("v5e:2x2", (4, 4, 0)), ("v6e:2x2", (4, 4, 0))):
    devices = topologies.get_topology_desc(platform="tpu", topology_name=slice_).devices
    seen = len(devices), len({tuple(one.coords) for one in devices}), max(one.core_on_chip for one in devices)
    print(f"{slice_:12} {seen[0]} devices in {seen[1]} places, cores to {seen[2]}; expected {expected[0]}, {expected[1]}, {expected[2]}", flush=True)
    same &= seen == expected
print("as described" if same else "CHANGED")
sys.exit(not same)
PY
"$folder/venv/bin/python" "$folder/devices.py"
