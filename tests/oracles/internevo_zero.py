"""What InternEvo v0.1.0's HybridZeroOptimizer issues in a step, in host order.

    python internevo_zero.py INTERNEVO > internevo-zero.json

INTERNEVO is a checkout of InternLM/InternEvo at e1cefaef (v0.1.0). Its `hybrid_zero_optim.py`, `store.py` and `utils.py` run
unmodified, on CPU tensors of the sizes given here; Apex, the parallel context, streams and collectives are stand-ins that
write down what is asked of them. Collectives change nothing: only their order and sizes are of interest. Gradients of all
parameters are made by one backward of a sum, after which AccumulateGrad hooks fire as in training.

Each case says the sizes of the parameters in the order of registration, the ranks of the two groups, the bucket's elements, the
rank that steps, and then, by rank, elements owned, and the events of a step.
"""

import importlib.util
import json
import sys
import types
from pathlib import Path

import torch

root = Path(sys.argv[1]) / "internlm"
events = []
world = {"data": 1, "zero1": 1, "rank": 0}


class Mode:
    ZERO1, DATA, MODEL, PIPELINE, TENSOR, GLOBAL = "zero1", "data", "model", "pipeline", "tensor", "global"


class Context:
    def get_local_rank(self, mode):
        return world["rank"] if mode == Mode.ZERO1 else 0

    def get_world_size(self, mode):
        return world.get(mode, 1)

    def get_group(self, mode):
        return mode

    def get_ranks_in_group(self, mode):
        return list(range(world[mode]))

    def is_rank_for_log(self):
        return False

    def is_initialized(self, mode):
        return mode in (Mode.MODEL, Mode.TENSOR)


def module(name, **contents):
    made = types.ModuleType(name)
    made.__dict__.update(contents)
    sys.modules[name] = made
    return made


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


class Timer:
    def start(self):
        events.append(["synchronize"])

    stop = start


class Quiet:
    def __getattr__(self, _):
        return lambda *_: None


class Work:
    def wait(self):
        pass


def collective(kind):
    def issue(tensor, *_, group=None, async_op=False, **__):
        events.append([kind, group, tensor.numel() * tensor.element_size()])
        return Work() if async_op else None

    return issue


def norm(_kernel, _flag, lists, _each):
    return torch.stack([grad.norm() for grad in lists[0]]).norm(), None


module("amp_C", multi_tensor_l2norm=None)
module("apex")
module("apex.multi_tensor_apply", multi_tensor_applier=norm)
for package in ("internlm", "internlm.core", "internlm.solver", "internlm.solver.optimizer", "internlm.utils"):
    module(package, __path__=[])
module("internlm.core.context", ParallelMode=Mode, Config=dict, global_context=Context())
module("internlm.utils.logger", get_logger=lambda _: Quiet())
module("internlm.utils.megatron_timers", megatron_timer=lambda _: Timer())
module("internlm.utils.parallel", is_model_parallel_parameter=lambda _: True)
module(
    "internlm.utils.common",
    get_current_device=lambda: "cpu",
    get_tensor_norm=lambda norm, _: norm.reshape(1),
    move_norm_to_cuda=lambda norm: norm,
)
torch.cuda.synchronize = lambda: events.append(["synchronize"])
torch.cuda.Stream = lambda: None
torch.cuda.stream = lambda _: torch.no_grad()
torch.cuda.FloatTensor = lambda values, device=None: torch.tensor(values, dtype=torch.float32)
torch.cuda.IntTensor = lambda values: torch.tensor(values, dtype=torch.int32)
torch.Tensor.cuda = lambda self: self
torch.distributed.all_reduce = collective("all_reduce")
torch.distributed.broadcast = collective("broadcast")
# `split_half_float_double` asks for CUDA's type names.
plain_type = torch.Tensor.type
torch.Tensor.type = lambda self, *to: "torch.cuda.BFloat16Tensor" if not to else plain_type(self, *to)
item = torch.Tensor.item
torch.Tensor.item = lambda self: (events.append(["item"]), item(self))[1]
torch.Tensor.__float__ = lambda self: self.item()

load("internlm.solver.optimizer.store", root / "solver/optimizer/store.py")
load("internlm.solver.optimizer.utils", root / "solver/optimizer/utils.py")
zero = load("internlm.solver.optimizer.hybrid_zero_optim", root / "solver/optimizer/hybrid_zero_optim.py")


class Settings(dict):
    __getattr__ = dict.__getitem__


def run(sizes, data, zero1, bucket, rank):
    world.update(data=data, zero1=zero1, rank=rank)
    params = [torch.nn.Parameter(torch.ones(size, dtype=torch.bfloat16)) for size in sizes]
    scaler = Settings(
        fp16=Settings(initial_scale=1, min_scale=1, growth_interval=1000),
        growth_factor=2,
        backoff_factor=0.5,
        max_scale=2**24,
        hysteresis=2,
    )
    settings = Settings(zero_overlap_communication=True, reduce_bucket_size=bucket, clip_grad_norm=1.0)
    inner = torch.optim.AdamW([{"params": params, "weight_decay": 0.01}], lr=1e-4, foreach=False)
    # AdamW's own count of steps lies on the host: nobody waits for it.
    step = inner.step

    def silent():
        before = list(events)
        step()
        events[:] = before

    inner.step = silent
    optimizer = zero.HybridZeroOptimizer(inner, grad_scal_cfg=scaler, zero_cfg=settings)
    owned = [
        sum(param.numel() for param in optimizer._param_store._rank_groupid_to_fp16_param_list.get(owner, {}).get(0, []))
        for owner in range(zero1)
    ]
    # One parameter after the other is used, the first first: gradients arrive in reverse.
    total = torch.zeros((), dtype=torch.bfloat16)
    for param in params:
        total = total + param.sum()
    events.clear()
    optimizer.backward(total)
    optimizer.step()
    return {
        "sizes": sizes,
        "data": data,
        "zero1": zero1,
        "bucket": bucket,
        "rank": rank,
        "owned": owned,
        "events": [list(event) for event in events],
    }


block = [48, 3, 16, 1, 4, 4, 43, 43, 43]
sizes = [103, *block, *block, *block, 4, 103]
cases = [
    run(sizes, data, zero1, bucket, rank)
    for data, zero1, bucket, rank in [(4, 4, 200, 0), (8, 2, 64, 1), (2, 2, 1000, 0), (64, 64, 128, 40), (4, 1, 150, 0)]
]
print("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")
