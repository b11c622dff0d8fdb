"""A plan is the command's answer, to the byte, and its scenarios predict what it says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time

import pytest

import windtunnel
from conftest import ROOT
from windtunnel import _windtunnel


def saved(asked: dict, folder) -> str:
    """The request as a file of the folder; gives its name, which a dict has too."""
    name, text = _windtunnel.source(asked, "request")
    (folder / name).write_text(text, encoding="utf-8")
    return name


def test_an_answer_is_the_command_s_to_the_byte(asked, command, tmp_path):
    name = saved(asked, tmp_path)
    written = command("plan", name, "--json", "-", folder=tmp_path).stdout
    answer = windtunnel.plan(asked)
    assert answer.text == written
    assert answer.json == json.loads(written)
    assert windtunnel.plan(tmp_path / name).text == written


def test_an_exhaustive_answer_is_the_command_s_too(asked, command, tmp_path):
    asked["vary"] = {"mesh.tp": [1], "mesh.cp": [1]}
    written = command("plan", saved(asked, tmp_path), "--exhaustive", "--json", "-", folder=tmp_path).stdout
    answer = windtunnel.plan(asked, exhaustive=True)
    assert answer.text == written and answer.exhaustive
    assert [plan.keys for plan in answer.plans()] == [plan.keys for plan in windtunnel.plan(asked).plans()]


def test_fields_are_those_of_the_report(asked):
    answer = windtunnel.plan(asked)
    assert (answer.model, answer.sequence, answer.global_batch_sequences) == ("llama-3.1-8b", 2048, 64)
    assert answer.tokens == 1e10 and not answer.exhaustive
    assert [(machine.name, machine.size, machine.chips) for machine in answer.machines] == [
        ("h100-sxm-80gb", 1, 8),
        ("h100-sxm-80gb", 2, 16),
    ]
    for place, (machine, report) in enumerate(zip(answer.machines, answer.json["machines"])):
        counts = machine.counts
        assert counts.tried == counts.legal + counts.refused
        assert counts.legal == counts.too_large + counts.too_slow + counts.simulated
        assert counts.simulated == report["counts"]["simulated"]
        assert machine.price.per_chip_hour == 2.5
        assert [plan.rank for plan in machine.plans] == [1, 2, 3]
        for plan, written in zip(machine.plans, report["plans"]):
            assert plan.machine == place and plan.framework == "fsdp2"
            assert plan.keys == written["keys"] and plan.step_time_s == written["step_time_s"]
            assert list(plan.step_time_interval_80_s) == written["step_time_80_s"]
            assert plan.headroom_bytes == plan.capacity_bytes - plan.device_total_bytes > 0
            assert plan.bill.days.value == written["bill"]["days"]["value"] and plan.bill.currency == "USD"
    # The cheaper of the two, for a token.
    costs = [machine.plans[0].bill.per_billion_tokens.value for machine in answer.machines]
    assert answer.best is answer.machines[costs.index(min(costs))].plans[0]
    assert len(answer.front) == len(answer.json["front"])
    assert answer.best.step_time_s in [layout.step_time_s for layout in answer.front]


def test_the_scenario_of_a_ranked_plan_predicts_the_same(asked):
    for plan in windtunnel.plan(asked).plans():
        prediction = windtunnel.predict(plan.scenario)
        assert prediction.step_time_s == plan.step_time_s
        assert prediction.step_time_interval_80_s == plan.step_time_interval_80_s
        assert prediction.tokens_per_second_per_chip == plan.tokens_per_second_per_chip
        assert prediction.mfu == plan.mfu
        assert prediction.memory.device_total_bytes == plan.device_total_bytes


def test_paths_of_a_request_s_file_count_from_its_folder(asked, tmp_path):
    folder = tmp_path / "requests"
    folder.mkdir()
    shutil.copy(ROOT / "topologies" / "h100-sxm-80gb.toml", folder / "mine.toml")
    asked["machine"] = [{"name": "mine.toml", "size": 1}]
    answer = windtunnel.plan(folder / saved(asked, folder))
    best = answer.machines[0].plans[0]
    assert best.scenario["topology"]["name"] == str(folder / "mine.toml")
    assert windtunnel.predict(best.scenario).step_time_s == best.step_time_s


def test_an_error_is_the_command_s(asked, unanswered, command, tmp_path):
    changes = [
        {"modle": "llama-3.1-8b"},
        {"model": "llama-3.1-9b"},
        {"machine": [{"name": "h100-sxm-80gb", "sise": 2}]},
        {"machine": [{"name": "not-there.toml", "size": 2}]},
        {"sequence": -1},
        {"prices": "not-there.toml"},
        {"set": {"mesh.tpp": 2}},
        unanswered,
    ]
    said = []
    for change in changes:
        name = saved({**asked, **change}, tmp_path)
        with pytest.raises(windtunnel.ScenarioError) as raised:
            windtunnel.plan(tmp_path / name)
        written = command("plan", str(tmp_path / name)).stderr
        assert written.rstrip("\n") == f"error: {raised.value}".rstrip("\n")
        assert raised.value.code is None
        said.append(str(raised.value))
    assert "unknown field `modle`" in said[0] and f"{tmp_path / 'request'}:" in said[0]
    assert "mesh.tpp" in said[6]
    assert "what has an answer:\n  without limits.headroom" in said[7]
    with pytest.raises(windtunnel.ScenarioError, match="not there.toml"):
        windtunnel.plan("not there.toml")
    with pytest.raises(TypeError, match="the request is of type int: write a path or a dict"):
        windtunnel.plan(8)
    with pytest.raises(TypeError, match="limits.days"):
        windtunnel.plan({**asked, "limits": {"days": None}})


def test_where_no_plan_keeps_to_the_limits_there_is_none_that_is_best(asked):
    asked["limits"] = {"days": 0.001}
    answer = windtunnel.plan(asked)
    assert answer.best is None
    assert all("times the 0.001 asked for" in plan.breaks[0] for plan in answer.plans())


def test_progress_rises_to_the_end(asked):
    heard = []
    answer = windtunnel.plan(asked, progress=lambda *said: heard.append(said))
    assert all(before <= after for one, other in zip(heard, heard[1:]) for before, after in zip(one, other))
    looked, plans, simulated = heard[-1]
    counts = [machine.counts for machine in answer.machines]
    assert looked == plans == sum(count.tried for count in counts)
    assert simulated >= sum(count.simulated for count in counts)


def test_an_exception_of_progress_and_an_interrupt_end_a_search(capfd):
    asked = {
        "model": "gpt3-175b-nemo",
        "sequence": 2048,
        "global_batch": 1536,
        "frameworks": ["megatron"],
        "machine": [{"name": "a100-sxm-80gb", "size": 128}],
    }

    def enough(looked, plans, simulated):
        if simulated:
            raise RuntimeError("enough")

    started = time.monotonic()
    with pytest.raises(RuntimeError, match="enough"):
        windtunnel.plan(asked, exhaustive=True, progress=enough)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        windtunnel.plan(asked, exhaustive=True)
    timer.join()
    # To the end each would take minutes.
    assert time.monotonic() - started < 30
    assert capfd.readouterr().err == ""


def test_other_threads_run_while_one_plans(asked):
    ended = threading.Event()
    counted = 0

    def count():
        nonlocal counted
        while not ended.is_set():
            counted += 1
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    before = counted
    windtunnel.plan(asked)
    during = counted - before
    ended.set()
    counter.join()
    assert during > 5


def test_a_data_frame_has_a_row_for_each_ranked_plan(asked):
    asked["frameworks"] = ["fsdp2", "deepspeed-zero"]
    answer = windtunnel.plan(asked)
    frame = answer.to_pandas()
    assert list(frame["rank"]) == [1, 2, 3] * 2
    assert list(frame["step_time_s"]) == [plan.step_time_s for plan in answer.plans()]
    assert list(frame["size"]) == [1] * 3 + [2] * 3
    assert list(frame["batch.micro"]) == [plan.keys["batch.micro"] for plan in answer.plans()]
    assert (frame["days"] > 0).all() and (frame["money"] > 0).all() and set(frame["currency"]) == {"USD"}


def test_without_pandas_a_data_frame_is_an_error_that_says_so(asked, monkeypatch):
    answer = windtunnel.plan(asked)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        answer.to_pandas()
