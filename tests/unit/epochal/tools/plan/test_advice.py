"""Advice is only what `epochal check` takes: each is written into the file, as its text says, and checked."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from epochal.state.config.state_file import MergeConfig, StateFile, parse_state
from epochal.tools.init.proposal import proposed
from epochal.tools.plan.advice import advised
from epochal.tools.plan.planner import FEW_ROUNDS, plan_run
from epochal.tools.plan.plans import PlanOptions, Suggestion
from epochal.tools.plan.scenario import parse_clients
from epochal.tools.quality import OF_DELAY, OptimizerName, best_of_codec, best_of_delay
from tests.support.data.states import state_file, state_tables
from tests.support.drive.cli import run_main

LINES = re.compile(r"(?:\[(\w+)\] |and |, )(\w+) = ([^,:;]+?)(?=[,:;]| for |$)")
CLIENTS = "4 x 8mbit/2mbit 40ms 200k tokens/s"
OPTIONS = PlanOptions(parameter_count=3_000_000)
ROOMY: dict[str, Any] = {
    "config__warmup_time": 300,
    "config__cooldown_time": 300,
    "config__max_round_train_time": 120,
    "config__epoch_time": 3000,
    "config__init_min_clients": 4,
    "config__data_indices_per_batch": 8,
    "config__total_steps": 1000,
    "config__global_batch_size_start": 8,
    "config__global_batch_size_end": 8,
    "model__LLM__max_seq_len": 1024,
}
REPLAYED: dict[str, Any] = {"verify__percent": 5, "merge__inner_state": "reset"}


def with_lines(tables: dict[str, Any], change: str) -> dict[str, Any]:
    """Return a file's tables with the lines of an advice."""
    table, found = "", tomllib.loads(tomli_w.dumps(tables))
    for named, name, value in LINES.findall(change):
        table = named or table
        found.setdefault(table, {})[name] = tomllib.loads(f"a = {value}")["a"]
    return found


def advice(state: StateFile) -> tuple[Suggestion, ...]:
    groups = [parse_clients(CLIENTS)]
    return advised(state, groups, OPTIONS, plan_run(state, groups, OPTIONS)).suggestions


@pytest.mark.parametrize(
    ("merge", "refused"),
    [
        pytest.param({"merge__local_steps": 30}, (), id="not-verified"),
        pytest.param({"merge__local_steps": 30, **REPLAYED}, ("delay", "error_feedback"), id="replays"),
        pytest.param({"merge__codec": "float32", **REPLAYED}, ("delay", "error_feedback"), id="replays-of-float32"),
    ],
)
def test_check_takes_each_advice_written_into_the_file(
    tmp_path: Path, merge: dict[str, Any], refused: tuple[str, ...]
) -> None:
    tables = state_tables(**(ROOMY | merge))
    found = [one.change for one in advice(state_file(**(ROOMY | merge)))]
    assert found
    assert not [change for change in found for name in refused if name in change]
    for change in found:
        (tmp_path / "state.toml").write_text(tomli_w.dumps(with_lines(tables, change)), encoding="utf-8")
        run_main("check", str(tmp_path / "state.toml"), "--no-files").expect(0, "is valid")


def test_batch_up_to_the_critical_one_ends_the_learning_rate_earlier_too() -> None:
    cosine = {"base_lr": 0.01, "warmup_init_lr": 0.0, "warmup_steps": 10, "total_steps": 8000, "final_lr": 0.001}
    found = advice(state_file(**(ROOMY | {"model__LLM__lr_schedule": {"Cosine": cosine}})))
    (told,) = (one for one in found if "critical batch size" in one.change)
    assert told.change.endswith("; lr_schedule's steps ÷ 8.5")


def test_batch_up_to_the_critical_one_trains_more_tokens() -> None:
    state = state_file(**ROOMY)
    groups = [parse_clients(CLIENTS)]
    before = plan_run(state, groups, OPTIONS)
    (told,) = (one for one in advised(state, groups, OPTIONS, before).suggestions if "critical" in one.change)
    then = parse_state(tomli_w.dumps(with_lines(state_tables(**ROOMY), told.change)), "state.toml")
    rounds = then.config.total_steps * then.config.global_batch_size_end
    assert rounds / (state.config.total_steps * state.config.global_batch_size_end) == pytest.approx(1.2, rel=0.01)
    assert told.days == pytest.approx(1.2 * before.days / told.faster, rel=0.01)
    planned = plan_run(then, groups, OPTIONS).loss_source
    assert "a local step of all clients is 0.92 x the critical batch of a run of " in planned
    assert planned.endswith(" tokens, at which a loss takes 20 % more of them")
    assert "critical" not in before.loss_source


def test_smaller_codec_of_a_replayed_run_is_one_without_error_feedback() -> None:
    found = [one.change for one in advice(state_file(**(ROOMY | REPLAYED | {"merge__codec": "float32"})))]
    assert '[merge] codec = "int4"' in found


def of_delay(optimizer: OptimizerName) -> dict[str, Any]:
    best = best_of_delay(30, optimizer)
    assert best is not None
    return {f"merge__{name}": getattr(best.merge, name) for name in OF_DELAY}


def test_smaller_codec_of_a_run_with_delay_keeps_its_outer_step() -> None:
    found = advice(state_file(**(ROOMY | {"merge__local_steps": 30} | of_delay("AdamW"))))
    (codec,) = (one for one in found if "codec" in one.change)
    assert codec.change == '[merge] codec = "int2", error_feedback = true'
    best, usual = best_of_codec("int2", 30), best_of_codec("int4", 30)
    assert best is not None
    assert usual is not None
    assert codec.loss == pytest.approx(best.ratio / usual.ratio)
    assert not [one.change for one in found if "outer_" in one.change]


@pytest.mark.parametrize("optimizer", ["AdamW", "Muon"])
def test_delay_with_the_usual_outer_step_is_advised_the_measured_one(optimizer: OptimizerName) -> None:
    muon = {"model__LLM__optimizer": {"Muon": {"momentum": 0.95, "weight_decay": 0.1}}}
    delayed = {"merge__local_steps": 30, "merge__delay": 1} | (muon if optimizer == "Muon" else {})
    found = advice(state_file(**(ROOMY | delayed)))
    (step,) = (one for one in found if "outer_" in one.change)
    written = with_lines(state_tables(**(ROOMY | delayed)), step.change)["merge"]
    assert {f"merge__{name}": written.get(name, getattr(MergeConfig(), name)) for name in OF_DELAY} == of_delay(
        optimizer
    )
    assert step.loss is not None
    assert step.loss < 1


@pytest.mark.parametrize(("train_s", "epoch_s", "cold_steps"), [(16, 20, 0), (16, 400, 20)])
def test_longer_rounds_are_advised_with_epochs_that_hold_them(train_s: int, epoch_s: int, cold_steps: int) -> None:
    times = {"config__max_round_train_time": train_s, "config__epoch_time": epoch_s, "config__warmup_time": 18}
    times["model__LLM__cold_start_warmup_steps"] = cold_steps
    tables = state_tables(**(ROOMY | times))
    longer = [one for one in advice(state_file(**(ROOMY | times))) if "global_batch_size_end" in one.change]
    assert longer
    for one in longer:
        state = parse_state(tomli_w.dumps(with_lines(tables, one.change)), "state.toml")
        assert state.config.max_round_train_time >= 2 * one.round_s
        assert state.config.epoch_time >= max(epoch_s, FEW_ROUNDS * one.round_s)
        assert state.config.epoch_time / state.config.max_round_train_time >= epoch_s / train_s
    assert any("max_round_train_time" in one.change for one in longer)


@pytest.mark.nightly
def test_init_of_a_replayed_run_says_nothing_that_check_refuses() -> None:
    draft = state_file(**REPLAYED, model__LLM__max_seq_len=512, config__data_indices_per_batch=4)
    notice = proposed(draft, [parse_clients(CLIENTS)], OPTIONS).notice
    assert "what would change it (" in notice
    assert "delay" not in notice
    assert "error_feedback" not in notice
