"""Stand-in for DeepEP (deepseek-ai/DeepEP, `csrc/legacy/buffer.hpp`, ranks of one node): takes what its extension takes, from its
own stream, and computes nothing. How many rows a rank gets is the mean where all choices of experts are as likely."""
import math, sys

import torch

sys.modules["deep_ep.utils"] = sys.modules[__name__]
CHANNELS = 10
CASE, LOG = {}, []


def reached(experts, top, ranks):
    """Ranks on which a token has experts."""
    return ranks * (1 - math.comb(experts - experts // ranks, top) / math.comb(experts, top))


def note(name, tokens):
    """A call beside the collectives, with the bytes of the rank's own tokens."""
    if LOG:
        LOG[-1].append(f"{name}:{tokens.numel() * tokens.element_size()}")


class EventHandle:
    pass


class EventOverlap:
    def __init__(self, event=None):
        pass

    def current_stream_wait(self):
        pass


class Config:
    get_nvl_buffer_size_hint = get_rdma_buffer_size_hint = lambda self, *a: 0


class Buffer:
    get_dispatch_config = get_combine_config = staticmethod(lambda ranks: Config())
    set_num_sms = staticmethod(lambda processors: None)
    num_nvl_bytes = num_rdma_bytes = 0

    def __init__(self, group, *a):
        self.group, self.ranks, self.stream = group, group.size(), torch.cuda.Stream()

    def made(self, *shapes):
        with torch.cuda.stream(self.stream):
            return [torch.empty(shape, dtype=dtype, device="cuda") for shape, dtype in shapes]

    def get_dispatch_layout(self, indices, experts, **more):
        whole = torch.int32
        made = self.made(([self.ranks], whole), ([experts], whole), ([indices.shape[0], self.ranks], torch.bool))
        return made[0], None, *made[1:], None

    def dispatch(self, x, handle=None, topk_idx=None, is_token_in_rank=None, **more):
        ranks, whole, (tokens, width) = self.ranks, torch.int32, x.shape
        if handle is None:
            note("notify", x)
            matrices = self.made(([ranks, ranks], whole), ([ranks, CHANNELS], whole))
        note("dispatch", x)
        rows = round(tokens * reached(CASE["experts"], CASE["topk"], ranks))
        out, source, channels, head = self.made(([rows, width], x.dtype), ([rows], whole), ([ranks, CHANNELS], whole), ([tokens, ranks], whole))
        if handle is not None:
            return out, None, None, None, None, EventOverlap()
        top = topk_idx.shape[1]
        indices, weights = self.made(([rows, top], topk_idx.dtype), ([rows, top], torch.float32))
        counts = [tokens * CASE["topk"] * ranks // CASE["experts"]] * (CASE["experts"] // ranks)
        return out, indices, weights, counts, (*matrices, channels, source, is_token_in_rank, head), EventOverlap()

    def combine(self, x, handle, topk_weights=None, **more):
        tokens = handle[4].shape[0]
        out, = self.made(([tokens, x.shape[1]], x.dtype))
        note("combine", out)
        weights = None if topk_weights is None else self.made(([tokens, topk_weights.shape[1]], torch.float32))[0]
        return out, weights, EventOverlap()
