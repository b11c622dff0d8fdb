"""What is trained: one `Configuration` a receipt, in the order of what it is worth.

To add one: a line in `CONFIGURATIONS`. A new kind of variant is a field here, code in `model.py` or `train.py`, a key in
`write.py`, and a rule in `sim/receipt/frameworks/receipt-maker.toml`.
"""

from dataclasses import dataclass, fields

from model import SHAPES

# The field's word in an id, where its value is not the default.
WORDS = {
    "micro": "b{}",
    "accumulation": "ga{}",
    "runtime": "{}",
    "precision": "{}",
    "recompute": "ac-{}",
    "compile": "compile-{}",
    "optimizer": "{}",
    "clip": "clip",
    "attention": "{}",
    "loss": "loss-{}",
    "norm": "{}-norm",
    "rope": "{}",
    "repeat_kv": "repeat-kv",
    "reshard": "no-reshard",
    "expandable": "expandable",
    "clocks": "{}",
}


@dataclass(frozen=True)
class Configuration:
    """A training run. Words are a scenario's own (`README.md`, "Write your own")."""

    model: str
    layers: int
    sequence: int
    micro: int = 1
    accumulation: int = 1
    runtime: str = "single_device"  # or fsdp2
    precision: str = "bf16"  # parameters, gradients and states in bf16; or mixed: fp32 parameters, MixedPrecisionPolicy
    recompute: str = "none"  # or full, every_2, selective_op
    compile: str = "none"  # or blocks, all (blocks and loss)
    optimizer: str = "fused"  # or foreach
    clip: bool = False
    attention: str = "flash2"  # or cudnn
    loss: str = "fp32"  # logits cast to fp32; or bf16: as they are
    norm: str = "fused"  # or composed
    rope: str = "complex"  # or rotate_half
    repeat_kv: bool = False
    reshard: bool = True
    expandable: bool = False
    clocks: str = "burst"  # or sustained

    def __post_init__(self):
        assert self.precision == "bf16" or self.runtime == "fsdp2", "one device has no mixed precision here"
        assert self.reshard or self.runtime == "fsdp2", "one device has nothing to reshard"

    def seconds(self, sustained):
        """About how long it takes to measure; `sustained` is training at sustained clocks. Assumed: a start and a short
        window take 25 s, a compilation a minute more."""
        return 25 + (60 if self.compile != "none" else 0) + (sustained if self.clocks == "sustained" else 0)

    @property
    def shape(self):
        return SHAPES[self.model]

    @property
    def id(self):
        """Model, blocks, sequence, then whatever is not the default."""
        words = [self.model, f"{self.layers}l", f"s{self.sequence}"]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in WORDS and value != field.default:
                words.append(WORDS[field.name].format(str(value).replace("_", "-")))
        return "-".join(words)


def c(model, layers, sequence, **over):
    return Configuration(model, layers, sequence, **over)


MIXED = {"runtime": "fsdp2", "precision": "mixed"}

CONFIGURATIONS = [
    # The kernels of a step at 8B width, then what changes them most.
    c("8b", 4, 8192),
    c("8b", 4, 8192, compile="all"),
    c("8b", 4, 8192, recompute="full"),
    c("8b", 4, 8192, **MIXED),
    c("70b", 1, 4096),
    c("1b", 16, 4096),
    c("8b", 4, 8192, clocks="sustained"),
    c("8b", 4, 8192, attention="cudnn"),
    c("70b", 2, 4096, compile="all"),
    c("8b", 4, 8192, recompute="selective_op", compile="all", **MIXED),
    # Sequence and batch.
    c("8b", 4, 2048, micro=4),
    c("8b", 4, 16384, recompute="full"),
    c("8b", 4, 4096),
    c("8b", 4, 2048),
    c("8b", 2, 16384),
    c("1b", 16, 8192, recompute="full"),
    c("1b", 16, 2048),
    c("70b", 2, 2048),
    c("70b", 4, 2048, recompute="full"),
    # One block less: what a block costs, without embedding, head and loss.
    c("8b", 1, 8192),
    c("8b", 2, 8192),
    # Sustained clocks.
    c("70b", 2, 4096, clocks="sustained"),
    c("8b", 4, 8192, compile="all", clocks="sustained"),
    # Checkpointing, FSDP2 and the optimizer, one by one.
    c("8b", 4, 8192, recompute="selective_op"),
    c("8b", 4, 8192, recompute="every_2"),
    c("8b", 4, 8192, recompute="full", **MIXED),
    c("8b", 4, 8192, recompute="full", compile="blocks"),
    c("8b", 4, 8192, compile="all", **MIXED),
    c("8b", 4, 8192, reshard=False, **MIXED),
    c("8b", 4, 8192, runtime="fsdp2"),
    c("8b", 4, 8192, accumulation=2, **MIXED),
    c("8b", 4, 8192, clip=True, **MIXED),
    c("8b", 4, 8192, optimizer="foreach"),
    c("8b", 4, 8192, optimizer="foreach", clip=True),
    c("70b", 1, 4096, recompute="full", **MIXED),
    c("70b", 1, 8192, recompute="full", clip=True, runtime="fsdp2"),
    c("1b", 16, 4096, compile="all"),
    c("1b", 16, 4096, **MIXED),
    # How the model's code is written.
    c("8b", 4, 8192, loss="bf16"),
    c("8b", 4, 8192, norm="composed"),
    c("8b", 4, 8192, rope="rotate_half"),
    c("8b", 4, 8192, repeat_kv=True),
    c("8b", 4, 8192, norm="composed", compile="blocks"),
    c("8b", 4, 8192, recompute="full", expandable=True, **MIXED),
    # Rotations by halves, compiled: reserved memory hangs on whether they write over what they read, and on the order in
    # which a block is computed again.
    c("8b", 4, 8192, rope="rotate_half", compile="blocks"),
    c("8b", 1, 4096, rope="rotate_half", recompute="full", compile="blocks"),
    c("8b", 2, 2048, rope="rotate_half", recompute="full", compile="blocks", loss="bf16", **MIXED),
    c("1b", 4, 4096, rope="rotate_half", repeat_kv=True, compile="all"),
    # Short steps whose reserved memory hangs on which buffer a compiled norm's backward writes over.
    c("8b", 3, 2048, recompute="selective_op", compile="blocks", clip=True, loss="bf16", **MIXED),
    c("8b", 3, 2048, recompute="selective_op", compile="all", clip=True, norm="composed", **MIXED),
    # Attention at length, at 70B width.
    c("70b", 1, 16384, recompute="full"),
    c("70b", 1, 16384, recompute="full", attention="cudnn"),
]
