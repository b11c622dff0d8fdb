"""Sweeps and plans on a Ray cluster: ``pip install ray``, and this package on every node.

A sweep is cut into batches of neighbouring scenarios, and each batch is a Ray task. A row depends on its number alone, so the answer is
the same to the byte as in one process, wherever tasks run and however often a killed one is run again::

    import ray, windtunnel.ray

    ray.init()
    rows = windtunnel.ray.best("mine.toml", {"batch.micro": [1, 2, 4], "mesh": meshes}, keep=5)

``plan`` is ``windtunnel.plan`` on the cluster, with the same answer to the byte.

Workers need no copy of the file of a scenario or a request. Files that it names, such as a topology, must be readable on every node under
the same path; relative ones are looked for from the directory of the calling process.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Optional, TypeVar

try:
    import ray
except ImportError as error:
    raise ImportError("windtunnel.ray needs Ray, which is not installed: pip install ray") from error

from . import _sweep, _windtunnel
from ._prediction import Scenario
from ._ray_plan import plan
from ._sweep import Row, Sweep, Vary
from ._worker import answer_of, as_the_caller

__all__ = ["best", "plan", "spread", "sweep"]

# Tasks that are submitted and not collected, at least; on large clusters there are two for each processor.
AHEAD = 64

T = TypeVar("T")


def sweep(
    scenario: Scenario,
    vary: Vary,
    *,
    batch: int = 16,
    retries: int = 3,
    progress: Optional[Callable[[int, int], object]] = None,
) -> Sweep:
    """Predicts every combination of some keys' values on a Ray cluster. The rows are those of ``windtunnel.sweep``.

    Args:
        scenario: The path of a scenario file, or a mapping with the keys of one.
        vary: Keys with the values that each shall take, as in ``windtunnel.sweep``.
        batch: How many scenarios a task simulates, one after the other on one processor.
        retries: How often a task is run again whose worker was killed.
        progress: Called as batches are collected, with how many scenarios are done and how many there are.

    Raises:
        ScenarioError: No scenario has such a key, or a worker cannot read a file that a scenario names.
        ray.exceptions.WorkerCrashedError: A task's worker was killed more often than ``retries``.
    """
    task = _rows_task(scenario, vary)
    parts = spread(task, _windtunnel.points(vary), batch=batch, retries=retries, progress=progress)
    return Sweep([row for part in parts for row in part])


def best(
    scenario: Scenario,
    vary: Vary,
    *,
    by: str = "tokens_per_second_per_chip",
    keep: int = 10,
    batch: int = 16,
    retries: int = 3,
    progress: Optional[Callable[[int, int], object]] = None,
) -> list[Row]:
    """The best rows of a sweep among those whose plan fits in memory, best first. They are those of ``Sweep.best``.

    Tasks return no other rows, so that a sweep may have more rows than one machine holds.

    Args:
        by: ``tokens_per_second_per_chip`` or ``mfu``, of which more is better, or ``step_time_s``, of which less is better.
        keep: How many rows at most.
        scenario, vary, batch, retries, progress: As in ``sweep``.
    """
    _sweep.check_rank(by, keep)
    task = functools.partial(_best_of, _rows_task(scenario, vary), by, keep)
    kept: list[Row] = []
    for part in spread(task, _windtunnel.points(vary), batch=batch, retries=retries, progress=progress):
        kept = _sweep.best([*kept, *part], by, keep)
    return kept


def spread(
    task: Callable[[int, int], T],
    count: int,
    *,
    batch: int,
    retries: int,
    progress: Optional[Callable[[int, int], object]] = None,
) -> Iterator[T]:
    """Runs ``task(start, stop)`` for every batch of ``range(count)`` on a Ray cluster, and yields what it returns, in order.

    The task is pickled. It must give the same answer each time, because a task whose worker is killed is run again. It may hold handles
    of Ray actors, through which tasks tell each other what they have found.

    When the caller stops early, or a task fails, the other tasks are cancelled.
    """
    if batch < 1:
        raise ValueError(f"batch is {batch}: write 1 or more")
    run = ray.remote(_run).options(name="windtunnel", num_cpus=1, max_retries=retries)
    # Sent once, not with each batch.
    shared = ray.put(task)
    pending: deque[tuple[int, ray.ObjectRef]] = deque()
    try:
        for start in range(0, count, batch):
            while len(pending) >= _ahead():
                yield _collected(pending, count, progress)
            stop = min(start + batch, count)
            pending.append((stop, run.remote(shared, start, stop)))
        while pending:
            yield _collected(pending, count, progress)
    finally:
        for _, reference in pending:
            ray.cancel(reference)


def _run(task: Callable[[int, int], T], start: int, stop: int) -> T:
    return task(start, stop)


def _ahead() -> int:
    return max(AHEAD, 2 * int(ray.cluster_resources().get("CPU", 0)))


def _collected(
    pending: deque[tuple[int, ray.ObjectRef]], count: int, progress: Optional[Callable[[int, int], object]]
) -> Any:
    done, reference = pending.popleft()
    answer = answer_of(reference)
    if progress is not None:
        progress(done, count)
    return answer


def _rows_task(scenario: Scenario, vary: Vary) -> Callable[[int, int], list[Row]]:
    """What simulates a batch. Whatever is wrong with all of them is said here, before a task is sent."""
    source = _windtunnel.source(scenario)
    _sweep.rows(source, vary, 0, 0)
    return functools.partial(_rows, source, dict(vary), os.getcwd(), _windtunnel.VERSION)


def _rows(source: tuple[str, str], vary: Vary, folder: str, version: str, start: int, stop: int) -> list[Row]:
    """Rows of a batch, on a worker."""
    with as_the_caller(folder, version):
        return _sweep.rows(source, vary, start, stop, threads=1)


def _best_of(rows: Callable[[int, int], list[Row]], by: str, keep: int, start: int, stop: int) -> list[Row]:
    return _sweep.best(rows(start, stop), by, keep)
