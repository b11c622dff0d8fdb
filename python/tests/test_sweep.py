"""A sweep is its single predictions, in the order of ``itertools.product``."""

from __future__ import annotations

import copy
import itertools
import os
import signal
import sys
import threading

import pytest

import windtunnel
from conftest import LARGE

VARY = {"batch.micro": [1, 2, 4], "activation_checkpointing.policy": ["none", "full"], "mesh.dp_shard": (8, 3)}


def test_rows_are_single_predictions_in_order(small):
    sweep = windtunnel.sweep(small, VARY)
    assert [tuple(row.varied.values()) for row in sweep] == list(itertools.product(*VARY.values()))
    for row in sweep.rows:
        changed = copy.deepcopy(small)
        for key, value in row.varied.items():
            table, name = key.split(".")
            changed.setdefault(table, {})[name] = value
        if row.varied["mesh.dp_shard"] == 8:
            assert row.refusal is None and row.prediction.text == windtunnel.predict(changed).text
        else:
            with pytest.raises(windtunnel.ScenarioError) as raised:
                windtunnel.predict(changed)
            assert row.prediction is None
            assert str(raised.value).startswith(row.refusal.reason) and str(raised.value).endswith(row.refusal.remedy)
            assert row.refusal.code == raised.value.code


def test_the_number_of_threads_changes_nothing(small):
    alone, many = windtunnel.sweep(small, VARY, threads=1), windtunnel.sweep(small, VARY, threads=7)
    assert [row.as_dict() for row in alone] == [row.as_dict() for row in many]


def test_a_file_is_swept_and_reports_carry_its_name():
    path = "scenarios/llama3.1-8b-fsdp2-8xh100.toml"
    (row,) = windtunnel.sweep(path, {})
    assert row.prediction.text == windtunnel.predict(path).text
    (row,) = windtunnel.sweep(path, {"batch.sequence": range(4096, 4097)})
    assert row.prediction.report["scenario"] == path


def test_a_base_need_not_be_a_scenario(small):
    del small["batch"]["sequence"]
    rows = windtunnel.sweep(small, {"batch.sequence": [2048, 4096]}).rows
    assert [row.prediction.tokens_per_step for row in rows] == [8 * 2048, 8 * 4096]


def test_a_whole_table_varies_and_none_leaves_a_key_to_its_default(small):
    meshes = [{"dp_shard": 8}, {"dp_shard": 4, "tp": 2}]
    rows = windtunnel.sweep(small, {"mesh": meshes, "batch.micro": [1, None], "xla.remat_policy": [None]}).rows
    assert [row.varied["mesh"] for row in rows] == [meshes[0], meshes[0], meshes[1], meshes[1]]
    del small["batch"]["micro"]
    assert rows[1].prediction.text == windtunnel.predict(small).text
    assert rows[0].prediction.text != rows[2].prediction.text


def test_a_key_of_a_table_in_a_table_varies():
    path = "scenarios/llama3.1-8b-deepspeed-zero2-offload-1xa100.toml"
    rows = windtunnel.sweep(path, {"zero.offload_optimizer.device": ["cpu", "nowhere", None]}).rows
    assert rows[0].prediction.text == windtunnel.predict(path).text
    assert "nowhere" in rows[1].refusal.reason


def test_what_is_wrong_with_the_sweep_itself_is_an_exception(small):
    with pytest.raises(windtunnel.ScenarioError, match='did you mean "batch.sequence"'):
        windtunnel.sweep(small, {"batch.sequense": [None]})
    with pytest.raises(windtunnel.ScenarioError, match="has not been run"):
        windtunnel.sweep(small, {"measured.step_time": ["1 s"]})
    with pytest.raises(ValueError, match="batch.micro has no values"):
        windtunnel.sweep(small, {"batch.micro": []})
    with pytest.raises(TypeError, match="batch.micro is of type str: write a list"):
        windtunnel.sweep(small, {"batch.micro": "12"})
    with pytest.raises(ValueError, match="threads is 0"):
        windtunnel.sweep(small, {}, threads=0)
    with pytest.raises(ValueError, match="more points than can be counted"):
        windtunnel.sweep(small, {f"mesh.{axis}": range(1, 100_000) for axis in ["dp_shard", "tp", "pp", "cp"]})
    # A file that cannot be read says nothing about a plan.
    with pytest.raises(windtunnel.ScenarioError, match="not-there.toml"):
        windtunnel.sweep(small, {"topology.name": ["h100-sxm-80gb", "not-there.toml"]})


def test_progress_rises_to_the_end(small):
    heard = []
    windtunnel.sweep(small, VARY, progress=lambda *said: heard.append(said))
    assert heard == sorted(heard) and heard[-1] == (12, 12)


def test_an_exception_of_progress_and_an_interrupt_end_a_sweep():
    def enough(done, total):
        raise RuntimeError("enough")

    vary = {"batch.sequence": range(1024, 2048, 2)}
    with pytest.raises(RuntimeError, match="enough"):
        windtunnel.sweep(LARGE, vary, progress=enough)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        windtunnel.sweep(LARGE, vary)
    timer.join()


def test_the_best_rows_fit_and_are_in_order(small):
    sweep = windtunnel.sweep(small, {"batch.micro": [1, 2, 512], "batch.sequence": [1024, 2048]})
    assert not all(row.prediction.memory.fits for row in sweep)
    rates = [row.prediction.tokens_per_second_per_chip for row in sweep if row.prediction.memory.fits]
    best = sweep.best(keep=3)
    assert [row.prediction.tokens_per_second_per_chip for row in best] == sorted(rates, reverse=True)[:3]
    shortest = sweep.best(by="step_time_s", keep=1)[0]
    assert shortest.varied == {"batch.micro": 1, "batch.sequence": 1024}
    with pytest.raises(ValueError, match="tokens_per_second_per_chip, mfu, step_time_s"):
        sweep.best(by="bubble")


def test_a_data_frame_has_a_row_for_each_and_figures_where_there_are_any(small):
    frame = windtunnel.sweep(small, VARY).to_pandas()
    assert list(frame["batch.micro"]) == [1] * 4 + [2] * 4 + [4] * 4
    fits = frame[frame["mesh.dp_shard"] == 8]
    assert (fits["step_time_s"] > 0).all() and fits["refusal"].isna().all()
    refused = frame[frame["mesh.dp_shard"] == 3]
    assert refused["step_time_s"].isna().all() and refused["refusal"].notna().all()


def test_without_pandas_a_data_frame_is_an_error_that_says_so(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        windtunnel.sweep(small, {}).to_pandas()
