"""What DeepSpeed's ZeRO-2 and ZeRO-3 issue in a step, in host order, and what they hold.

    python deepspeed_zero.py DEEPSPEED deepspeed-zero.json

Each case is run in a process of its own.

DEEPSPEED is a checkout of deepspeedai/DeepSpeed at edaa7221 (0.19.6) with its Python requirements installed beside it. It runs
unmodified as rank 0 of eight, on a process group that exchanges nothing, on a device on which kernels do nothing: PyTorch's
allocator, autograd and streams are real. Only the checks that all ranks have recorded the same order are left out, as
there are no others to ask. The fourth step is written down: by then the order of modules is known.

A case says the settings, the parameters' elements in the order of their ids, the parameters of each module, the modules in
the order recorded (stage 3), and the events of the step:
  ["ready", parameter] when its gradient is there; ["backward"], ["step"] where these begin;
  ["fetch", module], ["gather", parameters], ["release", module], ["free", parameters], ["reduce", parameters] (stage 3);
  ["all_reduce", bytes], ["all_gather", bytes] (stage 2);
with the bytes allocated before the step, after forward, backward and step, and the peak of each.
"""

import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, sys.argv[1])
WORLD = 8
os.environ.update(
    DS_ACCELERATOR="cuda", RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1", MASTER_PORT="29511"
)

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
torch.backends.cuda.enable_cudnn_sdp(False)
torch.backends.cuda.enable_mem_efficient_sdp(False)
torch.backends.cuda.enable_math_sdp(False)

import deepspeed
import deepspeed.runtime.zero.partitioned_param_coordinator as coordinator
import deepspeed.runtime.zero.stage3 as stage3
import deepspeed.runtime.zero.stage_1_and_2 as stage2

coordinator.assert_ints_same_as_other_ranks = lambda *_: None
D, FF, V, LAYERS, SEQ = 1024, 2816, 32000, 3, 512


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x):
        return F.rms_norm(x, (D,), self.weight)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.attention_norm, self.q, self.k, self.v, self.o = Norm(), *(linear(D, D) for _ in range(4))
        self.ffn_norm, self.w1, self.w3, self.w2 = Norm(), linear(D, FF), linear(D, FF), linear(FF, D)

    def forward(self, x):
        h = self.attention_norm(x)
        q, k, v = [f(h).view(1, SEQ, 8, 128).transpose(1, 2) for f in (self.q, self.k, self.v)]
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(h.transpose(1, 2).reshape(1, SEQ, D))
        h = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class Model(nn.Module):
    def __init__(self, again):
        super().__init__()
        self.again = again
        self.embedding = nn.Embedding(V, D)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = Norm(), nn.Linear(D, V, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return F.cross_entropy(self.head(self.norm(x)).float().view(-1, V), tokens.view(-1))


events = []


def wrap(owner, name, note):
    plain = getattr(owner, name)

    def wrapped(*args, **kwargs):
        event = note(*args, **kwargs)
        if event is not None:
            events.append(event)
        return plain(*args, **kwargs)

    setattr(owner, name, wrapped)


Coordinator = coordinator.PartitionedParameterCoordinator
wrap(Coordinator, "fetch_sub_module", lambda _, module, **__: ["fetch", module.ds_id])
wrap(Coordinator, "release_sub_module", lambda _, module, **__: ["release", module.ds_id])


def gathers(_, params, *__, **___):
    wanted = sorted(p.ds_id for p in params if p.ds_status.name == "NOT_AVAILABLE")
    return ["gather", wanted] if wanted else None


def frees(_, param, *__):
    return ["free", [param.ds_id]] if param.ds_status.name == "AVAILABLE" and not param.ds_active_sub_modules else None


def reduces(optimizer, dtype):
    params = sorted(p.ds_id for p in optimizer.ipg_buckets[dtype].params)
    return ["reduce", params] if params else None


wrap(Coordinator, "_PartitionedParameterCoordinator__all_gather_params_", gathers)
wrap(Coordinator, "_PartitionedParameterCoordinator__release_param", frees)
wrap(stage3.DeepSpeedZeroOptimizer_Stage3, "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads", reduces)
for owner in (stage2.DeepSpeedZeroOptimizer, stage3.DeepSpeedZeroOptimizer_Stage3):
    wrap(owner, "reduce_independent_p_g_buckets_and_remove_grads", lambda _, param, *__: ["ready", [places[id(param)]]])
stage, places = None, {}


def collective(kind):
    def note(*args, **kwargs):
        made = args[0] if args else next(kwargs[key] for key in ("output_tensor", "tensor") if key in kwargs)
        return [kind, made.numel() * made.element_size()] if stage < 3 else None

    return note


wrap(dist, "all_reduce", collective("all_reduce"))
wrap(dist, "all_gather_into_tensor", collective("all_gather"))


def case(number, zero, again, micro_batches):
    global stage
    stage = number
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": micro_batches,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, **zero},
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }
    model = Model(again).bfloat16()
    names = [name for name, _ in model.named_parameters()]
    places.clear()
    places.update({id(p): at for at, p in enumerate(model.parameters())})
    elements = [p.numel() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    tokens = torch.zeros(1, SEQ, dtype=torch.long, device="cuda")
    for _ in range(4):
        events.clear()
        memory = []

        def phase(name):
            memory.append([name, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()])
            torch.cuda.reset_peak_memory_stats()

        torch.cuda.reset_peak_memory_stats()
        phase("before")
        for _ in range(micro_batches):
            loss = engine(tokens)
            phase("forward")
            events.append(["backward"])
            engine.backward(loss)
            phase("backward")
            events.append(["step"])
            engine.step()
            phase("step")
    made = {
        "stage": stage,
        "ranks": WORLD,
        "zero": zero,
        "checkpointed": again,
        "micro_batches": micro_batches,
        "names": names,
        "elements": elements,
        "events": list(events),
        "memory": memory,
    }
    if stage == 3:
        order = engine.optimizer.parameter_offload.param_coordinator
        made["elements"] = [p.ds_numel for p in sorted(engine.module.parameters(), key=lambda p: p.ds_id)]
        # Modules and parameters by number, from 0.
        modules = sorted((m.ds_id, [p.ds_id for p in m.parameters(recurse=False)]) for m in engine.module.modules())
        place = {at: index for index, (at, _) in enumerate(modules)}
        first = min(at for _, params in modules for at in params)
        shift = lambda ids: [at - first for at in ids]
        made["modules"] = [shift(params) for _, params in modules]
        made["order"] = [place[m.ds_id] for m in order._PartitionedParameterCoordinator__submodule_order]
        number = {"fetch": place.get, "release": place.get, "ready": list}
        made["events"] = [[e[0], number.get(e[0], shift)(e[1])] if len(e) > 1 else e for e in made["events"]]
    return made


SMALL = {"reduce_bucket_size": 5_000_000, "allgather_bucket_size": 20_000_000}
PREFETCH = {"stage3_prefetch_bucket_size": 3_000_000, "stage3_param_persistence_threshold": 2_000}
CASES = [
    (2, {}, False, 1),
    (2, SMALL, False, 1),
    (2, {**SMALL, "overlap_comm": True}, False, 1),
    (2, {**SMALL, "overlap_comm": True, "contiguous_gradients": False}, False, 1),
    (2, {**SMALL, "round_robin_gradients": True}, False, 1),
    (1, SMALL, False, 1),
    (2, {"reduce_bucket_size": 40_000_000}, False, 2),
    (3, {}, False, 1),
    (3, PREFETCH, False, 1),
    (3, {**PREFETCH, "stage3_prefetch_bucket_size": 0}, False, 1),
    (3, {**PREFETCH, "stage3_param_persistence_threshold": 0}, False, 1),
    (3, {**PREFETCH, "stage3_prefetch_bucket_size": 50_000_000}, False, 1),
    (3, {**PREFETCH, "stage3_max_live_parameters": 36_000_000}, False, 1),
    (3, {**PREFETCH, "stage3_max_reuse_distance": 0}, False, 1),
    (3, {**PREFETCH, "stage3_max_reuse_distance": 12_000_000, "reduce_bucket_size": 5_000_000}, False, 1),
    (3, PREFETCH, True, 1),
    (3, {**PREFETCH, "stage3_max_reuse_distance": 0}, True, 1),
    (3, {**PREFETCH, "stage3_max_reuse_distance": 0, "reduce_bucket_size": 8_000_000}, False, 2),
]


def alone(index):
    """A case as a process of its own writes it down."""
    with tempfile.NamedTemporaryFile("r") as answer:
        subprocess.run([sys.executable, *sys.argv[:2], answer.name, str(index)], check=True, stdout=sys.stderr)
        return json.load(answer)


if len(sys.argv) > 3:
    with open(sys.argv[2], "w") as file:
        json.dump(case(*CASES[int(sys.argv[3])]), file)
else:
    with open(sys.argv[2], "w") as file:
        lines = ",\n".join(json.dumps(alone(index)) for index in range(len(CASES)))
        file.write('{"format": "deepspeed-zero/1", "cases": [\n' + lines + "\n]}\n")
