"""Builds what a configuration says and runs its steps: the plain PyTorch loop,
`loss = ce(model(x), y); loss.backward(); optimizer.step(); optimizer.zero_grad()`.
"""

from contextlib import contextmanager, nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import record_function
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from model import Llama

aten = torch.ops.aten
MATMUL = aten.mm.default
KEPT = {
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
}


def selective():
    """Keeps attention and every second matmul, counted per block: torchtitan's operator-level policy."""
    counts = {"forward": 0, "recompute": 0}

    def policy(context, operator, *_, **__):
        if operator == MATMUL:
            which = "recompute" if context.is_recompute else "forward"
            counts[which] += 1
            keep = counts[which] % 2 == 1
        else:
            keep = operator in KEPT
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


@contextmanager
def marked(context):
    with record_function("windtunnel.recompute"), context:
        yield


def contexts(policy):
    """The forward's and the recompute's context; the second says so to the profiler."""
    forward, again = selective() if policy == "selective_op" else (nullcontext(), nullcontext())
    return forward, marked(again)


class Checkpointed(nn.Module):
    """A block that runs its forward again in backward."""

    def __init__(self, block, policy, compiled):
        super().__init__()
        self.block = block
        # A compiled checkpoint is one graph: no mark inside it, and no context but the policy's.
        self.options = {"context_fn": lambda: contexts(policy)}
        if compiled:
            self.options = {"context_fn": selective} if policy == "selective_op" else {}

    def forward(self, *inputs):
        return checkpoint(self.block, *inputs, use_reentrant=False, preserve_rng_state=False, **self.options)


def cross_entropy_fp32(logits_BSV, labels_BS):
    return F.cross_entropy(logits_BSV.flatten(0, 1).float(), labels_BS.flatten(0, 1))


def cross_entropy_as_is(logits_BSV, labels_BS):
    return F.cross_entropy(logits_BSV.flatten(0, 1), labels_BS.flatten(0, 1))


def attention_kernels(backend):
    """Leaves attention one kernel to choose, in forward and, unlike `sdpa_kernel`'s scope, in recomputes too."""
    kinds = {"flash2": "flash", "mem": "mem_efficient", "cudnn": "cudnn", "math": "math"}
    for name, kind in kinds.items():
        getattr(torch.backends.cuda, f"enable_{kind}_sdp")(name == backend)


def process_group(kind):
    """A group of one rank: nccl, gloo, or fake (whose collectives do nothing)."""
    import torch.distributed as dist

    if kind == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    else:
        dist.init_process_group(kind, store=dist.HashStore(), rank=0, world_size=1)


def checkpoints(model, c):
    """Blocks 2, 4, … of `every_2`, all of the others; compiled together with the block, if at all."""
    compiled = c.compile != "none"
    for at, block in enumerate(model.layers):
        if c.recompute in ("full", "selective_op") or (c.recompute == "every_2" and at % 2 == 1):
            block = Checkpointed(block, c.recompute, compiled)
        model.layers[at] = torch.compile(block, fullgraph=True) if compiled else block


def shard(model, c):
    """`fully_shard` for each block and for the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if c.precision == "mixed":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh("cuda", (1,))
    for block in model.layers:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=c.reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def fill(model):
    """Random weights, in place: nothing but the parameters is ever allocated."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            local.fill_(1.0) if "norm" in name else local.normal_(0.0, 0.02)


class Training:
    """A model, its optimizer and one batch of random tokens."""

    def __init__(self, c, group):
        self.c = c
        attention_kernels(c.attention)
        shape, tied = c.shape, c.shape.tied_head
        with torch.device("meta"):
            model = Llama(shape, c)
        if c.precision == "bf16":
            model.to(torch.bfloat16)
        checkpoints(model, c)
        if c.runtime == "fsdp2":
            process_group(group)
            # Tied before it is sharded, so that `fully_shard` sees one parameter.
            if tied:
                model.output.weight = model.tok_embeddings.weight
            shard(model, c)
            model.to_empty(device="cuda")
        else:
            if tied:
                model.output.weight = None
            model.to_empty(device="cuda")
            if tied:
                model.output.weight = model.tok_embeddings.weight
        assert not tied or model.output.weight is model.tok_embeddings.weight
        model.make_table(c, "cuda")
        fill(model)
        self.model = model
        loss = cross_entropy_fp32 if c.loss == "fp32" else cross_entropy_as_is
        self.loss = torch.compile(loss) if c.compile == "all" else loss
        how = {"fused": True} if c.optimizer == "fused" else {"foreach": True}
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, **how)
        torch.manual_seed(0)
        self.tokens, self.labels = (
            torch.randint(shape.vocabulary, (c.micro, c.sequence)).to("cuda") for _ in range(2)
        )

    def step(self):
        for micro_batch in range(self.c.accumulation):
            if self.c.accumulation > 1 and self.c.runtime == "fsdp2":
                last = micro_batch + 1 == self.c.accumulation
                self.model.set_requires_gradient_sync(last)
                self.model.set_is_last_backward(last)
            with record_function("windtunnel.forward"):
                loss = self.loss(self.model(self.tokens), self.labels)
            with record_function("windtunnel.backward"):
                loss.backward()
            del loss
        with record_function("windtunnel.optimizer"):
            if self.c.clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
            self.optimizer.step()
            self.optimizer.zero_grad()
