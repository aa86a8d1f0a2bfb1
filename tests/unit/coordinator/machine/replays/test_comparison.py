"""Results that are too like or too unlike others: their clients are flagged, and convicted by nobody."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.coordinator.insight.verification_view import verification_of
from epochal.coordinator.machine.handle import handle
from epochal.coordinator.machine.instructions import Convicted, Flagged, ReplaysDrawn
from epochal.coordinator.machine.parts.verification import MAX_STEPS_COMPARED
from epochal.coordinator.machine.stimuli import ResultsCompared, Stamped
from epochal.state.intervals import BatchId
from epochal.state.messages.replay_messages import Likeness
from epochal.state.wire import ClientId, Seed
from tests.support.drive.machine_driver import Driver, client, played_once, refused
from tests.unit.coordinator.machine.replays.test_judging import HONEST, play, report, verified
from tests.unit.coordinator.machine.replays.test_reveals import keeping
from tests.unit.coordinator.machine.replays.test_reveals import play as play_keeping

SEED = Seed("5e" * 32)
USUAL = Likeness(0.5, 0.4, 0.3)
NUMBERS = (1, 2, 3, 4)


def compared(driver: Driver, **odd: Likeness) -> list[Flagged]:
    """Play a round, of which all results are usual but those of these clients (`c1`, …); return who is flagged."""
    play(driver)
    step = driver.run.progress.replica_step
    figures = {client(number): odd.get(f"c{number}", USUAL) for number in NUMBERS}
    return [one for one in driver.send(ResultsCompared(step, SEED, figures)) if isinstance(one, Flagged)]


@played_once
def trusted() -> Driver:
    """A driver of a run of which every client's result has passed."""
    driver = verified(*NUMBERS, percent=1)
    play(driver)
    for one in list(driver.run.members.verification.open.values()):
        report(driver, one, HONEST)
    return driver


def open_of(driver: Driver, client_id: ClientId) -> list[int]:
    return [one.step for one in driver.run.members.verification.open.values() if one.client_id == client_id]


@pytest.mark.parametrize(
    ("likeness", "reason"),
    [
        (Likeness(0.5, 0.97, 0.3), "like another one of the round (cosine 0.97)"),
        (Likeness(0.5, 0.4, 0.99), "like one of its own earlier ones (cosine 0.99)"),
    ],
)
def test_result_that_is_like_another_is_computed_again_and_so_are_the_next(likeness: Likeness, reason: str) -> None:
    driver = trusted()
    (told,) = compared(driver, c2=likeness)
    assert (told.client_id, told.step) == (client(2), driver.run.progress.replica_step)
    assert reason in told.reason
    assert open_of(driver, client(2)) == [told.step], "its result of that step, too"
    assert sum(isinstance(one, ReplaysDrawn) and one.step == told.step for one in driver.instructions) == 1
    shown = f"Each result of client {client(2)} is computed again: {told.reason}."
    assert shown in verification_of(driver.run).sentences
    assert compared(driver) == []
    assert open_of(driver, client(2)) == [told.step, told.step + 1]
    for _ in range(8):
        for one in list(driver.run.members.verification.open.values()):
            report(driver, one, HONEST)
        play(driver)
    assert not driver.run.members.trust_of(client(2)).flagged, "results that pass clear it"


def test_result_that_points_elsewhere_is_flagged_the_second_time_running() -> None:
    driver, apart = trusted(), Likeness(0.04, 0.1, 0.1)
    assert compared(driver, c3=apart) == []
    assert compared(driver) == [], "not running"
    assert compared(driver, c3=apart) == []
    (told,) = compared(driver, c3=apart)
    assert told.client_id == client(3)
    assert "cosine 0.04, where 0.5 was usual" in told.reason


@pytest.mark.parametrize("usual", [-0.3, 0.0, 1 / 16])
def test_nothing_points_elsewhere_where_results_point_nowhere(usual: float) -> None:
    """A sketch knows a cosine to a sixty-fourth."""
    driver, odd = trusted(), Likeness(-0.017, 0.1, 0.1)
    of_all = {f"c{number}": Likeness(usual, 0.4, 0.3) for number in NUMBERS} | {"c3": odd}
    assert compared(driver, **of_all) == compared(driver, **of_all) == []


@pytest.mark.parametrize(("batches", "is_flagged"), [(1, False), (2, True)])
def test_member_with_a_small_part_is_not_flagged_for_its_direction(batches: int, is_flagged: bool) -> None:
    """What it points to is mostly the noise of its few samples. The others have four batches."""
    driver = verified(*NUMBERS, percent=1, config__global_batch_size_start=16, config__global_batch_size_end=16)
    told = list[Flagged]()
    for _ in range(2):
        play(driver)
        step, run = driver.run.progress.replica_step, driver.run
        outcome = run.models.outcomes[step]
        few = (BatchId(outcome.entries[0].assignment[0].start, outcome.entries[0].assignment[0].start + batches - 1),)
        entries = (replace(outcome.entries[0], assignment=few), *outcome.entries[1:])
        outcomes = {**run.models.outcomes, step: replace(outcome, entries=entries)}
        driver.run = replace(run, models=replace(run.models, outcomes=outcomes))
        first = ClientId(outcome.entries[0].client_id)
        figures = {client(number): USUAL for number in NUMBERS} | {first: Likeness(0.01, 0.1, 0.1)}
        handled = handle(driver.run, Stamped(ResultsCompared(step, SEED, figures), driver.now_s, SEED))
        driver.run = run.with_parts(handled[0].members)
        told += [one for one in handled[1] if isinstance(one, Flagged)]
    assert bool(told) is is_flagged


def test_client_that_keeps_moments_may_send_what_is_like_its_last() -> None:
    driver, like = keeping(*NUMBERS, percent=1), Likeness(0.5, 0.4, 0.99)
    for _ in range(2):
        play_keeping(driver)
        figures = {client(number): USUAL for number in NUMBERS} | {client(2): like}
        told = driver.send(ResultsCompared(driver.run.progress.replica_step, SEED, figures))
        assert not [one for one in told if isinstance(one, Flagged)]


@settings(max_examples=10)
@given(st.floats(0.9, 1), st.sets(st.sampled_from(NUMBERS)))
def test_nobody_is_flagged_where_all_are_alike(cosine: float, copies: set[int]) -> None:
    """As at a run's beginning, when every result points the same way."""
    driver = trusted()
    alike = {f"c{number}": Likeness(0.9, cosine if number not in copies else 1.0, cosine) for number in NUMBERS}
    assert compared(driver, **alike) == []


@settings(max_examples=10)
@given(st.lists(st.tuples(*[st.floats(-1, 1)] * 3), min_size=4, max_size=4))
def test_likeness_convicts_nobody(figures: list[tuple[float, float, float]]) -> None:
    driver = trusted()
    for _ in range(2):
        compared(driver, **{f"c{number}": Likeness(*one) for number, one in zip(NUMBERS, figures, strict=True)})
    assert not any(isinstance(one, Convicted) for one in driver.instructions)
    assert set(driver.run.members.by_id) == {client(number) for number in NUMBERS}


def test_figures_of_a_step_come_once_and_the_last_ones_are_kept() -> None:
    driver = trusted()
    compared(driver)
    step = driver.run.progress.replica_step
    for wrong in (step, step - 1, step + 1):
        with refused("stale-round"):
            driver.send(ResultsCompared(wrong, SEED, {}))
    for _ in range(MAX_STEPS_COMPARED + 2):
        compared(driver)
    kept, last = driver.run.members.verification.compared, driver.run.progress.replica_step
    assert list(kept) == list(range(last - MAX_STEPS_COMPARED + 1, last + 1))
    assert kept[last].figures[client(1)] == USUAL


def test_too_few_figures_flag_nobody() -> None:
    driver = trusted()
    play(driver)
    odd = {client(1): Likeness(-1, 1, 1), client(2): USUAL}
    driver.send(ResultsCompared(driver.run.progress.replica_step, SEED, odd))
    assert not driver.run.members.trust_of(client(1)).flagged
