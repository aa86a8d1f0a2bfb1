"""Plans of runs whose settings change: the rounds of each settings are planned, and the time to the end adds up."""

import json
from pathlib import Path
from typing import Any

import pytest

from epochal.state.config.state_file import StateFile
from epochal.tools.plan.advice import advised
from epochal.tools.plan.planner import plan_run
from epochal.tools.plan.plans import Plan, PlanOptions
from epochal.tools.plan.scenario import parse_clients
from tests.support.data.states import state_file, state_text
from tests.support.drive.cli import run_main
from tests.unit.epochal.tools.plan.test_advice import ROOMY

CLIENTS = "4 x 100mbit/20mbit 40ms 200k tokens/s"
GROUPS = [parse_clients(CLIENTS)]
OPTIONS = PlanOptions(parameter_count=3_000_000)
LONGER = {"at_step": 401, "values": {"merge.local_steps": 100, "config.global_batch_size_end": 80}}
EXACT = {"at_step": 801, "values": {"merge.update": "exact", "merge.codec": "float32"}}
SLOWER = {"at_step": 301, "values": {"model.LLM.lr_schedule.Constant.base_lr": 0.0001}}


def run_with(*changes: dict[str, Any], **overrides: Any) -> StateFile:
    return state_file(**(ROOMY | {"changes": list(changes)} | overrides))


def planned(state: StateFile) -> Plan:
    return plan_run(state, GROUPS, OPTIONS)


def test_plan_of_a_file_with_changes_says_their_rounds(tmp_path: Path) -> None:
    path = tmp_path / "state.toml"
    path.write_text(state_text(**(ROOMY | {"changes": [SLOWER, LONGER, EXACT]})), encoding="utf-8")
    options = ("--clients", CLIENTS, "--parameters", "3M")
    run_main("plan", str(path), *options).expect(0, "from step 401", "from step 801", "what to change")
    ran = run_main("plan", str(path), *options, "--json")
    assert json.loads(ran.out)["later"][0]["batches"] == 80


def test_rounds_after_a_change_are_those_of_a_run_that_has_its_settings() -> None:
    state = run_with(SLOWER, LONGER, EXACT)
    found = planned(state)
    longer, exact = found.later
    assert [(rounds.step, rounds.count) for rounds in found.later] == [(401, 400), (801, 200)]
    for rounds, step in ((longer, 401), (exact, 801)):
        alone = planned(state.at(step))
        assert (rounds.round_s, rounds.tokens_per_s, rounds.loss) == (alone.round_s, alone.tokens_per_s, alone.loss)
    assert found.round_s == planned(run_with()).round_s


def test_days_of_a_run_with_changes_are_those_of_all_its_rounds() -> None:
    roomy = {"config__epoch_time": 700}
    found = planned(run_with(LONGER, **roomy))
    first, then = planned(run_with(**roomy)), planned(run_with(LONGER, **roomy).at(401))
    assert found.epochs > 1
    assert found.days == pytest.approx(0.4 * first.days + 0.6 * then.days, rel=0.05)


def test_change_that_was_made_already_is_planned_as_the_settings() -> None:
    found = planned(run_with(LONGER, EXACT, progress__step=500))
    assert [rounds.step for rounds in found.later] == [801]
    assert found.round_s == planned(run_with(LONGER).at(401)).round_s


def test_advice_of_a_run_with_changes_moves_no_step_and_holds_in_each() -> None:
    for changes, has_codec in (((LONGER,), True), ((LONGER, EXACT), False)):  # float32 takes no error feedback
        state = run_with(*changes)
        found = [one.change for one in advised(state, GROUPS, OPTIONS, planned(state)).suggestions]
        assert not [change for change in found if "total_steps" in change]
        assert any("codec" in change for change in found) == has_codec


def test_timer_that_is_too_tight_for_a_later_round_is_named_with_its_step() -> None:
    state = run_with(EXACT, config__max_round_train_time=5)
    path_text = [text for rounds in planned(state).later for text in rounds.warnings]
    assert any(text.startswith("config.max_round_train_time is 5 s") for text in path_text)
