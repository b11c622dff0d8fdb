"""Random numbers that are made once: operands are views of them, so a point spends no time on its values.

Operands move through the pool, so that calls that are taken in turn read different memory.
"""

import math

from points import torch

COLD_BYTES = 256 << 20  # five times the L2 cache of an H100


class Pool:
    def __init__(self, tiny, dtype=None, share=8):
        dtype = dtype or torch.bfloat16
        size = torch.empty(0, dtype=dtype).element_size()
        free = torch.cuda.mem_get_info()[0]
        total = (64 << 20) if tiny else min(16 << 30, free // share)
        self.flat = torch.empty(total // size, device="cuda", dtype=dtype)
        for part in self.flat.split(1 << 28):
            part.copy_(torch.randn(part.shape, device="cuda", dtype=torch.bfloat16))
        self.at = 0

    def take(self, *shape):
        """A contiguous view. What does not fit is memory of its own, with zeros."""
        count = math.prod(shape)
        if count > self.flat.numel():
            return torch.zeros(shape, device="cuda", dtype=self.flat.dtype)
        if self.at + count > self.flat.numel():
            self.at = 0
        view = self.flat[self.at : self.at + count].view(shape)
        self.at += -(-count // 512) * 512  # operands stay aligned
        return view


def copies(bytes_of_a_call):
    """How many sets of operands it takes until the L2 cache holds none of the next one's."""
    return max(1, min(16, math.ceil(COLD_BYTES / max(1, bytes_of_a_call))))
