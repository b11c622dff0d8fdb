"""Writes deepspeed.json: instructions of each stage of DeepSpeed's TrainSchedule, in order.

Run with a checkout's file: python3 deepspeed.py .../deepspeed/runtime/pipe/schedule.py > deepspeed.json. Nothing else of
DeepSpeed is needed: the file's one import from its package prints instructions, and is replaced.
"""

import json
import sys

WORDS = {
    "ForwardPass": "F",
    "BackwardPass": "B",
    "SendActivation": "SEND_F",
    "RecvActivation": "RECV_F",
    "SendGrad": "SEND_B",
    "RecvGrad": "RECV_B",
}
SHAPES = [(1, 1), (1, 3), (2, 1), (2, 2), (2, 5), (3, 1), (3, 2), (3, 7), (4, 4), (4, 9), (5, 3), (6, 6), (7, 16), (8, 5), (12, 20)]


def schedule(path):
    with open(path) as file:
        text = file.read().replace("from ..utils import call_to_str", "call_to_str = None")
    module = {"__name__": "schedule"}
    exec(compile(text, path, "exec"), module)
    return module["TrainSchedule"]


def actions(train):
    """Instructions name buffers; the micro-batch in one is the last that was received or loaded into it."""
    held, counts, words = {}, {"F": 0, "B": 0}, []
    for step in train:
        for command in step:
            word = WORDS.get(command.name)
            if word is None:
                continue
            if word in ("F", "RECV_F") and held.get(("new", command.buffer_id)) != counts["F"]:
                held[command.buffer_id] = counts["F"]
                held["new", command.buffer_id] = counts["F"]
            if word in ("F", "B"):
                assert held[command.buffer_id] == counts[word]
                counts[word] += 1
            words.append(f"{train.stage_id}{word}{held[command.buffer_id]}")
    return " ".join(words)


TrainSchedule = schedule(sys.argv[1])
cases = []
for stages, micro_batches in SHAPES:
    made = [TrainSchedule(micro_batches=micro_batches, stages=stages, stage_id=stage) for stage in range(stages)]
    cases.append({
        "schedule": "DeepSpeed1F1B",
        "pp": stages,
        "virtual_stages": 1,
        "microbatches": micro_batches,
        "buffers": [train.num_pipe_buffers() for train in made],
        "with_comms": [actions(train) for train in made],
    })
print(json.dumps({"cases": cases}, indent=1))
