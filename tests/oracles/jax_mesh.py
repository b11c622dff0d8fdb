"""How JAX lays logical axes on the physical axes of a TPU slice.

    pip install jax
    python tests/oracles/jax_mesh.py > tests/oracles/jax-mesh.json

Asks `jax._src.mesh_utils` itself, for the private function behind `create_device_mesh` needs no devices. The rings that it
walks around small slices first (`_v5e_create_device_mesh`) are not in it.
"""

import json

import jax
import numpy as np
from jax._src import mesh_utils

SLICES = [(4, 4), (4, 8), (8, 8), (8, 16), (16, 16), (2, 2, 2), (2, 4, 4), (4, 4, 4), (4, 8, 8)]


def meshes(chips, axes):
    """All ways to write a power of two as a product of so many, each above one."""
    if axes == 1:
        return [(chips,)] if chips > 1 else []
    sizes = [2**power for power in range(1, chips.bit_length()) if chips % 2**power == 0]
    return [(size, *rest) for size in sizes for rest in meshes(chips // size, axes - 1)]


def case(shape, mesh):
    chips = np.arange(int(np.prod(shape))).reshape(shape)
    assign = mesh_utils._create_device_mesh_for_nd_torus
    try:
        sizes, split = assign(chips, mesh, allow_split_physical_axes=False)[1], False
    except NotImplementedError:
        sizes, split = assign(chips, mesh, allow_split_physical_axes=True)[1], True
    return {"slice": shape, "mesh": mesh, "sizes": np.asarray(sizes).tolist(), "split": split}


cases = [case(shape, mesh) for shape in SLICES for axes in (1, 2, 3) for mesh in meshes(int(np.prod(shape)), axes)]
lines = ",\n".join("    " + json.dumps(each) for each in cases)
print(f'{{\n  "jax": "{jax.__version__}",\n  "cases": [\n{lines}\n  ]\n}}')
