"""One prediction."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Union

from . import _windtunnel

Scenario = Union[str, "os.PathLike[str]", Mapping[str, Any]]
"""The path of a scenario file, or a mapping with the keys of one."""


@dataclass(frozen=True)
class Memory:
    """Peak memory of the device with the least to spare. ``Prediction.report["memory"]`` has more."""

    verdict: str
    """Whether the plan runs, in a word or a few, such as ``fits``."""
    fits: bool
    """Whether the plan runs, as far as is known of device and host."""
    device_total_bytes: int
    """Reserved bytes and what lies outside the allocator [bytes]."""
    capacity_bytes: int
    """Memory of the device [bytes]."""
    allocated_bytes: int
    """Most bytes in blocks handed out, ``max_memory_allocated`` [bytes]."""
    reserved_bytes: int
    """Most bytes that the allocator took from the device, ``max_memory_reserved`` [bytes]."""
    outside_allocator_bytes: int
    """What lives outside the allocator: the CUDA context and communicators [bytes]."""
    shortfall_bytes: int
    """How much is missing on the device; 0 if the plan fits [bytes]."""
    doubt_bytes: int
    """How far the device's total may be off [bytes]."""
    peak_phase: str
    """The phase of the peak, such as ``bwd``."""
    breakdown_bytes: dict[str, int] = field(repr=False)
    """Memory at the peak, by category [bytes]."""


@dataclass(frozen=True)
class Prediction:
    """What a training step takes. Fields have the names of the JSON report, with units at the end."""

    step_time_s: float
    """Time of the steady step [s]."""
    step_time_interval_80_s: tuple[float, float]
    """An 80 % interval around the step time: from, to [s]."""
    tokens_per_second_per_chip: float
    """Tokens per second and chip [1/s]."""
    tokens_per_step: int
    """Tokens of one step of the whole job."""
    mfu: float
    """Model FLOPs utilisation by the first convention of ``report["mfu"]``, a share. The report has all conventions with their formulas."""
    bubble: float
    """Share of rank-time that a pipeline leaves without work; 0 without a pipeline."""
    bound_by: str
    """What bounds the step: the largest of its parts."""
    memory: Memory
    """Peak memory of the device with the least to spare."""
    breakdown_s: dict[str, float] = field(repr=False)
    """Where the step's time went [s]. The parts add up to the step."""
    text: str = field(repr=False)
    """The report as JSON, byte for byte what ``windtunnel run --json`` writes."""

    @cached_property
    def report(self) -> dict[str, Any]:
        """The whole report. ``docs/json.md`` describes every key."""
        report: dict[str, Any] = json.loads(self.text)
        return report


def from_text(text: str) -> Prediction:
    """The prediction that a report is of."""
    report = json.loads(text)
    memory = report["memory"]
    earliest, latest = report["step_time_interval_80_s"]
    return Prediction(
        step_time_s=report["step_time_s"],
        step_time_interval_80_s=(earliest, latest),
        tokens_per_second_per_chip=report["tokens_per_second_per_chip"],
        tokens_per_step=report["tokens_per_step"],
        mfu=report["mfu"][0]["utilisation"],
        bubble=report["bubble"],
        bound_by=report["bound_by"],
        memory=Memory(**{name: memory[name] for name in Memory.__dataclass_fields__}),
        breakdown_s=report["breakdown_s"],
        text=text,
    )


def predict(scenario: Scenario, *, remedies: bool = False, changes: bool = False) -> Prediction:
    """Predicts one training step.

    Other Python threads run while it simulates.

    Args:
        scenario: The path of a scenario file, or a mapping with the keys of one. Paths in a mapping are relative to the working
            directory; paths in a file are relative to the file.
        remedies: Whether to simulate, for a plan that does not fit, changes that would make it fit. They are in
            ``report["memory"]["remedies"]``.
        changes: Whether to simulate single changes that would make the run faster, and other values of defaults. They are in
            ``report["changes"]``, as with ``windtunnel run --changes all``.

    Raises:
        ScenarioError: The scenario cannot be simulated.
        TypeError: A value of the mapping has a type that no scenario has.
    """
    file, text = _windtunnel.source(scenario)
    return from_text(_windtunnel.predict(file, text, remedies, changes))
