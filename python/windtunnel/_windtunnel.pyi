"""The native half of the package. It is internal: import ``windtunnel`` instead."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional, TypedDict, Union

VERSION: str

class _Refusal(TypedDict):
    code: Optional[str]
    reason: str
    remedy: Optional[str]

class _Row(TypedDict):
    report: Optional[str]
    refusal: Optional[_Refusal]

# A machine, the place of a plan in its space, and the plan's bounds: its step [ps] and its memory [bytes].
Handed = tuple[int, int]

class Search:
    def __init__(
        self, file: str, text: str, exhaustive: bool, progress: Optional[Callable[[int, int, int], object]] = None
    ) -> None: ...
    def look(self) -> None: ...
    def next(self) -> Optional[Handed]: ...
    def hear(self, site: int, place: int, said: str) -> None: ...
    def answer(self) -> str: ...

class Worker:
    def __init__(self, file: str, text: str) -> None: ...
    def simulate(self, handed: Handed) -> str: ...

def source(given: Union[str, os.PathLike[str], Mapping[str, Any]], what: str = "scenario") -> tuple[str, str]: ...
def keys(text: str) -> str: ...
def plan(
    file: str, text: str, exhaustive: bool, progress: Optional[Callable[[int, int, int], object]] = None
) -> str: ...
def predict(file: str, text: str, remedies: bool, changes: bool) -> str: ...
def points(vary: Mapping[str, Sequence[Any]]) -> int: ...
def sweep(
    file: str,
    text: str,
    vary: Mapping[str, Sequence[Any]],
    start: int,
    stop: int,
    threads: Optional[int] = None,
    progress: Optional[Callable[[int], object]] = None,
) -> list[_Row]: ...
