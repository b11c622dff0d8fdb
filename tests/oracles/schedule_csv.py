"""Writes schedule-csv.json: schedules read from a CSV by PyTorch, and what it makes of them.

Run with PyTorch 2.15: python3 schedule_csv.py > schedule-csv.json. The files are of kinds that no schedule of PyTorch's
table is: one stage on each rank, halves of some backwards only, stages there and back in an order of their own. Stages are
stand-ins, as in lowered.py.
"""

import json
import logging
import os
import tempfile

import torch
from torch.distributed.pipelining import schedules

from lowered import stages, words

logging.disable(logging.WARNING)


def one_stage(ranks, microbatches, halves):
    """1F1B; with halves, odd micro-batches go back in two."""
    rows = []
    for rank in range(ranks):
        warmup = min(microbatches, ranks - 1 - rank)
        row = [f"{rank}F{at}" for at in range(warmup)]
        for at in range(microbatches):
            if warmup + at < microbatches:
                row.append(f"{rank}F{warmup + at}")
            row += [f"{rank}I{at}", f"{rank}W{at}"] if halves and at % 2 else [f"{rank}B{at}"]
        rows.append(row)
    return rows


def there_and_back(ranks, microbatches):
    """All forwards of both stages, then all backwards, in a V."""
    rows = []
    for rank in range(ranks):
        both = [rank, 2 * ranks - 1 - rank]
        row = [f"{stage}F{at}" for stage in both for at in range(microbatches)]
        rows.append(row + [f"{stage}B{at}" for stage in reversed(both) for at in range(microbatches)])
    return rows


CASES = [
    (1, one_stage(2, 4, False)),
    (1, one_stage(4, 6, False)),
    (1, one_stage(3, 5, True)),
    (2, there_and_back(2, 3)),
    (2, there_and_back(3, 2)),
]


def case(virtual, rows):
    text = "".join(",".join(row) + "\n" for row in rows)
    ranks = len(rows)
    microbatches = 1 + max(int(cell.lstrip("0123456789")[1:]) for row in rows for cell in row)
    made = schedules._PipelineScheduleRuntime(stages(ranks, virtual), microbatches)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.csv")
        with open(path, "w") as file:
            file.write(text)
        made._load_csv(path)
    with_comms = [words(made.pipeline_order_with_comms[rank]) for rank in range(ranks)]
    return {"csv": text, "with_comms": with_comms}


def main():
    lines = ",\n".join(json.dumps(case(*given), separators=(",", ":")) for given in CASES)
    print(f'{{"torch":"{torch.__version__}","cases":[\n{lines}\n]}}')


if __name__ == "__main__":
    main()
