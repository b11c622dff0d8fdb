"""Writes lowered.json: pipeline schedules of torch.distributed.pipelining in odd shapes and with its options.

Run with PyTorch 2.15: python3 lowered.py > lowered.json. No process group is needed: stages are stand-ins that know their
place, and only the constructors run.
"""

import json
import logging
from unittest import mock

import torch
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.stage import PipelineStage

logging.disable(logging.WARNING)

SHAPES = [
    ("Interleaved1F1B", [(1, 2, 3), (3, 2, 5), (3, 2, 8), (3, 3, 2), (4, 2, 6), (5, 3, 5), (2, 5, 6)]),
    ("LoopedBFS", [(1, 3, 2), (3, 2, 2), (3, 4, 5), (5, 1, 4)]),
    ("InterleavedZeroBubble", [(1, 2, 2), (3, 2, 8), (4, 1, 6), (4, 2, 3), (5, 3, 10)]),
    ("ZBVZeroBubble", [(1, 2, 1), (3, 2, 2), (3, 2, 5), (4, 2, 3), (5, 2, 13)]),
    ("DualPipeV", [(1, 2, 2), (3, 2, 6), (3, 2, 7), (5, 2, 11)]),
]
OPTIONS = [
    {},
    {"defer_pp_recv": True},
    {"defer_reduce_grad_wait": True},
    {"max_active_stages": 2, "unshard_lookahead": "auto"},
    {"max_active_stages": 4, "unshard_lookahead": "ramp"},
    {"max_active_stages": 5, "defer_pp_recv": True, "defer_reduce_grad_wait": True, "unshard_lookahead": "auto"},
]


def stages(ranks, virtual):
    made = []
    for chunk in range(virtual):
        stage = mock.create_autospec(PipelineStage, instance=True)
        stage.group_rank, stage.group_size, stage.submod = 0, ranks, None
        stage.num_stages, stage.stage_index = ranks * virtual, chunk * ranks
        made.append(stage)
    return made


def words(actions):
    return " ".join(str(action) for action in actions if action is not None)


def case(name, ranks, virtual, microbatches, options):
    passed = dict(options)
    if passed.get("unshard_lookahead") == "ramp":
        passed["unshard_lookahead"] = tuple(1 + rank % passed["max_active_stages"] for rank in range(ranks))
        options = {**options, "unshard_lookahead": passed["unshard_lookahead"]}
    made = schedules.get_schedule_class(name)(stages(ranks, virtual), microbatches, **passed)
    return {
        "schedule": name,
        "pp": ranks,
        "virtual_stages": virtual,
        "microbatches": microbatches,
        "opts": options,
        "compute": [words(made.pipeline_order[rank]) for rank in range(ranks)],
        "with_comms": [words(made.pipeline_order_with_comms[rank]) for rank in range(ranks)],
    }


def main():
    cases = [case(name, *shape, options) for name, shapes in SHAPES for shape in shapes for options in OPTIONS]
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    print(f'{{"torch":"{torch.__version__}","cases":[\n{lines}\n]}}')


if __name__ == "__main__":
    main()
