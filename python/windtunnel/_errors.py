"""The exception of a scenario that cannot be simulated, and of a request that has no answer."""

from __future__ import annotations

from typing import Optional


class ScenarioError(ValueError):
    """A scenario that cannot be simulated, or a request without an answer. Its text is what the command prints after ``error:``."""

    code: Optional[str]
    """The code of the refusal, which stays when its words change; None where it has no code. ``windtunnel explain CODE`` explains it."""

    def __init__(self, message: str, code: Optional[str] = None) -> None:
        super().__init__(message)
        self.code = code
