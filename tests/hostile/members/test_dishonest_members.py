"""Members that publish other differences than they trained: what is left of them in the model, and who notices."""

from functools import cache
from statistics import median

import pytest

from benchmarks.training.quality_text import Text, library_text
from epochal.state.config.state_file import StateFile
from epochal.state.intervals import total_batches
from epochal.state.weights import number_of
from tests.support.drive.dishonest_run import (
    GREEDY,
    HONEST,
    LONG,
    LONG_AND_FLIPPED,
    WITHOUT_BOUNDS,
    Attack,
    Played,
    dishonest_state,
    play,
)
from tests.support.simulate.virtual_time import run_virtually

ROUNDS = 16
BATCHES = 80
MOST_LOSS = {LONG: 1.05, LONG_AND_FLIPPED: 1.05, GREEDY: 1.15}
"""The held-out loss of a run with dishonest members, as a multiple of the honest one's. A member that turns its part of
each round around makes the run slower, which shows in so short a one: `python -m benchmarks dishonest` plays longer
ones."""
SAME_LOSS = 0.01
LONG_BY_CHANCE = 0.02
"""Part of honest results that may be longer than one and a half times the usual."""
LONG_WARMUP = {
    "model__LLM__lr_schedule": {"Constant": {"base_lr": 0.01, "warmup_init_lr": 0.0, "warmup_steps": 8 * ROUNDS}}
}


@cache
def small_text() -> Text:
    whole = library_text()
    return Text(whole.training[:20_000], whole.held_out[:512])


def small_state(**overrides: object) -> StateFile:
    return dishonest_state(ROUNDS, BATCHES, **overrides)


@cache
def played(attack: Attack) -> Played:
    return run_virtually(play(attack, small_state(), small_text()))


@pytest.mark.nightly
@pytest.mark.parametrize("attack", MOST_LOSS, ids=lambda attack: attack.name)
def test_dishonest_members_cost_the_model_little(attack: Attack) -> None:
    found = played(attack)
    assert found.loss <= MOST_LOSS[attack] * played(HONEST).loss
    assert found.audit.problems == ()


@pytest.mark.nightly
@pytest.mark.parametrize("attack", [LONG_AND_FLIPPED, GREEDY], ids=lambda attack: attack.name)
def test_dishonest_members_take_a_run_that_bounds_nobody(attack: Attack) -> None:
    found = run_virtually(play(attack, small_state(**WITHOUT_BOUNDS), small_text()))
    assert found.loss > 3 * played(HONEST).loss


@pytest.mark.nightly  # `tests/unit/state/test_share_ceiling.py` has the rule
def test_member_that_is_much_faster_carries_at_most_a_quarter() -> None:
    assert played(GREEDY).largest_part() <= 0.25


@pytest.mark.nightly
def test_results_that_are_too_long_count_for_as_much_less() -> None:
    found = played(LONG)
    for outcome in found.outcomes:
        honest = median(number_of(entry.norm) for entry in outcome.entries if entry.client_id not in found.dishonest)
        for entry in outcome.entries:
            assert number_of(entry.norm) * number_of(entry.factor) < 3 * honest


@pytest.mark.nightly
def test_members_whose_results_are_too_long_rest_and_are_told_why() -> None:
    found = played(LONG_AND_FLIPPED)
    assert found.misses.keys() == found.dishonest
    assert all("times as long as is usual" in reason for reason in found.misses.values())
    late = [entry for outcome in found.outcomes[ROUNDS // 2 :] for entry in outcome.entries]
    theirs = sum(total_batches(entry.assignment) for entry in late if entry.client_id in found.dishonest)
    assert theirs < sum(total_batches(entry.assignment) for entry in late) / 8


@pytest.mark.nightly
def test_honest_members_miss_nothing_whatever_the_others_do() -> None:
    for attack in (HONEST, LONG, LONG_AND_FLIPPED, GREEDY):
        found = played(attack)
        assert not found.misses.keys() - found.dishonest


@pytest.mark.nightly
def test_bounds_leave_an_honest_run_as_it_is() -> None:
    unbounded = run_virtually(play(HONEST, small_state(**WITHOUT_BOUNDS), small_text()))
    assert played(HONEST).loss == pytest.approx(unbounded.loss, rel=SAME_LOSS)


@pytest.mark.nightly
def test_results_that_grow_with_the_learning_rate_are_not_too_long() -> None:
    found = run_virtually(play(HONEST, small_state(**LONG_WARMUP), small_text()))
    factors = found.factors()[False]
    assert found.misses == {}
    assert sum(factor < 1 for factor in factors) <= len(factors) * LONG_BY_CHANCE
