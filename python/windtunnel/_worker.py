"""What a Ray task does before it simulates, so that it says what its caller would."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import ray

from . import _windtunnel
from ._errors import ScenarioError


@contextlib.contextmanager
def as_the_caller(folder: str, version: str) -> Iterator[None]:
    """Checks that the caller has the same version, and works in its folder. Errors say on which node they are."""
    if version != _windtunnel.VERSION:
        raise RuntimeError(f"{_place()} has windtunnel {_windtunnel.VERSION} and the caller has {version}: install one version")
    with _in_folder(folder):
        try:
            yield
        except ScenarioError as error:
            raise ScenarioError(f"{error}\non {_place()}, in {os.getcwd()}", error.code) from None


def answer_of(reference: ray.ObjectRef[Any]) -> Any:
    """What a task returns. Its ScenarioError is raised as it is."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        # The exception itself, which would otherwise be one of Ray's with a traceback for its text.
        if isinstance(error.cause, ScenarioError):
            raise error.cause from None
        raise


def _place() -> str:
    return f"the node {ray.util.get_node_ip_address()}"


@contextlib.contextmanager
def _in_folder(folder: str) -> Iterator[None]:
    """Relative paths mean on a worker what they mean to the caller, where the worker's node has the caller's directory."""
    before = os.getcwd()
    if os.path.isdir(folder):
        os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
