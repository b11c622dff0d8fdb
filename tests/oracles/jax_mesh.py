"""How JAX lays logical axes on the physical axes of a TPU slice.

    pip install jax==0.12.0.1
    python tests/oracles/jax_mesh.py > tests/oracles/jax-mesh.json

Asks `jax._src.mesh_utils` itself, for the private function behind `create_device_mesh` needs no devices. The rings that it
walks around small slices first (`_v5e_create_device_mesh`) are not in it; those of TPU7x are, in the order of its devices.
"""

import json
from dataclasses import dataclass

import jax
import numpy as np
from jax._src import mesh_utils


@dataclass(frozen=True, eq=False)
class Device:
    """What `create_device_mesh` asks of a device of TPU7x."""

    coords: tuple
    core_on_chip: int
    platform: str = "tpu"
    device_kind: str = "TPU7x"


def devices(shape):
    """Devices of a slice in the order of `jax.devices()`: cores of a chip first, then along x, y and z."""
    x, y, z = shape
    places = [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]
    return [Device(place, core) for place in places for core in (0, 1)]


OF_7X = [(2, 4, 4), (4, 4, 4), (4, 4, 8)]
IN_PLANES = [(2, 2, 1), (2, 2, 2), (2, 2, 4)]

SLICES = [(4, 4), (4, 8), (8, 8), (8, 16), (16, 16), (2, 2, 2), (2, 4, 4), (4, 4, 4), (4, 8, 8)]


def meshes(chips, axes):
    """All ways to write a power of two as a product of so many, each above one."""
    if axes == 1:
        return [(chips,)] if chips > 1 else []
    sizes = [2**power for power in range(1, chips.bit_length()) if chips % 2**power == 0]
    return [(size, *rest) for size in sizes for rest in meshes(chips // size, axes - 1)]


def case(shape, mesh, chips=None):
    chips = np.arange(int(np.prod(shape))).reshape(shape) if chips is None else chips
    assign = mesh_utils._create_device_mesh_for_nd_torus
    try:
        sizes, split = assign(chips, mesh, allow_split_physical_axes=False)[1], False
    except NotImplementedError:
        sizes, split = assign(chips, mesh, allow_split_physical_axes=True)[1], True
    return {"slice": shape, "mesh": mesh, "sizes": np.asarray(sizes).tolist(), "split": split}


cases = [case(shape, mesh) for shape in SLICES for axes in (1, 2, 3) for mesh in meshes(int(np.prod(shape)), axes)]
of_7x = []
for shape in OF_7X:
    physical = mesh_utils._get_physical_tpu_mesh(devices(shape))
    of_7x += [case(shape, mesh, physical) for axes in (1, 2, 3) for mesh in meshes(physical.size, axes)]
planes = []
for shape in IN_PLANES:
    laid = mesh_utils.create_device_mesh((len(devices(shape)),), devices(shape))
    planes.append({"slice": shape, "order": [[*device.coords, device.core_on_chip] for device in laid]})


def rows(cases):
    return ",\n".join("    " + json.dumps(each) for each in cases)


sections = {"cases": cases, "of_7x": of_7x, "in_planes": planes}
text = ",\n".join(f'  "{name}": [\n{rows(listed)}\n  ]' for name, listed in sections.items())
print(f'{{\n  "jax": "{jax.__version__}",\n{text}\n}}')
