"""What nanotron's pipeline engines do in a step, stage by stage, in host order.

    python nanotron_engine.py NANOTRON > nanotron-engine.json

NANOTRON is a checkout of huggingface/nanotron at c2528430. Its `engine.py`, `state.py`, `functional.py`, `block.py`,
`context_manager.py` and `tensor_pointer.py` run unmodified, a process for each stage, on numbers in place of a model: a stage is one
`PipelineBlock` that is given a hidden state and a mask. Messages are queues that write down what goes through them.

Each case says the engine, stages, micro-batches, and for each stage its events: F and B (the stage's block ran forward, its
backward began), send and recv of h (hidden state), m (mask), g (gradient).
"""

import importlib.util
import json
import multiprocessing
import sys
import types
from contextlib import ExitStack
from pathlib import Path

import torch

root = Path(sys.argv[1]) / "src/nanotron/parallel/pipeline_parallel"
events = []


def module(name, **contents):
    made = types.ModuleType(name)
    made.__dict__.update(contents)
    sys.modules[name] = made
    return made


class Quiet:
    def __getattr__(self, _):
        return lambda *_: None


class ContextManagers:
    def __init__(self, managers):
        self.managers, self.stack = managers, ExitStack()

    def __enter__(self):
        for manager in self.managers:
            self.stack.enter_context(manager)

    def __exit__(self, *args):
        self.stack.__exit__(*args)


class Group:
    def __init__(self, rank, size):
        self.own, self.count = rank, size

    def size(self):
        return self.count

    def rank(self):
        return self.own


class P2P:
    """One queue for each pair and direction."""

    def __init__(self, pg, queues):
        self.pg, self.queues = pg, queues

    @staticmethod
    def kind(tensor, forwards):
        if tensor.dtype == torch.bool:
            return "m"
        return "h" if forwards else "g"

    def send_tensors(self, tensors, to_rank):
        (tensor,) = tensors
        events.append("send " + self.kind(tensor, to_rank > self.pg.own))
        self.queues[self.pg.own, to_rank].put((tensor.detach().tolist(), tensor.dtype == torch.bool))

    def recv_tensors(self, num_tensors, from_rank):
        values, is_mask = self.queues[from_rank, self.pg.own].get()
        tensor = torch.tensor(values, dtype=torch.bool if is_mask else torch.float32)
        if not is_mask and from_rank < self.pg.own:
            tensor.requires_grad_()
        events.append("recv " + self.kind(tensor, from_rank < self.pg.own))
        return [tensor]


class NoBatch:
    def __init__(self, _):
        pass

    def flush(self):
        return []


class Accumulator:
    def backward(self, loss):
        loss.backward()


class Began(torch.autograd.Function):
    """Says when the stage's backward begins."""

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        events.append("B")
        return gradient


class Stage(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, hidden_states, sequence_mask):
        events.append("F")
        return {"hidden_states": Began.apply(hidden_states * self.weight), "sequence_mask": sequence_mask}


def load():
    package = "nanotron.parallel.pipeline_parallel"
    for name in ("nanotron", "nanotron.optim", "nanotron.parallel", "nanotron.parallel.data_parallel", package):
        module(name, __path__=[])
    distributed = module("nanotron.distributed", get_rank=lambda group: group.own, ProcessGroup=Group)
    sys.modules["nanotron"].distributed = distributed
    logging = module("nanotron.logging", get_logger=lambda _: Quiet(), log_rank=lambda *_, **__: None, DEBUG=0)
    sys.modules["nanotron"].logging = logging
    module("nanotron.optim.gradient_accumulator", GradientAccumulator=Accumulator)
    module("nanotron.parallel.data_parallel.utils", ddp_trigger_sync_in_bwd=None)
    module("nanotron.utils", ContextManagers=ContextManagers)
    module(package + ".p2p", P2P=P2P, BatchTensorSendRecvState=NoBatch)
    for name in ("tensor_pointer", "state", "functional", "block", "context_manager", "engine"):
        spec = importlib.util.spec_from_file_location(f"{package}.{name}", root / f"{name}.py")
        made = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = made
        spec.loader.exec_module(made)
    return (sys.modules[f"{package}.{name}"] for name in ("engine", "block", "tensor_pointer"))


def stage(engine_name, rank, stages, micro_batches, queues, results):
    engine, block, pointer = load()
    group = Group(rank, stages)
    p2p = P2P(group, queues)
    keys = {"hidden_states", "sequence_mask"}

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList(block.PipelineBlock(p2p, Stage, {}, keys, keys) for _ in range(stages))
            self.loss = block.PipelineBlock(p2p, lambda: lambda x: {"loss": x.sum()}, {}, {"x"}, {"loss"})
            for at, stage in enumerate(self.blocks):
                stage.build_and_set_rank(at)
            self.loss.build_and_set_rank(stages - 1)

        def forward(self, **values):
            for stage in self.blocks:
                values = stage(**values)
            return self.loss(x=values["hidden_states"])

    def batch():
        for _ in range(micro_batches):
            if rank == 0:
                yield {"hidden_states": torch.ones(1), "sequence_mask": torch.ones(1, dtype=torch.bool)}
            else:
                yield {key: pointer.TensorPointer(group_rank=0) for key in keys}

    runner = getattr(engine, engine_name)()
    runner.train_batch_iter(Model(), group, batch(), micro_batches, Accumulator())
    results.put((rank, events))


def run(engine_name, stages, micro_batches):
    context = multiprocessing.get_context("fork")
    queues = {(a, b): context.Queue() for a in range(stages) for b in range(stages) if a != b}
    results = context.Queue()
    processes = [
        context.Process(target=stage, args=(engine_name, rank, stages, micro_batches, queues, results))
        for rank in range(stages)
    ]
    for process in processes:
        process.start()
    said = dict(results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    engine = {"O": "1f1b", "A": "afab"}[engine_name[0]]
    return {"engine": engine, "stages": stages, "micro_batches": micro_batches, "ranks": [said[r] for r in range(stages)]}


torch.set_num_threads(1)
names = ("OneForwardOneBackwardPipelineEngine", "AllForwardAllBackwardPipelineEngine")
cases = [run(name, *shape) for name in names for shape in [(2, 1), (2, 4), (4, 4), (4, 8)]]
print("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")
