#!/usr/bin/env bash
# Library: JAX 0.12.0.1 (Python 3.12), `jax.experimental.mesh_utils.create_device_mesh` for TPU7x. No TPU is needed: the devices are described.
#
# Behaviour: a chip of TPU7x is two devices, joined faster than chips are, and the last axis of a mesh, which talks most, is to get this
# axis first. On 4x4x4 chips with a mesh of (2, 64), it does not: 64 is the product of the three axes of chips, sets of three axes are tried
# as a whole before smaller ones, and none with the devices of a chip multiplies to 64. The outer axis of 2 gets the two devices.
#
# Seen: how many of a chip's devices are in one group of the last axis.
#     mesh (128,)    2
#     mesh (64, 2)   2
#     mesh (2, 64)   1
#
# Guess: 2 in each, as the function's comment says that the axis of devices is assigned first.
#
# Why it matters: with replicas outside of shards (MaxText: ici_data_parallelism=2 ici_fsdp_parallelism=64) both devices of a chip gather all
# weights on their own, over links that the chip has once. That is twice the traffic of 128 shards.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet jax==0.12.0.1 jaxlib==0.12.0.1
export JAX_PLATFORMS=cpu
cat > "$folder/mesh.py" <<'PY'
import sys
from dataclasses import dataclass

import numpy
from jax.experimental import mesh_utils


@dataclass(frozen=True, eq=False)
class Device:
    coords: tuple
    core_on_chip: int
    platform: str = "tpu"
    device_kind: str = "TPU7x"


places = [(x, y, z) for z in range(4) for y in range(4) for x in range(4)]
devices = [Device(place, core) for place in places for core in (0, 1)]
same = True
for mesh, expected in (((128,), 2), ((64, 2), 2), ((2, 64), 1)):
    laid = mesh_utils.create_device_mesh(mesh, devices)
    group = laid.reshape(-1, mesh[-1])[0]
    seen = len(group) // len({device.coords for device in group})
    print(f"mesh {str(mesh):10} {seen} of a chip's devices in one group; expected {expected}")
    same &= seen == expected
print("as described" if same else "CHANGED")
sys.exit(not same)
PY
"$folder/venv/bin/python" "$folder/mesh.py"
