"""Predictions of every combination of some keys' values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Optional

from . import _windtunnel
from ._prediction import Prediction, Scenario, from_text

if TYPE_CHECKING:
    import pandas

Vary = Mapping[str, Sequence[Any]]
"""Keys with the values that each shall take. A key is written with its tables, such as ``batch.micro``."""


@dataclass(frozen=True)
class Refusal:
    """Why a scenario of a sweep has no prediction."""

    reason: str
    """What is wrong."""
    remedy: Optional[str]
    """What to write instead, where that is known."""
    code: Optional[str]
    """The code of the refusal, where it has one."""


@dataclass(frozen=True)
class Row:
    """One combination of values, with its prediction or with the reason why it has none."""

    varied: dict[str, Any]
    """Each key that varies, with its value in this row. None: the key is left to its default."""
    prediction: Optional[Prediction]
    """The prediction; None where the scenario is refused."""
    refusal: Optional[Refusal]
    """Why there is no prediction; None where there is one."""

    def as_dict(self) -> dict[str, Any]:
        """The row as plain data that ``json.dumps`` takes. The prediction is its whole report."""
        return {
            "varied": self.varied,
            "prediction": None if self.prediction is None else self.prediction.report,
            "refusal": None if self.refusal is None else asdict(self.refusal),
        }


@dataclass(frozen=True)
class Sweep:
    """The rows of a sweep, in the order of ``itertools.product``: the last key varies fastest."""

    rows: list[Row]
    """One row for each combination of values."""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def best(self, by: str = "tokens_per_second_per_chip", keep: int = 10) -> list[Row]:
        """The best rows among those whose plan fits in memory, best first. Of equal ones the first of the sweep comes first.

        Args:
            by: ``tokens_per_second_per_chip`` or ``mfu``, of which more is better, or ``step_time_s``, of which less is better.
            keep: How many rows at most.
        """
        return best(self.rows, by, keep)

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a DataFrame: a column for each key that varies, then the top figures, then the refusal.

        A refused row has no figures. Names end in their units.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("Sweep.to_pandas needs pandas, which is not installed: pip install pandas") from error
        varied = list(self.rows[0].varied) if self.rows else []
        columns = [*varied, *FIGURES, *MEMORY, "refusal", "refusal_code"]
        return pandas.DataFrame([_flat(row) for row in self.rows], columns=columns)


FIGURES = ("step_time_s", "tokens_per_second_per_chip", "tokens_per_step", "mfu", "bubble", "bound_by")
MEMORY = ("verdict", "fits", "device_total_bytes", "capacity_bytes", "allocated_bytes", "reserved_bytes")

# By what rows are ranked, and whether more is better.
MORE_IS_BETTER = {"tokens_per_second_per_chip": True, "mfu": True, "step_time_s": False}


def _flat(row: Row) -> dict[str, Any]:
    flat = dict(row.varied)
    if row.prediction is not None:
        flat.update((name, getattr(row.prediction, name)) for name in FIGURES)
        flat.update((name, getattr(row.prediction.memory, name)) for name in MEMORY)
    if row.refusal is not None:
        flat.update(refusal=row.refusal.reason, refusal_code=row.refusal.code)
    return flat


def check_rank(by: str, keep: int) -> None:
    """Raises ValueError where rows cannot be ranked so."""
    if by not in MORE_IS_BETTER:
        raise ValueError(f"rows cannot be ranked by {by!r}: write one of {', '.join(MORE_IS_BETTER)}")
    if keep < 1:
        raise ValueError(f"keep is {keep}: write 1 or more")


def best(rows: Iterable[Row], by: str, keep: int) -> list[Row]:
    """The best of rows that fit. Of lists of best rows, one after the other, it gives the best of all."""
    check_rank(by, keep)
    sign = -1 if MORE_IS_BETTER[by] else 1
    fitting = [row for row in rows if row.prediction is not None and row.prediction.memory.fits]
    # The sort is stable, so equal rows stay in order.
    return sorted(fitting, key=lambda row: sign * getattr(row.prediction, by))[:keep]


def rows(
    source: tuple[str, str],
    vary: Vary,
    start: int,
    stop: int,
    threads: Optional[int] = None,
    progress: Optional[Callable[[int], object]] = None,
) -> list[Row]:
    """Rows of a part of a sweep. They depend on their numbers alone, so that several processes may share a sweep."""
    answers = _windtunnel.sweep(*source, vary, start, stop, threads, progress)
    combinations = itertools.islice(itertools.product(*vary.values()), start, stop)
    return [
        Row(
            varied=dict(zip(vary, combination)),
            prediction=None if answer["report"] is None else from_text(answer["report"]),
            refusal=None if answer["refusal"] is None else Refusal(**answer["refusal"]),
        )
        for combination, answer in zip(combinations, answers)
    ]


def sweep(
    scenario: Scenario,
    vary: Vary,
    *,
    threads: Optional[int] = None,
    progress: Optional[Callable[[int, int], object]] = None,
) -> Sweep:
    """Predicts every combination of some keys' values, on all processors.

    Other Python threads run while it simulates. An interrupt ends it.

    Args:
        scenario: The path of a scenario file, or a mapping with the keys of one.
        vary: Keys with the values that each shall take, such as ``{"batch.micro": [1, 2, 4]}``. The value None leaves a key to its
            default. A key may be a whole table: ``{"mesh": [{"dp_shard": 8}, {"dp_shard": 4, "tp": 2}]}``.
        threads: How many scenarios are simulated at once; None: one for each processor.
        progress: Called now and then with how many scenarios are done and how many there are.

    Raises:
        ScenarioError: No scenario has such a key, or a file that a scenario names cannot be read. A combination that cannot be
            simulated is no exception: its row has a refusal.
        TypeError: A value has a type that no scenario has.
        ValueError: A key has no values to take.
    """
    source = _windtunnel.source(scenario)
    total = _windtunnel.points(vary)
    tell = None if progress is None else lambda done: progress(done, total)
    return Sweep(rows(source, vary, 0, total, threads, tell))
