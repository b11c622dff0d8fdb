"""Predicts the memory, step time and MFU of a training run before the cluster is rented.

A scenario is the path of a file, or a dict with the keys of one::

    import windtunnel

    prediction = windtunnel.predict("scenarios/llama3.1-8b-fsdp2-8xh100.toml")
    print(prediction.step_time_s, prediction.memory.device_total_bytes, prediction.memory.verdict)

    sweep = windtunnel.sweep(
        "scenarios/llama3.1-8b-fsdp2-8xh100.toml",
        {"batch.micro": [1, 2, 4], "activation_checkpointing.policy": ["none", "full"]},
    )
    print(sweep.to_pandas())

``plan`` searches for the fastest layout of a model on machines, and ``windtunnel.ray`` spreads a sweep or a plan over a Ray cluster. The
same scenario gives the same answer on every machine and with any number of threads.
"""

from . import _windtunnel
from ._errors import ScenarioError
from ._plan import Bill, Counts, Interval, Layout, Machine, Plan, PlanAnswer, Price, Refused, plan
from ._prediction import Memory, Prediction, predict
from ._sweep import Refusal, Row, Sweep, sweep

__version__: str = _windtunnel.VERSION

__all__ = [
    "Bill",
    "Counts",
    "Interval",
    "Layout",
    "Machine",
    "Memory",
    "Plan",
    "PlanAnswer",
    "Prediction",
    "Price",
    "Refusal",
    "Refused",
    "Row",
    "ScenarioError",
    "Sweep",
    "plan",
    "predict",
    "sweep",
]
