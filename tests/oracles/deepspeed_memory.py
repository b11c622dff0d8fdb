"""Every block of memory that DeepSpeed's ZeRO takes and gives back in a step, with its collectives, in host order.

    python deepspeed_memory.py DEEPSPEED deepspeed-memory.json

Each case is run in a process of its own, as `deepspeed_zero.py` says: DEEPSPEED (0.19.6) unmodified on PyTorch's own
allocator, on a device on which kernels do nothing, as one rank of eight that exchange nothing. The model is a Llama in
Hugging Face's structure, with rotary embeddings as a complex product: it computes its loss itself. "bias": queries, keys and
values have biases; "tied": the head has the table of the embedding.

A case says the settings, the rank, bytes allocated when each phase ends and its peak, and the events of the fifth step:
  "+bytes", "-bytes" of blocks; "> all_reduce bytes" and alike: collectives, with the bytes of their whole buffer, and of fewer
  than all ranks with how many ("/4"); "wait s o":
  stream s waits for what stream o has to do; "drain": the host waits for the device, or for a stream of it.
  "> to_host bytes", "> from_host bytes": copies that cross to and from the host's memory; one for which the host waits is
  followed by a "drain". "host adam bytes", "host mul_ bytes", "host copy_ bytes": what the host's processors do, with the
  bytes of what is written (of parameters, where moments are written too).
Blocks of a stream other than the default one (0), collectives and copies on one say which: "@1". Of numbers of less than 16
bytes nothing is said.

With an offloaded optimizer DeepSpeedCPUAdam steps, whose extension in C++ is a stand-in: it writes down that it was called.
"host" says what of the host's memory is held after the steps: bytes that PyTorch takes for what DeepSpeed pins, bytes that
DeepSpeed's own allocator pins for disks, and bytes of all tensors.

Extensions for disks and for quantising are stand-ins, too: the first writes down what is read and written, the second makes the
blocks that the real one makes (`csrc/quantization/pt_binding.cpp`) and writes down its kernels with their elements and groups.
  "> nvme read bytes @h", "> nvme write bytes @h": a file is asked of, or given to, threads of handle h; "nvme wait @h": the
  host waits for all of them. "quantize elements/groups", "dequantize", "swizzle_quant", "quantized_reduction": kernels.
Where ranks share a sequence ("sequence" of them, neighbours; "kv_heads", "batch": where these are not eight and one) attention is DeepSpeed's
UlyssesSPAttentionHF around Hugging Face's `sdpa` (transformers 4.57.3, beside DeepSpeed), registered as its tutorial says, and
the loss is weighed as its tutorial says (`docs/_tutorials/ulysses-alst-sequence-parallelism.md`). Gathers into a list take, as in
NCCL's process group, a block for all of it first.

"nvme" says the bytes of all files after the steps. "chips" of a case: accelerators of a node, which decide on the two hops of
quantised gradients.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile

CASE = json.loads(sys.argv[3]) if len(sys.argv) > 3 else None
WORLD, D, FF, V, LAYERS, SEQ, HEAD = CASE.get("ranks", 8) if CASE else 8, 1024, 2816, 32000, 3, 512, 128
SHARED, BATCH = (CASE.get("sequence", 1), CASE.get("batch", 1)) if CASE else (1, 1)
LOCAL, KEYS = SEQ // SHARED, (CASE.get("kv_heads", D // HEAD) if CASE else 0) * HEAD
SMALL = {"reduce_bucket_size": 20_000_000}
PREFETCH = {**SMALL, "stage3_prefetch_bucket_size": 3_000_000, "stage3_param_persistence_threshold": 2_000}
AWAY = {"offload_optimizer": {"device": "cpu"}}
NODES = {"zero_hpz_partition_size": 4}
PARAMETERS = {"offload_param": {"device": "cpu"}}
DISK = {"offload_optimizer": {"device": "nvme"}}
PARTS = {"sub_group_size": 1_000_000}
PIPELINED = {"device": "nvme", "buffer_count": 12}
PARAMETER_FILES = {"offload_param": {"device": "nvme", "max_in_cpu": 0, "buffer_count": 20, "buffer_size": 5_000_000}}
TWO = {"ranks": 2, "rank": 0}
LARGE = {"device": "nvme", "max_in_cpu": 0, "buffer_size": 17_000_000}
WEIGHTS = {"zero_quantized_weights": True}
GRADIENTS = {"zero_quantized_gradients": True}
CASES = [
    {"rank": 6, "zero": {"stage": 2}},
    *({"rank": rank, "zero": {"stage": 2, **SMALL}} for rank in range(WORLD)),
    {"rank": 6, "zero": {"stage": 2, **SMALL, "reduce_bucket_size": 5_000_000}},
    {"rank": 6, "zero": {"stage": 2, **SMALL, "overlap_comm": True}},
    {"rank": 6, "zero": {"stage": 2, **SMALL, "overlap_comm": True}, "micro_batches": 3},
    {"rank": 6, "zero": {"stage": 2, "reduce_bucket_size": 40_000_000}, "checkpointed": True},
    {"rank": 6, "zero": {"stage": 1, **SMALL}},
    {"rank": 6, "zero": {"stage": 1, **SMALL, "overlap_comm": True}},
    {"rank": 6, "zero": {"stage": 1, **SMALL}, "micro_batches": 2, "checkpointed": True},
    {"rank": 0, "zero": {"stage": 2, **SMALL}, "tied": True},
    {"rank": 6, "zero": {"stage": 2, **SMALL}, "bias": True},
    {"rank": 0, "zero": {"stage": 3}},
    {"rank": 0, "zero": {"stage": 3, **SMALL}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, "stage3_max_reuse_distance": 0}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, "stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, "stage3_prefetch_bucket_size": 40_000_000}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, "stage3_max_live_parameters": 36_000_000}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, "stage3_param_persistence_threshold": 0}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, "sub_group_size": 5_000_000}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, "overlap_comm": False}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, "stage3_max_reuse_distance": 0}, "checkpointed": True},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH}, "checkpointed": True},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, "stage3_max_reuse_distance": 0}, "micro_batches": 2},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, "reduce_bucket_size": 40_000_000}, "micro_batches": 2},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, "stage3_max_reuse_distance": 0}, "bias": True},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, "stage3_max_reuse_distance": 0}, "bias": True, "checkpointed": True},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, "stage3_max_reuse_distance": 0}, "tied": True},
    *(
        {"rank": 7, "zero": {"stage": stage, **SMALL, **more, **AWAY}, "micro_batches": several}
        for stage in (1, 2)
        for more in ({}, {"overlap_comm": True})
        for several in (1, 3)
    ),
    {"rank": 7, "zero": {"stage": 2, "reduce_bucket_size": 40_000_000, **AWAY}, "checkpointed": True},
    {"rank": 7, "zero": {"stage": 2, "reduce_bucket_size": 5_000_000, **AWAY}},
    {"rank": 2, "zero": {"stage": 2, **SMALL, **AWAY}, "tied": True},
    *(
        {"rank": 0, "zero": {"stage": 3, **PREFETCH, **more, **AWAY}, "micro_batches": several}
        for more in ({}, {"overlap_comm": False}, {"stage3_max_reuse_distance": 0, **PARAMETERS})
        for several in (1, 3)
    ),
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **AWAY, "sub_group_size": 5_000_000}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **AWAY, **PARAMETERS, "sub_group_size": 5_000_000}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **AWAY, **PARAMETERS}, "checkpointed": True},
    {
        "rank": 0,
        "zero": {"stage": 3, **PREFETCH, "sub_group_size": 1_000_000, "offload_optimizer": {"device": "cpu", "ratio": 0.5}},
    },
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **NODES}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **NODES, "stage3_max_reuse_distance": 0}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **NODES, "stage3_max_reuse_distance": 0}, "micro_batches": 2},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **NODES, "stage3_max_reuse_distance": 0}, "checkpointed": True},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **NODES, "stage3_max_reuse_distance": 0, "overlap_comm": False}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **NODES, "stage3_max_reuse_distance": 0, **AWAY}},
    *(
        {"rank": 0, "zero": {"stage": 3, **PREFETCH, **more, **DISK}, "micro_batches": several}
        for more in ({}, PARTS)
        for several in (1, 2)
    ),
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **PARTS, "offload_optimizer": {**PIPELINED, "pipeline_read": True}}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **PARTS, "offload_optimizer": {**PIPELINED, "pipeline_write": True}}},
    {
        "rank": 0,
        "zero": {
            "stage": 3,
            **PREFETCH,
            **PARTS,
            "offload_optimizer": {**PIPELINED, "pipeline_read": True, "pipeline_write": True},
        },
    },
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **PARTS, **DISK, **PARAMETERS}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **AWAY, "offload_param": {"device": "nvme"}}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **AWAY, **PARAMETER_FILES}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **PARTS, **DISK, **PARAMETER_FILES}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **PARTS, **DISK, **PARAMETER_FILES, "stage3_max_reuse_distance": 0}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **PARTS, **DISK, **PARAMETER_FILES}, "checkpointed": True},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **PARTS, **DISK, **PARAMETER_FILES}, "micro_batches": 2},
    *(
        {
            **TWO,
            "zero": {
                "stage": 3,
                **PREFETCH,
                **DISK,
                "offload_param": {**LARGE, "buffer_count": buffers},
                "stage3_max_reuse_distance": distance,
            },
            "checkpointed": again,
        }
        for distance, buffers, again in ((0, 14, False), (10**9, 24, False), (0, 14, True))
    ),
    {
        **TWO,
        "zero": {
            "stage": 3,
            **PREFETCH,
            **AWAY,
            **PARTS,
            "offload_param": {**LARGE, "buffer_count": 24, "max_in_cpu": 20_000_000},
        },
        "micro_batches": 2,
    },
    *({"rank": 0, "zero": {"stage": 3, **PREFETCH, **WEIGHTS, "stage3_max_reuse_distance": d}} for d in (0, 10**9)),
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **WEIGHTS, "stage3_max_reuse_distance": 0}, "micro_batches": 2},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **WEIGHTS, "stage3_max_reuse_distance": 0}, "checkpointed": True},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **WEIGHTS, "stage3_max_reuse_distance": 0, "overlap_comm": False}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **WEIGHTS, "stage3_max_reuse_distance": 0, **NODES}},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **WEIGHTS, **PARAMETERS, **AWAY}},
    *({"rank": 0, "zero": {"stage": 3, **PREFETCH, **GRADIENTS}, "chips": chips} for chips in (8, 4)),
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **GRADIENTS}, "chips": 2, "micro_batches": 2},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **GRADIENTS, "overlap_comm": False}, "chips": 4, "bias": True},
    {"rank": 0, "zero": {"stage": 3, **PREFETCH, **GRADIENTS, **AWAY}, "chips": 4},
    {
        "rank": 0,
        "zero": {"stage": 3, **PREFETCH, **WEIGHTS, **GRADIENTS, **NODES, "stage3_max_reuse_distance": 0},
        "chips": 4,
        "checkpointed": True,
    },
    *(
        {"rank": rank, "zero": {"stage": stage, **more}, "sequence": shared, "kv_heads": heads, "checkpointed": again}
        for stage, more, rank in ((1, SMALL, 6), (3, {**PREFETCH, "stage3_max_reuse_distance": 0}, 0))
        for shared, heads, again in (
            (2, 8, False),
            (4, 8, True),
            (8, 8, False),
            (4, 4, False),
            (4, 2, True),
            (8, 2, False),
        )
    ),
    *(
        {"rank": 6, "zero": {"stage": 2, **SMALL, **more}, "sequence": 4, "kv_heads": 2, "micro_batches": several}
        for more, several in (({}, 1), ({"overlap_comm": True}, 2), (AWAY, 2))
    ),
    *(
        {"rank": 0, "zero": {"stage": 3, **PREFETCH, **more}, "sequence": 4, "kv_heads": 2, "micro_batches": several}
        for more, several in (({}, 2), (AWAY, 2), (NODES, 1), (WEIGHTS, 1))
    ),
    *(
        {"rank": 0, "zero": {"stage": 3, **PREFETCH, "overlap_comm": False}, "sequence": 4, "kv_heads": heads}
        for heads in (8, 2)
    ),
    *(
        {"rank": 6, "zero": {"stage": 1, **SMALL}, "sequence": shared, "kv_heads": 4, "batch": 2, "checkpointed": again}
        for shared, again in ((2, False), (4, True), (8, False))
    ),
    {"rank": 0, "zero": {"stage": 3, **PREFETCH}, "sequence": 2, "kv_heads": 8, "bias": True},
]


def alone(case):
    """A case as a process of its own writes it down."""
    with tempfile.NamedTemporaryFile("r") as answer:
        arguments = [sys.executable, sys.argv[0], sys.argv[1], answer.name, json.dumps(case)]
        subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
        return json.load(answer)


if CASE is None:
    with open(sys.argv[2], "w") as file:
        lines = ",\n".join(json.dumps(alone(case)) for case in CASES)
        file.write('{"format": "deepspeed-memory/1", "cases": [\n' + lines + "\n]}\n")
    sys.exit()

sys.path.insert(0, sys.argv[1])
os.environ.update(
    DS_ACCELERATOR="cuda",
    RANK=str(CASE["rank"]),
    LOCAL_RANK="0",
    WORLD_SIZE=str(WORLD),
    MASTER_ADDR="127.0.0.1",
    MASTER_PORT="29512",
)

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

dist.init_process_group("fake", rank=CASE["rank"], world_size=WORLD, store=FakeStore())
torch.backends.cuda.enable_cudnn_sdp(False)
torch.backends.cuda.enable_mem_efficient_sdp(False)
torch.backends.cuda.enable_math_sdp(False)

import deepspeed
import deepspeed.runtime.zero.partitioned_param_coordinator as coordinator

coordinator.assert_ints_same_as_other_ranks = lambda *_: None
away = CASE["zero"].get("offload_optimizer")
if "chips" in CASE:
    deepspeed.accelerator.get_accelerator().device_count = lambda: CASE["chips"]


class Adam:
    """Stands in for the extension of DeepSpeedCPUAdam."""

    def load(self):
        return self

    def create_adam(self, *_):
        pass

    destroy_adam = create_adam

    def adam_update(self, *arguments):
        mark(f"host adam {arguments[8].nbytes}")


class Disk:
    """Stands in for the extension that reads and writes files: a handle is a queue of its own."""

    handles, files, locked = [], {}, {}

    def __init__(self, **_):
        Disk.handles.append(self)
        self.at, self.under_way = len(Disk.handles) - 1, 0

    def new_cpu_locked_tensor(self, elements, like):
        made = torch.zeros(elements, dtype=like.dtype)
        Disk.locked[made.data_ptr()] = made.nbytes
        return made

    def free_cpu_locked_tensor(self, tensor):
        del Disk.locked[tensor.data_ptr()]

    def is_pinned(self, tensor):
        within = any(start <= tensor.data_ptr() < start + size for start, size in Disk.locked.items())
        return tensor.is_pinned() or within

    def issue(self, what, tensor, path):
        assert self.is_pinned(tensor)
        mark(f"> nvme {what} {tensor.nbytes}@{self.at}")
        self.under_way += 1
        return 0

    def async_pread(self, tensor, path, _):
        assert Disk.files[path] == tensor.nbytes, path
        return self.issue("read", tensor, path)

    def async_pwrite(self, tensor, path, _):
        Disk.files[path] = tensor.nbytes
        return self.issue("write", tensor, path)

    def wait(self):
        mark(f"nvme wait@{self.at}")
        done, self.under_way = self.under_way, 0
        return done


class Disks:
    aio_handle = Disk

    def load(self, **_):
        return self


class Quantizer:
    """Stands in for the extension that quantises: it makes the blocks of `csrc/quantization/pt_binding.cpp`."""

    Symmetric = 0

    def load(self, **_):
        return self

    def say(self, name, elements, groups):
        mark(f"{name} {elements}/{groups}{at(number(torch.cuda.current_stream()))}")

    def blocks(self, shape, groups):
        scales = torch.empty((groups, 1), dtype=torch.float32, device="cuda")
        return torch.empty(shape, dtype=torch.int8, device="cuda"), scales

    def quantize(self, values, groups, bits, _):
        made = self.blocks((*values.shape[:-1], values.shape[-1] * bits // 8), groups)
        self.say("quantize", values.numel(), groups)
        return made

    def dequantize(self, quantized, scales, groups, bits, _):
        shape = (*quantized.shape[:-1], quantized.shape[-1] * 8 // bits)
        made = torch.empty(shape, dtype=torch.float16, device="cuda")
        self.say("dequantize", made.numel(), groups)
        return made

    def swizzle_quant(self, values, groups, bits, *_):
        made = self.blocks((values.numel() * bits // 8,), groups)
        self.say("swizzle_quant", values.numel(), groups)
        return made

    def quantized_reduction(self, values, scales, groups, made_groups, bits, _, ranks):
        made = self.blocks((*values.shape[:-1], values.shape[-1] // ranks), made_groups)
        self.say("quantized_reduction", values.numel() * 8 // bits, made_groups)
        return made


import deepspeed.ops.op_builder as op_builder
import deepspeed.runtime.swap_tensor.partitioned_optimizer_swapper as whole_swapper
import deepspeed.runtime.swap_tensor.partitioned_param_swapper as param_swapper
import deepspeed.runtime.swap_tensor.pipelined_optimizer_swapper as pipelined_swapper

op_builder.QuantizerBuilder = Quantizer
for swapper in (whole_swapper, param_swapper, pipelined_swapper):
    swapper.AsyncIOBuilder = Disks


if SHARED > 1:
    import torch.distributed.nn.functional as differentiable
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
    from transformers import LlamaConfig
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    class Nccl:
        """What a gradient of a gather asks its group's backend: one that has a reduce-scatter."""

        get_backend = staticmethod(lambda **_: dist.Backend.NCCL)

        def __getattr__(self, name):
            return getattr(dist, name)

    differentiable.dist = Nccl()


def rotary(q, k, table):
    pairs_q = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
    pairs_k = torch.view_as_complex(k.float().reshape(*k.shape[:-1], -1, 2))
    table = table.view(1, LOCAL, 1, -1)
    turned_q = torch.view_as_real(pairs_q * table).flatten(3)
    turned_k = torch.view_as_real(pairs_k * table).flatten(3)
    return turned_q.type_as(q), turned_k.type_as(k)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        bias = CASE.get("bias", False)
        self.q, self.k, self.v = (nn.Linear(D, width, bias=bias) for width in (D, KEYS, KEYS))
        self.num_key_value_groups = D // KEYS
        self.o = nn.Linear(D, D, bias=False)

    def forward(self, x, table, positions):
        q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = [value.view(BATCH, LOCAL, -1, HEAD) for value in (q, k, v)]
        q, k = rotary(q, k, table)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if SHARED > 1:
            out, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](self, q, k, v, None, position_ids=positions)
            out = out.reshape(BATCH, LOCAL, -1).contiguous()
        else:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            out = out.transpose(1, 2).contiguous().view(BATCH, SEQ, -1)
        return self.o(out)


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(D, FF, bias=False)
        self.down = nn.Linear(FF, D, bias=False)
        self.up = nn.Linear(D, FF, bias=False)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.down(self.act(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(D, eps=1e-5), nn.RMSNorm(D, eps=1e-5)

    def forward(self, x, table, positions):
        h = x + self.attention(self.attention_norm(x), table, positions)
        return h + self.feed_forward(self.ffn_norm(h))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(V, D)
        frequencies = 10000.0 ** -(torch.arange(0, HEAD, 2).float() / HEAD)
        angles = torch.outer(torch.arange(SEQ).float(), frequencies)
        self.register_buffer("table", torch.polar(torch.ones_like(angles), angles), persistent=False)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(D, eps=1e-5)

    def forward(self, tokens, positions):
        h = self.embedding(tokens)
        own = self.table[CASE["rank"] % SHARED * LOCAL :][:LOCAL]
        for layer in self.layers:
            again = CASE.get("checkpointed")
            h = checkpoint(layer, h, own, positions, use_reentrant=False) if again else layer(h, own, positions)
        return self.norm(h)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.model, self.head = Decoder(), nn.Linear(D, V, bias=False)
        if CASE.get("tied"):
            self.head.weight = self.model.embedding.weight

    def forward(self, tokens, labels, positions):
        logits = self.head(self.model(tokens, positions))
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


marks, streams = None, {}


def mark(event):
    """An event, and how many blocks have come and gone before it."""
    if marks is not None:
        stats = torch.cuda.memory_stats()
        marks.append((stats["allocation.all.allocated"] + stats["allocation.all.freed"], event))


def number(stream):
    return streams.setdefault(stream.cuda_stream, len(streams))


def at(stream):
    return f"@{stream}" if stream else ""


def wrap(owner, name, note):
    plain = getattr(owner, name)

    def wrapped(*args, **kwargs):
        if (event := note(*args, **kwargs)) is not None:
            mark(event)
        return plain(*args, **kwargs)

    setattr(owner, name, wrapped)


def collective(kind, keys, place=0):
    def note(*args, **kwargs):
        whole = args[place] if len(args) > place else next(kwargs[key] for key in keys if key in kwargs)
        size = dist.get_world_size(kwargs.get("group"))
        within = f"/{size}" if size != WORLD else ""
        return f"> {kind} {whole.numel() * whole.element_size()}{within}{at(number(torch.cuda.current_stream()))}"

    return note


def listed(name, key, place):
    """A collective from or into a list of tensors, which are parts of one block while it runs."""
    plain = getattr(dist, name)

    def run(*args, **kwargs):
        parts = args[place] if len(args) > place else kwargs[key]
        size = sum(part.nbytes for part in parts)
        flat = torch.empty(size, dtype=torch.uint8, device="cuda") if parts[0].nbytes >= 16 else None
        within = f"/{len(parts)}" if len(parts) != WORLD else ""
        mark(f"> {name} {size}{within}")
        done = plain(*args, **kwargs)
        del flat
        return done

    setattr(dist, name, run)


listed("all_gather", "tensor_list", 0)
listed("reduce_scatter", "input_list", 1)
plain_gather = dist.all_gather_into_tensor


def flat_gather(output_tensor, input_tensor, *args, **kwargs):
    """NCCL sees no shapes; the group that exchanges nothing does."""
    return plain_gather(output_tensor.view(-1), input_tensor.view(-1), *args, **kwargs)


dist.all_gather_into_tensor = flat_gather
wrap(dist, "all_reduce", collective("all_reduce", ["tensor"]))
wrap(dist, "all_gather_into_tensor", collective("all_gather", ["output_tensor"]))
wrap(dist, "reduce_scatter_tensor", collective("reduce_scatter", ["input"], 1))
wrap(dist, "all_to_all_single", collective("all_to_all", ["input"], 1))
wrap(torch.cuda.Stream, "wait_stream", lambda stream, other: f"wait {number(stream)} {number(other)}")
wrap(torch.cuda.Stream, "synchronize", lambda stream: "drain")
wrap(torch.cuda, "synchronize", lambda *_: "drain")
for name in ("item", "__bool__", "__float__", "cpu"):
    wrap(torch.Tensor, name, lambda tensor: "drain" if tensor.is_cuda else None)
plain_copy, plain_to = torch.Tensor.copy_, torch.Tensor.to


def crosses(made, source, waits):
    """What is said of a copy: between the host and the device as many bytes cross as the device's tensor has."""
    if made.nbytes < 16 or made.device == source.device:
        if not made.is_cuda and made is not source and made.nbytes >= 16:
            mark(f"host copy_ {made.nbytes}")
        return
    here, name = (made, "from_host") if made.is_cuda else (source, "to_host")
    mark(f"> {name} {here.nbytes}{at(number(torch.cuda.current_stream()))}")
    if waits:
        mark("drain")


def copy_(made, source, non_blocking=False):
    crosses(made, source, not non_blocking)
    return plain_copy(made, source, non_blocking)


def to(source, *args, **kwargs):
    made = plain_to(source, *args, **kwargs)
    if made is not source and source.is_cuda != made.is_cuda:
        crosses(made, source, not kwargs.get("non_blocking"))
    return made


torch.Tensor.copy_, torch.Tensor.to = copy_, to
wrap(torch.Tensor, "mul_", lambda tensor, _: f"host mul_ {tensor.nbytes}" if not tensor.is_cuda else None)

number(torch.cuda.default_stream())
micro_batches = CASE.get("micro_batches", 1)
zero = json.loads(json.dumps(CASE["zero"]))
files = tempfile.TemporaryDirectory()
for table in ("offload_optimizer", "offload_param"):
    if zero.get(table, {}).get("device") == "nvme":
        zero[table]["nvme_path"] = files.name
config = {
    "train_micro_batch_size_per_gpu": BATCH,
    "gradient_accumulation_steps": micro_batches,
    "bf16": {"enabled": True},
    "zero_optimization": zero,
    "gradient_clipping": 1.0,
    "zero_allow_untested_optimizer": True,
    "steps_per_print": 10**9,
}
mpu = None
if SHARED > 1:
    sizes = {"hidden_size": D, "num_attention_heads": D // HEAD, "num_key_value_heads": KEYS // HEAD}
    known = LlamaConfig(**sizes, num_hidden_layers=LAYERS, attn_implementation="sdpa")
    known.config = known
    deepspeed.init_distributed()
    mpu = UlyssesSPAttentionHF.register_with_transformers(
        known, core_attn_implementation="sdpa", sequence_parallel_size=SHARED, micro_batch_size=BATCH
    )
    config["sequence_parallel_size"] = SHARED
model = Model().bfloat16()
if away:
    import deepspeed.ops.adam.cpu_adam as cpu_adam

    cpu_adam.CPUAdamBuilder = Adam
    optimizer = cpu_adam.DeepSpeedCPUAdam(model.parameters(), lr=1e-4)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, mpu=mpu)
tokens = torch.zeros(BATCH, LOCAL, dtype=torch.long, device="cuda")
labels, positions = tokens.clone(), tokens.clone() if SHARED > 1 else None
memory = []


def phase(name):
    memory.append([name, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()])
    torch.cuda.reset_peak_memory_stats()


def weighed(loss):
    """The loss of all tokens, from those of the ranks that share them, as the tutorial has it."""
    group = mpu.get_sequence_parallel_group()
    losses_per_rank = differentiable.all_gather(loss, group=group)
    good_tokens = (labels != -100).view(-1).sum()
    good_tokens_per_rank = differentiable.all_gather(good_tokens, group=group)
    total_loss = sum(losses_per_rank[rank] * good_tokens_per_rank[rank] for rank in range(SHARED))
    total_good_tokens = sum(good_tokens_per_rank)
    return total_loss / max(total_good_tokens, 1)


for step in range(5):
    gc.collect()
    if step == 4:
        context = "all" if os.environ.get("STACKS") else None
        torch.cuda.memory._record_memory_history(enabled="all", context=context, stacks="python", max_entries=10**6)
        marks = []
        mark("begin")
    memory.clear()
    phase("before")
    for at_micro_batch in range(micro_batches):
        loss = engine(tokens, labels, positions)
        if SHARED > 1:
            loss = weighed(loss)
        phase("fwd")
        engine.backward(loss)
        del loss
        phase("bwd")
        engine.step()
        phase("step")
trace = torch.cuda.memory._snapshot()["device_traces"][0]
blocks = [entry for entry in trace if entry["action"] in ("alloc", "free_requested")]
first, events = marks[0][0], []
marks = marks[1:]
for index, entry in enumerate([*blocks, None]):
    while marks and marks[0][0] - first <= index:
        events.append(marks.pop(0)[1])
    if entry and entry["size"] >= 16:
        sign = "+" if entry["action"] == "alloc" else "-"
        events.append(f"{sign}{entry['size']}{at(streams.get(entry['stream'], 9))}")
        if entry.get("frames"):
            frames = [f for f in entry["frames"] if "/torch/" not in f["filename"]]
            events[-1] += " " + " < ".join(f"{f['filename'].split('/')[-1]}:{f['line']}" for f in frames)[:120]
answer = {**CASE, "ranks": WORLD, "memory": memory, "events": events}
if away:
    tensors = [t for t in gc.get_objects() if isinstance(t, torch.Tensor)]
    tensors += [t.grad for t in tensors if t.is_leaf and t.grad is not None]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.device.type == "cpu"}
    taken = torch.cuda.memory.host_memory_stats()["active_bytes.current"]
    answer["host"] = {"taken": taken, "all": sum(storages.values())}
    if Disk.handles:
        answer["host"]["locked"] = sum(Disk.locked.values())
        answer["nvme"] = sum(Disk.files.values())
with open(sys.argv[2], "w") as file:
    json.dump(answer, file)
