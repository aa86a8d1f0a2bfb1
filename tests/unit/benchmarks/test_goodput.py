"""Goodput is counted from what trainers note, and the runs it is measured in keep the reference's proportions."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.figures import Figure
from benchmarks.goodput import churn_rows, exchange_rows, reference_rows, speed_rows
from benchmarks.goodput.churn_rows import departures, trace
from benchmarks.goodput.member_rows import expected_cpu_s, lost_connections
from benchmarks.goodput.page import Before, before_table
from benchmarks.goodput.reference import (
    SAMPLES,
    SEQUENCE,
    SMALL,
    Planned,
    changed,
    parameter_count,
    scaled,
    settings_in,
)
from benchmarks.goodput.reference_rows import Kind, figures_of
from benchmarks.goodput.shaped_run import run_text
from benchmarks.goodput.training_time import Presence, Span, mean_part, percentile, trained_spans, training_parts
from benchmarks.rounds.scale_load import Case, Measured
from epochal.state.config.state_file import parse_state
from epochal.tools.plan.planner import SETTLING_ROUNDS
from epochal.tools.plan.plans import PlanOptions
from epochal.tools.plan.played_run import PlayedRound, PlayedRun
from epochal.tools.plan.scale import Scale
from epochal.tools.plan.scenario import parse_clients
from epochal.tools.plan.sizes import round_model
from epochal.trainers.first_parameters import model_layout

WINDOW = Span(10.0, 20.0)
HALF = Presence(Span(0.0, 30.0), (Span(5.0, 12.0), Span(15.0, 18.0)))
LATE = Presence(Span(18.0, 30.0), (Span(19.0, 25.0),))
GONE = Presence(Span(0.0, 9.0), (Span(1.0, 9.0),))
RESULT_BYTES = 516_000_000
TRAINED_S = 200.0
REFERENCE = Planned(
    {"merge": {"local_steps": 64, "codec": "int4"}, "config": {"max_round_train_time": 2000}},
    {
        "round_s": 800.0,
        "batches": 32.0,
        "groups": [{"parts": {"training": TRAINED_S}, "group": {"count": 16}}],
        "sizes": {"parameter_count": 1_000_000_000, "result_bytes": RESULT_BYTES},
    },
)
ADVICE = (
    "rounds 8 times as long: [merge] local_steps = 64, [config] global_batch_size_start = 2048, "
    "global_batch_size_end = 2048, and total_steps = 12 for as many tokens"
)
MEASURED = Measured(Case(100, 2), 1.0, 0.04, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.2, 0.3, 0.5, 0.2, 200, 0.0, {})


def test_training_counts_where_it_lies_in_the_window() -> None:
    assert training_parts([HALF], WINDOW) == [pytest.approx(0.5)]


def test_time_of_a_client_counts_from_its_start() -> None:
    assert training_parts([LATE], WINDOW) == [pytest.approx(0.5)]


def test_client_that_was_not_there_has_no_part() -> None:
    assert training_parts([GONE, HALF], WINDOW) == [pytest.approx(0.5)]


def test_mean_part_weighs_clients_by_their_time() -> None:
    assert mean_part([HALF, Presence(Span(15.0, 20.0), ()), GONE], WINDOW) == pytest.approx(5 / 15)


def test_mean_part_of_nobody_is_an_error() -> None:
    with pytest.raises(ValueError, match="no client was there"):
        mean_part([GONE], WINDOW)


@pytest.mark.parametrize(("percent", "expected"), [(5, 1.0), (50, 4.0), (51, 5.0), (100, 8.0)])
def test_percentile_is_the_least_value_that_enough_do_not_exceed(percent: float, expected: float) -> None:
    assert percentile([8.0, 1.0, 5.0, 2.0, 7.0, 3.0, 6.0, 4.0], percent) == expected


def test_spans_are_those_that_a_trainer_noted(tmp_path: Path) -> None:
    path = tmp_path / "trained.jsonl"
    path.write_text('{"step": 1, "start_s": 1.5}\n{"step": 1, "start_s": 1.5, "end_s": 2.5, "batches": 4}\n')
    assert trained_spans(path, 9.0) == trained_spans(path) == (Span(1.5, 2.5),)
    with path.open("a") as file:
        file.write('{"step": 2, "start_s": 2.5}\n')
    assert trained_spans(path, 9.0) == (Span(1.5, 2.5), Span(2.5, 9.0))
    assert trained_spans(path) == (Span(1.5, 2.5),), "a trainer that is gone has broken off the second"
    assert trained_spans(tmp_path / "never.jsonl") == ()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ('[merge] codec = "sparse", error_feedback = true', {"merge": {"codec": "sparse", "error_feedback": True}}),
        (
            ADVICE,
            {
                "merge": {"local_steps": 64},
                "config": {"global_batch_size_start": 2048, "global_batch_size_end": 2048, "total_steps": 12},
            },
        ),
        ("a link of the coordinator 4 times as fast (4000 Mbit/s)", {}),
        ("results in an object store ([blobs] store), whose link is not the limit", {}),
    ],
)
def test_settings_are_those_that_an_advice_names(change: str, expected: dict[str, Any]) -> None:
    assert settings_in(change) == expected


def test_changed_tables_keep_all_other_settings() -> None:
    found = changed(REFERENCE.tables, ADVICE)
    assert found["merge"] == {"local_steps": 64, "codec": "int4"}
    assert found["config"]["max_round_train_time"] == 2000
    assert REFERENCE.tables["config"] == {"max_round_train_time": 2000}


def test_scaled_training_and_bytes_take_the_same_part_of_a_round() -> None:
    found = scaled(REFERENCE, 20.0)
    result_bytes = RESULT_BYTES * parameter_count(SMALL) / REFERENCE.plan["sizes"]["parameter_count"]
    assert found.time_scale == pytest.approx(40.0)
    assert found.batch_s * SAMPLES == pytest.approx(TRAINED_S / 40)
    assert result_bytes / found.up_bytes_per_s == pytest.approx(RESULT_BYTES / 2.5e6 / 40)
    assert result_bytes / found.down_bytes_per_s == pytest.approx(RESULT_BYTES / 12.5e6 / 40)
    assert found.longest_s == 50


def test_scaled_clients_are_read_by_the_planner_as_they_are() -> None:
    found = scaled(REFERENCE, 20.0)
    group = parse_clients(found.clients(8))
    assert (group.count, group.round_trip_s) == (8, 0.04)
    assert group.link.up_bytes_per_s == pytest.approx(found.up_bytes_per_s, rel=1e-3)
    assert SEQUENCE / group.tokens_per_s == pytest.approx(found.batch_s, rel=1e-3)


def test_scaled_run_is_one_that_may_start() -> None:
    state = parse_state(run_text(**scaled(REFERENCE, 20.0).overrides(8)), "state.toml")
    assert state.config.init_min_clients == 8
    assert sum(size for _, size in model_layout(state.model.LLM.spec).counts()) == parameter_count(SMALL)


def test_machines_alone_train_a_round_in_the_ideal_time() -> None:
    assert speed_rows.BATCHES / speed_rows.alone_per_s() == pytest.approx(speed_rows.IDEAL_S)


def test_links_allow_what_is_left_beside_the_bytes() -> None:
    assert speed_rows.links_allow(0, 0) == 1
    slowest_s = 1e6 / min(line.up_bytes_per_s for line in speed_rows.lines())
    allowed = speed_rows.links_allow(1e6, 0)
    assert speed_rows.IDEAL_S / (speed_rows.IDEAL_S + slowest_s) < allowed < 1
    assert speed_rows.links_allow(0, 1e6) == pytest.approx(allowed), "links are alike both ways"


def test_machines_are_read_by_the_planner_as_they_are() -> None:
    for line in speed_rows.lines():
        group = parse_clients(speed_rows.clients_text(line))
        assert group.link.down_bytes_per_s == pytest.approx(line.down_bytes_per_s, rel=1e-3)
        assert SEQUENCE / group.tokens_per_s == pytest.approx(line.batch_s, rel=1e-3)


@pytest.mark.parametrize("millions", exchange_rows.MILLIONS)
def test_large_models_have_as_many_parameters_as_named(millions: int) -> None:
    assert parameter_count(exchange_rows.MILLIONS[millions]) == pytest.approx(millions * 1e6, rel=0.01)


def test_trace_is_the_same_for_a_seed_and_another_for_another() -> None:
    assert trace(5, 100.0, 5.0, 300.0, 1) == trace(5, 100.0, 5.0, 300.0, 1)
    assert trace(5, 100.0, 5.0, 300.0, 1) != trace(5, 100.0, 5.0, 300.0, 2)


def test_stays_of_a_place_follow_one_another() -> None:
    for stays in trace(50, 100.0, 5.0, 300.0, 1):
        assert stays[0].start_s == 0.0
        assert all(stay.end_s is not None and stay.start_s < stay.end_s < 300.0 for stay in stays[:-1])
        ends = [stay.end_s for stay in stays[:-1]]
        assert all(end is not None and end <= after.start_s for end, after in zip(ends, stays[1:], strict=True))


def test_as_many_leave_as_the_mean_stay_says() -> None:
    places = trace(2000, 100.0, 5.0, 300.0, churn_rows.SEED)
    assert departures(places) == pytest.approx(2000 * 300.0 / 105.0, rel=0.05)


def test_cost_of_more_members_grows_with_their_number() -> None:
    assert expected_cpu_s(MEASURED, 1000) == pytest.approx(40.0)


def test_page_shows_what_each_figure_was_before() -> None:
    kept = {
        "a round": {"value": 2.5, "unit": "s", "digits": 1, "why": ""},
        "members": {"value": None, "unit": "ms", "digits": 2, "why": "too slow"},
    }
    before = Before("abc1234", "x86_64, 2 cores", "2026-11-28", json.loads(json.dumps(kept)))
    figures = [Figure("a round", 1.0, "s"), Figure("members", 0.5, "ms"), Figure("new", 1.0, "s")]
    text = before_table(figures, before)
    assert "commit abc1234" in text
    assert "| a round | 2.5 s |" in text
    assert "| members | not measured: too slow |" in text
    assert "new" not in text


def test_measured_rounds_of_a_run_with_delay_are_trained_ahead() -> None:
    plan = {**REFERENCE.plan, "round_s": 300.0, "groups": [{"parts": {"training": 300.0}}]}
    advised = Planned({**REFERENCE.tables, "merge": {"codec": "int4", "delay": 1}}, plan)
    run = scaled(advised, reference_rows.ROUND_S)
    state = parse_state(run_text(**run.overrides(reference_rows.CLIENTS)), "scaled")
    groups = [parse_clients(run.clients(reference_rows.CLIENTS))]
    options = PlanOptions()
    played = PlayedRun(groups, round_model(state, groups, options), Scale.of(state, groups, options.most_played))
    played.play(SETTLING_ROUNDS + 1)
    settled_s = _length_s(played.rounds[-1])
    assert _length_s(played.rounds[reference_rows.FIRST - 2]) > 1.3 * settled_s
    for found in played.rounds[reference_rows.FIRST - 1 :]:
        assert _length_s(found) == pytest.approx(settled_s, rel=0.05)


def test_row_of_the_reference_has_the_price_of_its_settings_in_loss() -> None:
    priced = Planned(REFERENCE.tables, {**REFERENCE.plan, "loss": 1.177})
    kind = Kind("with what `plan` advises", "≥ 90 %", priced, scaled(priced, reference_rows.ROUND_S))
    rows = figures_of(kind, reference_rows.Measured(priced, (0.9, 0.95), 14.0, 0.2))
    (row,) = (row for row in rows if "the reference itself" in row.name)
    assert row.baseline_name.endswith("64 local steps of 2 batches, int4; loss + 17.7 % beside one machine")


def _length_s(found: PlayedRound) -> float:
    return found.ended_s - found.started_s


def test_members_whose_connections_fail_are_not_measured_and_say_why() -> None:
    refused = ExceptionGroup("tasks", [ExceptionGroup("addresses", [ConnectionResetError(104, "reset")])])
    assert lost_connections(refused) == "connections failed: ConnectionResetError"
    with pytest.raises(ExceptionGroup):
        lost_connections(ExceptionGroup("tasks", [OSError(), KeyError("a mistake")]))
