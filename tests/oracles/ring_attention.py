"""What attention of PyTorch's context parallelism issues, forward and backward, with no GPU.

    python ring_attention.py ring-attention.json

Runs `torch.distributed.tensor.experimental._context_parallel._attention` on "cuda" tensors as the last rank of two and of
four, in each of its two ways to get keys and values round; the CUDA runtime must be replaced by stubs that do nothing
(LD_PRELOAD), and collectives are those of the `fake` process group. One sequence of 128 tokens, 4 heads of queries and 2 of keys,
of 16 numbers, in bf16.

"issued": exchanges with the bytes that a rank holds after them, and kernels of attention with their queries, keys and
whether a mask hides later keys.
"""
import json, os, sys

import torch
import torch.distributed as dist
import torch.distributed.tensor.experimental._context_parallel._attention as ring
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

TOKENS, HEADS, KEY_HEADS, WIDTH = 128, 4, 2, 16


class Issued(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.list = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        name = func.name().split("::")[1]
        if name in ("all_gather_into_tensor", "all_to_all_single"):
            self.list.append(f"{name}:{made.numel() * made.element_size()}")
        if name.startswith("_scaled_dot_product_flash_attention"):
            backward = "backward" in name
            query, key = args[1:3] if backward else args[:2]
            # Arguments that are as by default are left out.
            causal = args[11] if backward else any(value is True for value in args)
            kind, mask = "backward" if backward else "forward", "causal" if causal else "whole"
            self.list.append(f"{kind}:{query.shape[2]}x{key.shape[2]}:{mask}")
        return made


def case(ranks, method):
    dist.init_process_group("fake", rank=ranks - 1, world_size=ranks, store=FakeStore())
    mesh = init_device_mesh("cuda", (ranks,))
    ring.set_rotate_method(method)
    empty = lambda heads: torch.empty(1, heads, TOKENS // ranks, WIDTH, dtype=torch.bfloat16, device="cuda")
    query, key, value = empty(HEADS), empty(KEY_HEADS), empty(KEY_HEADS)
    with Issued() as issued:
        out, sums, *rest = ring._scaled_dot_product_ring_flash_attention(mesh, query, key, value, 0.0, True)
        ring._scaled_dot_product_ring_flash_attention_backward(
            mesh, torch.empty_like(out), query, key, value, out, sums, *rest[:4], 0.0, True, *rest[4:6]
        )
    dist.destroy_process_group()
    return {"ranks": ranks, "method": method, "issued": " ".join(issued.list)}


if __name__ == "__main__":
    cases = [case(ranks, method) for ranks in (2, 4) for method in ("allgather", "alltoall")]
    with open(sys.argv[1], "w") as file:
        lines = ",\n".join(json.dumps(one) for one in cases)
        file.write('{"torch": "' + torch.__version__ + '", "cases": [\n' + lines + "\n]}\n")
