"""The planner on a Ray cluster: the caller proves what need not be simulated, and workers simulate the rest.

There are as many tasks as processors, and each simulates one plan. Whenever one ends, the caller hears the plan's step and hands out the
next plan. It skips plans whose bound is above the last ranked step so far, so that what one worker finds saves the others work.
"""

from __future__ import annotations

import functools
import os
import uuid
from typing import Optional

import ray

from . import _windtunnel
from ._plan import PlanAnswer, Progress, Request, from_text
from ._worker import answer_of, as_the_caller


def plan(
    request: Request,
    *,
    exhaustive: bool = False,
    retries: int = 3,
    progress: Optional[Progress] = None,
) -> PlanAnswer:
    """Searches for layouts on a Ray cluster. The answer is that of ``windtunnel.plan``, to the byte.

    The caller looks at all plans and bounds them, on all of its own processors. Ray tasks simulate, the plan with the best bound first.

    Args:
        request: The path of a request file, or a mapping with the keys of one. Workers need no copy of the file. Files that it names must
            be readable on every node under the same path.
        exhaustive: Whether to simulate every legal plan. The ranking is the same.
        retries: How often a task is run again whose worker was killed.
        progress: Called with how many plans are looked at, how many there are to look at, and how many are simulated. The last number may
            end above ``Counts.simulated``: some plans are handed out before the steps are known that beat them.

    Raises:
        ScenarioError: The request is wrong, the caller or a worker cannot read a file that it names, or no plan does what is asked.
        ray.exceptions.WorkerCrashedError: A task's worker was killed more often than ``retries``.
    """
    source = _windtunnel.source(request, "request")
    search = _windtunnel.Search(*source, exhaustive, progress)
    search.look()
    # Sent once, not with each plan.
    task = ray.put(functools.partial(_simulate, source, os.getcwd(), _windtunnel.VERSION, uuid.uuid4().hex))
    run = ray.remote(_run).options(name="windtunnel", num_cpus=1, max_retries=retries)
    pending: dict[ray.ObjectRef[str], _windtunnel.Handed] = {}
    try:
        while True:
            while len(pending) < _processors() and (handed := search.next()) is not None:
                pending[run.remote(task, handed)] = handed
            if not pending:
                return from_text(search.answer())
            (done, *_), _ = ray.wait(list(pending))
            said = answer_of(done)
            machine, place, *_ = pending.pop(done)
            search.hear(machine, place, said)
    finally:
        for reference in pending:
            ray.cancel(reference)


def _processors() -> int:
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def _run(task: functools.partial[str], handed: _windtunnel.Handed) -> str:
    return task(handed)


def _simulate(
    source: tuple[str, str], folder: str, version: str, call: str, handed: _windtunnel.Handed
) -> str:
    """What a simulation says of one plan, on a worker."""
    with as_the_caller(folder, version):
        return _worker(source, call).simulate(handed)


@functools.lru_cache(maxsize=1)
def _worker(source: tuple[str, str], call: str) -> _windtunnel.Worker:
    """The plans of a request, listed once in each process. Another call reads its files anew."""
    return _windtunnel.Worker(*source)
