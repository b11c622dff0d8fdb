"""The layout of a model on a machine that trains fastest."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Optional, Union

from . import _windtunnel

if TYPE_CHECKING:
    import pandas

Request = Union[str, "os.PathLike[str]", Mapping[str, Any]]
"""The path of a request file, or a mapping with the keys of one."""

Progress = Callable[[int, int, int], object]
"""Called with how many plans are looked at, how many there are to look at, and how many are simulated."""


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its 80 % interval."""

    value: float
    """The predicted value."""
    low: float
    """The lower end."""
    high: float
    """The upper end."""


@dataclass(frozen=True)
class Bill:
    """Days and money of a plan. None: the request has no tokens to train on, or the machine has no price."""

    days: Optional[Interval]
    """Days for the tokens of the request."""
    chip_hours: Optional[Interval]
    """Chip-hours for these tokens."""
    money: Optional[Interval]
    """Money for these tokens, in the currency."""
    per_billion_tokens: Optional[Interval]
    """Money for a billion tokens, in the currency."""
    tokens_in_days: Optional[Interval]
    """Tokens in the days that ``limits.days`` allows."""
    currency: Optional[str]
    """The currency, such as ``USD``."""


@dataclass(frozen=True)
class Price:
    """What one chip costs for one hour."""

    machine: str
    """The machine's name."""
    per_chip_hour: float
    """One chip for one hour, in the currency."""
    currency: str
    """The currency, such as ``USD``."""
    date: str
    """When the price was published, ``YYYY-MM-DD``; empty if that is not known."""
    source: str
    """Who published it."""


@dataclass(frozen=True)
class Counts:
    """What became of the plans of a machine."""

    tried: int
    """Plans that were looked at."""
    refused: int
    """Plans that a scenario's own checks refuse."""
    legal: int
    """Plans that are not refused. Each is too large, too slow or simulated."""
    too_large: int
    """Legal plans that cannot fit, by a lower bound of their memory."""
    simulated: int
    """Legal plans that had to be simulated."""
    do_not_fit: int
    """Simulated plans that do not fit."""
    too_slow: int
    """Legal plans that cannot beat the last ranked plan, by a lower bound of their step."""


@dataclass(frozen=True)
class Refused:
    """A reason why plans were refused."""

    why: str
    """The reason, in the words of the first such plan."""
    plans: int
    """How many plans it refused."""


@dataclass(frozen=True)
class Layout:
    """A layout on a machine, with its figures. It was simulated, and it fits."""

    machine: int
    """The machine, counted from 0 in ``PlanAnswer.machines``."""
    framework: str
    """The framework, such as ``megatron``."""
    keys: dict[str, Any]
    """The keys of the scenario that the search chose, such as ``mesh.tp``, with their values."""
    step_time_s: float
    """Time of the steady step [s]."""
    step_time_interval_80_s: tuple[float, float]
    """An 80 % interval around the step time: from, to [s]."""
    step_time_bound_s: float
    """The lower bound of the step time [s]."""
    tokens_per_step: int
    """Tokens of one step of the whole job."""
    tokens_per_second_per_chip: float
    """Tokens per second and chip [1/s]."""
    mfu: float
    """Model FLOPs utilisation, a share."""
    mfu_convention: str
    """The convention of the MFU: its formula."""
    bound_by: str
    """What bounds the step: the largest of its parts."""
    breakdown_s: dict[str, float] = field(repr=False)
    """Where the step's time went [s]."""
    device_total_bytes: int
    """Memory of the fullest device: reserved bytes and what lies outside the allocator [bytes]."""
    device_total_bound_bytes: int
    """The lower bound of that memory [bytes]."""
    capacity_bytes: int
    """Memory of the device [bytes]."""
    fits_for_sure: bool
    """Whether the plan fits even if memory outside the allocator is as large as it may be."""
    replicas: int
    """Replicas of the model that read data of their own."""
    micro_batches: int
    """Micro-batches of a step."""

    @property
    def headroom_bytes(self) -> int:
        """Memory that stays free on the fullest device [bytes]."""
        return max(0, self.capacity_bytes - self.device_total_bytes)


@dataclass(frozen=True)
class Plan(Layout):
    """A ranked layout."""

    rank: int
    """The rank on its machine; the fastest has 1."""
    probability_that_the_first_is_faster: float
    """How likely it is that the first plan of the machine is faster, 0.5 to 1."""
    tied_with_the_first: bool
    """Whether that is too unlikely for the order to be known."""
    bill: Bill
    """Days and money."""
    breaks: list[str]
    """The limits of days and money that the plan breaks, in words."""
    scenario_text: str = field(repr=False)
    """The plan as the text of a scenario file. Its paths count from the working directory."""
    goodput: Optional[float] = None
    """The expected share of time in steps that count; None unless the request counts interruptions (``interrupted``)."""

    @cached_property
    def scenario(self) -> dict[str, Any]:
        """The plan as a scenario, for ``windtunnel.predict`` and ``windtunnel.sweep``."""
        scenario: dict[str, Any] = json.loads(_windtunnel.keys(self.scenario_text))
        return scenario


@dataclass(frozen=True)
class Machine:
    """A machine at a size, with its plans."""

    name: str
    """The machine's name."""
    size: Union[int, str]
    """Nodes, or the slice of a TPU pod, such as ``16x16``."""
    chips: int
    """How many chips that is."""
    price: Optional[Price]
    """What a chip costs; None if that is not known."""
    counts: Counts
    """What became of the plans that were looked at."""
    refused: list[Refused] = field(repr=False)
    """Why plans were refused, the most frequent reason first."""
    plans: list[Plan] = field(repr=False)
    """The ranked plans, the fastest first."""


@dataclass(frozen=True)
class PlanAnswer:
    """The answer to a request: machine by machine, the fastest plans."""

    model: str
    """The model's name."""
    sequence: int
    """Tokens of a sequence."""
    global_batch_sequences: int
    """Sequences of a step."""
    tokens: Optional[float]
    """Tokens to train on; None if the request does not say."""
    notes: list[str]
    """What was taken for what the request leaves open."""
    exhaustive: bool
    """Whether every legal plan was simulated."""
    best: Optional[Plan]
    """The best plan of all machines that keeps to the limits of days and money: the cheapest for a token if all machines have prices,
    else the fastest. None if no plan keeps to the limits."""
    machines: list[Machine]
    """The machines, in the order of the request."""
    front: list[Layout] = field(repr=False)
    """Layouts that no other is better than in throughput, free memory and price at once."""
    text: str = field(repr=False)
    """The answer as JSON, byte for byte what ``windtunnel plan --json`` writes."""

    @cached_property
    def json(self) -> dict[str, Any]:
        """The answer as plain data."""
        report: dict[str, Any] = json.loads(self.text)
        return report

    def plans(self) -> Iterator[Plan]:
        """The ranked plans of all machines, machine by machine."""
        return (plan for machine in self.machines for plan in machine.plans)

    def to_pandas(self) -> pandas.DataFrame:
        """The ranked plans as a DataFrame: the machine, a column for each key that was chosen, the figures, days and money.

        Names end in their units. A key that a framework does not have is missing in its rows.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("PlanAnswer.to_pandas needs pandas, which is not installed: pip install pandas") from error
        # A dict keeps the order of keys, and each once.
        keys = dict.fromkeys(key for plan in self.plans() for key in plan.keys)
        columns = ["machine", "size", "chips", "rank", "framework", *keys, *FIGURES, *MONEY, "currency", "breaks"]
        return pandas.DataFrame([_flat(self.machines[plan.machine], plan) for plan in self.plans()], columns=columns)


FIGURES = (
    "step_time_s",
    "tokens_per_second_per_chip",
    "tokens_per_step",
    "mfu",
    "bound_by",
    "device_total_bytes",
    "headroom_bytes",
    "capacity_bytes",
    "fits_for_sure",
    "probability_that_the_first_is_faster",
    "tied_with_the_first",
)
MONEY = ("days", "chip_hours", "money", "per_billion_tokens")


def _flat(machine: Machine, plan: Plan) -> dict[str, Any]:
    flat: dict[str, Any] = {"machine": machine.name, "size": machine.size, "chips": machine.chips, "rank": plan.rank}
    flat.update(plan.keys, framework=plan.framework)
    flat.update((name, getattr(plan, name)) for name in FIGURES)
    for name in MONEY:
        interval = getattr(plan.bill, name)
        flat[name] = None if interval is None else interval.value
    flat.update(currency=plan.bill.currency, breaks="; ".join(plan.breaks))
    return flat


def from_text(text: str) -> PlanAnswer:
    """The answer that a report is of."""
    report = json.loads(text)
    machines = [_machine(place, machine) for place, machine in enumerate(report["machines"])]
    best = report["best"]
    return PlanAnswer(
        **{name: report[name] for name in ("model", "sequence", "global_batch_sequences", "tokens", "notes", "exhaustive")},
        best=None if best is None else machines[best["machine"]].plans[best["rank"] - 1],
        machines=machines,
        front=[Layout(**_layout(point["machine"], point["plan"])) for point in report["front"]],
        text=text,
    )


def _machine(place: int, report: Mapping[str, Any]) -> Machine:
    price = report["price"]
    return Machine(
        name=report["machine"],
        size=report["nodes"] if "nodes" in report else report["slice"],
        chips=report["chips"],
        price=None if price is None else Price(**price),
        counts=Counts(**report["counts"]),
        refused=[Refused(**refused) for refused in report["refused"]],
        plans=[_plan(place, plan) for plan in report["plans"]],
    )


def _plan(machine: int, report: Mapping[str, Any]) -> Plan:
    bill: dict[str, Any] = dict(report["bill"])
    bill.update((name, Interval(**value)) for name, value in bill.items() if isinstance(value, dict))
    own = ("rank", "probability_that_the_first_is_faster", "tied_with_the_first", "breaks")
    return Plan(
        **_layout(machine, report),
        **{name: report[name] for name in own},
        bill=Bill(**bill),
        scenario_text=report["scenario"],
        goodput=report.get("goodput"),
    )


def _layout(machine: int, report: Mapping[str, Any]) -> dict[str, Any]:
    earliest, latest = report["step_time_80_s"]
    given = {"machine": machine, "step_time_interval_80_s": (earliest, latest)}
    return {name: given[name] if name in given else report[name] for name in Layout.__dataclass_fields__}


def plan(request: Request, *, exhaustive: bool = False, progress: Optional[Progress] = None) -> PlanAnswer:
    """Searches for the layouts of a model that train fastest on machines, on all processors.

    Other Python threads run while it searches. An interrupt ends it.

    Args:
        request: The path of a request file, or a mapping with the keys of one: ``model``, ``sequence``, ``global_batch``, ``machine``
            and others. Paths in a mapping are relative to the working directory; paths in a file are relative to the file.
        exhaustive: Whether to simulate every legal plan. The ranking is the same.
        progress: Called now and then with how many plans are looked at, how many there are to look at, and how many are simulated.

    Raises:
        ScenarioError: The request is wrong, a file that it names cannot be read, or no plan does what is asked. Its text then names the
            nearest requests that have an answer.
        TypeError: A value of the mapping has a type that no request has.
    """
    file, text = _windtunnel.source(request, "request")
    return from_text(_windtunnel.plan(file, text, exhaustive, progress))
