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

def source(scenario: Union[str, os.PathLike[str], Mapping[str, Any]]) -> tuple[str, str]: ...
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
