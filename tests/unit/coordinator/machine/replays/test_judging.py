"""Results that are computed again: what is drawn, how reports are judged, and what follows."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.coordinator.insight.event_log import log_event
from epochal.coordinator.insight.figures import EXAM
from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.instructions import (
    Convicted,
    Flagged,
    Instruction,
    OutcomeDecided,
    ReplayJudged,
    ReplaysDrawn,
    ReplaysDropped,
    VerifierTested,
)
from epochal.coordinator.machine.parts.verification import (
    DRIFTS,
    LAST_DISTANCES,
    MAX_VERIFIERS,
    NOT_VERIFIED,
    OpenReplay,
    Trust,
)
from epochal.coordinator.machine.replays.lottery import to_make_room
from epochal.coordinator.machine.replays.tolerances import MAX_PAIRS
from epochal.coordinator.machine.stimuli import CalibrationReported, ReplayFailed, ReplayReported
from epochal.coordinator.machine.views import blobs_kept, blobs_needed
from epochal.coordinator.notify.conditions import KnownSoFar, Room, due_news
from epochal.state.errors import Refused
from epochal.state.intervals import subtract, total_batches
from epochal.state.messages.blob_messages import NO_ROOM, CheckVerdict
from epochal.state.messages.replay_messages import CalibrationReport, ReplayFailure, ReplayReport
from epochal.state.messages.requests import ResultCommitment
from epochal.state.wire import ClientId
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import METRICS, Driver, client, digest_of, in_round, played_once, refused

CPU, GPU = "float32/cpu", "bf16/h100"
HONEST, LIE = 0.01, 1.2
T = TypeVar("T")


@played_once
def verified(*numbers: int, percent: int = 5, within: int = 8, verify_by: str = "replays", **overrides: Any) -> Driver:
    """Return a driver in the first round of a run whose results are verified, long enough for every test."""
    long = {"config__total_steps": 500, "config__epoch_time": 1e6, "merge__inner_state": "reset"} | overrides
    return in_round(*numbers, verify={"by": verify_by, "percent": percent, "within": within}, **long)


def play(driver: Driver, count: int = 1) -> None:
    """Play rounds in which every member delivers."""
    for _ in range(count):
        driver.now_s += 5
        members = driver.run.members
        driver.deliver(*(one for one in driver.workers() if one in members))
        driver.attest(*(one for one in driver.round.tasks.plan.witnesses if one in members))


def join(driver: Driver, number: int, **fields: Any) -> ClientId:
    driver.join(number, **fields)
    driver.ready(client(number))
    return client(number)


def open_of(driver: Driver, client_id: ClientId | None = None) -> list[OpenReplay]:
    found = driver.run.members.verification.open.values()
    return [one for one in found if client_id in (None, one.client_id)]


def report(
    driver: Driver, replay: OpenReplay, excess: float, verifier: str = "v", replay_class: str = CPU, **fields: Any
) -> tuple[Instruction, ...]:
    of: dict[str, Any] = {"took_ms": 5, "result_sha256": replay.result_sha256, "result_class": CPU} | fields
    found = ReplayReport(
        step=replay.step,
        client_id=replay.client_id,
        excess=excess,
        norm_ratio=1.0,
        cosine=0.9,
        replay_class=replay_class,
        **of,
    )
    return driver.send(ReplayReported(verifier, found))


def pass_all(driver: Driver, *but: ClientId, verifier: str = "v") -> None:
    for one in open_of(driver):
        if one.client_id not in but and one.wants(verifier):
            report(driver, one, HONEST, verifier)


def convict(driver: Driver, client_id: ClientId, *verifiers: str) -> tuple[Instruction, ...]:
    """Have three replays of a result of a client, which awaits them, show that it is not its work.

    Without names of verifiers it is one alone. The first one has passed the others' results, and finds one the same.
    """
    first, *_ = verifiers = verifiers or ("v", "v", "v")
    pass_all(driver, client_id, verifier=first)
    replay = open_of(driver, client_id)[0]
    for number, verifier in enumerate(verifiers):
        report(driver, replay, LIE, verifier, took_ms=number)
    return report(driver, control_of(driver, first), HONEST, first, took_ms=9)


def control_of(driver: Driver, verifier: str = "v") -> OpenReplay:
    """The result, passed before, that a verifier is to compute again before its accusations convict."""
    verification = driver.run.members.verification
    due = verification.due(verifier, driver.run.progress.step, 8)
    (found,) = (one for one in due if one.key not in verification.open)
    return found


def only(told: tuple[Instruction, ...], kind: type[T]) -> T:
    (found,) = (one for one in told if isinstance(one, kind))
    return found


def applied(driver: Driver) -> list[ClientId]:
    """The clients whose results the last round applied."""
    last = [one for one in driver.instructions if isinstance(one, OutcomeDecided)][-1]
    return [] if last.outcome is None else [entry.client_id for entry in last.outcome.entries]


def with_newcomer(**overrides: Any) -> tuple[Driver, ClientId]:
    """Return a driver after the exam of a client that came to three others, whose results have passed."""
    driver = verified(1, 2, 3, **overrides)
    play(driver, 3)
    pass_all(driver)
    newcomer = join(driver, 4)
    play(driver, 2)
    pass_all(driver, newcomer)
    assert [one.why for one in open_of(driver, newcomer)] == ["exam"]
    return driver, newcomer


@pytest.mark.parametrize("percent", [5, 100])
def test_new_key_is_unproven_until_a_result_has_passed(percent: int) -> None:
    """However many they are, they have a quarter of the work then; also where each result is replayed."""
    driver, newcomer = with_newcomer(percent=percent, within=8)
    for rounds, counts in ((4, False), (8, True)):
        play(driver, rounds)
        assert (newcomer in applied(driver)) is counts, "its results count where no verifier was heard for long"
        (entry,) = (one for one in driver.round.tasks.roster.clients if one.client_id == newcomer)
        assert (entry.proven, entry.share) == (False, 1)


def test_one_result_at_a_time_is_replayed_of_a_new_key_that_is_flagged() -> None:
    driver, newcomer = with_newcomer()
    members = driver.run.members
    flagged = members.with_trust(newcomer, members.trust_of(newcomer).with_flag("like another one"))
    driver.run = driver.run.with_parts(flagged)
    for _ in range(20):
        play(driver)
        assert len(open_of(driver, newcomer)) <= 1
    assert newcomer in applied(driver)


def test_nothing_is_drawn_where_results_are_not_verified() -> None:
    driver = in_round(1, 2, config__total_steps=50)
    play(driver, 2)
    join(driver, 3)
    play(driver, 2)
    assert driver.run.members.verification == NOT_VERIFIED
    assert client(3) in applied(driver)
    with refused("not-now"):
        driver.send(CalibrationReported("v", CalibrationReport(CPU, CPU, 8, (0.0,))))


def test_first_results_of_a_run_count_and_are_replayed() -> None:
    driver = verified(1, 2, 3)
    play(driver)
    assert sorted(applied(driver)) == sorted(client(number) for number in (1, 2, 3))
    assert {one.why for one in open_of(driver)} == {"new"}
    assert only(tuple(driver.instructions), ReplaysDrawn).step == 1


def test_first_result_of_a_new_key_counts_for_nothing_and_is_kept() -> None:
    driver = verified(1, 2, 3)
    play(driver)
    newcomer = join(driver, 4)
    play(driver)
    work = driver.round.tasks.plan.assignments[newcomer]
    play(driver)
    assert newcomer not in applied(driver)
    assert len(applied(driver)) == 3
    (exam,) = open_of(driver, newcomer)
    assert (exam.why, exam.step, exam.assignment) == ("exam", 3, work)
    (shown,) = (one for one in driver.projection().details[-1].clients if one.client_id == newcomer)
    assert shown.detail == EXAM
    assert driver.run.members.by_id[newcomer].conduct.is_good
    assert exam.result_sha256 in blobs_needed(driver.run)
    assert exam.result_sha256 in {blob.sha256 for blob in blobs_kept(driver.run)}
    report(driver, exam, HONEST)
    assert exam.result_sha256 in blobs_needed(driver.run), "the last one that passed is kept"
    pass_all(driver)
    assert exam.result_sha256 not in blobs_needed(driver.run)
    play(driver)
    assert newcomer in applied(driver)


def test_exams_are_beside_the_work_of_a_round_that_counts() -> None:
    """So that many keys that send nonsense, or wait for a verifier, take nothing from the others."""
    driver = verified(1, 2, 3)
    play(driver)
    pass_all(driver)
    whole = driver.round.tasks.work.batch_count()
    for number in range(4, 40):
        join(driver, number)
    play(driver)
    for _ in range(6):
        given_out = driver.round.tasks.plan.assignments
        batches = {one: total_batches(given) for one, given in given_out.items()}
        play(driver)
        assert sum(batches[one] for one in applied(driver)) == whole
        assert whole < sum(batches.values()) <= 4 * whole / 3
        exams = [interval for one in batches.keys() - set(applied(driver)) for interval in given_out[one]]
        assert not subtract(exams, driver.round.tasks.work.shared), "they are carried"


@pytest.mark.parametrize("is_heard", [False, True])
def test_round_after_an_exam_is_the_one_that_was_named(is_heard: bool) -> None:
    driver = verified(1, 2, 3)
    play(driver)
    if is_heard:
        pass_all(driver)
    newcomer = join(driver, 4)
    play(driver)
    assert newcomer in driver.workers()
    driver.deliver(*driver.workers())
    ahead = driver.round.ahead
    assert ahead is not None
    driver.attest(*driver.round.tasks.plan.witnesses)
    begun = driver.round.tasks
    assert (begun.roster_sha256, begun.work_sha256) == (ahead.roster_sha256, ahead.work_sha256)


def test_keys_with_exams_have_none_of_the_work_that_is_left_at_the_end() -> None:
    driver = verified(1, 2, 3, config__total_steps=4)
    play(driver)
    pass_all(driver)
    for number in range(4, 20):
        join(driver, number)
    while driver.run.round is not None:
        if driver.run.progress.step > driver.run.last_step:
            assert set(driver.workers()) <= {client(number) for number in (1, 2, 3)}
        play(driver)
    assert driver.run.work.carried == ()


def test_exam_of_who_joins_again_stays_open() -> None:
    driver, newcomer = with_newcomer()
    driver.send(stimuli.ClientWithdrew(newcomer))
    play(driver)
    before = open_of(driver, newcomer)
    join(driver, 4)
    play(driver, 2)
    assert newcomer not in applied(driver)
    assert open_of(driver, newcomer) == before
    report(driver, before[0], HONEST)
    play(driver)
    assert newcomer in applied(driver)


@pytest.mark.nightly
def test_lot_draws_about_the_percent_and_others_with_another_seed() -> None:
    driver = verified(*range(1, 7), percent=40)
    play(driver)
    pass_all(driver)
    play(driver, 12)
    drawn = [one for told in driver.instructions if isinstance(told, ReplaysDrawn) for one in told.replays]
    of_lot = [one for one in drawn if one.why == "drawn"]
    assert 14 <= len(of_lot) <= 44, "40 % of 72"
    assert {one.client_id for one in of_lot} == {client(number) for number in range(1, 7)}
    again = verified(*range(1, 7), percent=40)
    again.seeds = 1000
    play(again)
    pass_all(again)
    play(again, 12)
    drawn_again = [one for told in again.instructions if isinstance(told, ReplaysDrawn) for one in told.replays]
    assert {one.key for one in drawn_again} != {one.key for one in drawn}


def test_lot_depends_on_every_commitment() -> None:
    """So that nobody who knew the seed could choose a result that is not drawn, and know who is."""

    def drawn(name: str) -> frozenset[ClientId]:
        driver = verified(*range(1, 7), percent=40)
        play(driver)
        pass_all(driver)
        driver.deliver(client(1), name=name)
        driver.deliver(*(one for one in driver.workers() if one != client(1)))
        driver.attest(*driver.round.tasks.plan.witnesses)
        return frozenset(one.client_id for one in open_of(driver)) - {client(1)}

    assert len({drawn(f"result {number}") for number in range(6)}) > 1


def test_replay_that_nobody_makes_in_time_is_dropped() -> None:
    driver = verified(1, 2, within=3)
    play(driver, 4)
    assert {one.step for one in open_of(driver)} >= {1}, "three rounds have ended since"
    play(driver)
    assert all(one.step >= 2 for one in open_of(driver))
    dropped = only(tuple(driver.instructions), ReplaysDropped)
    assert {one.step for one in dropped.replays} == {1}
    assert driver.run.members.verification.counts.dropped == len(dropped.replays)
    with refused("stale-round"):
        report(driver, dropped.replays[0], HONEST)


def test_results_that_wait_for_verifiers_make_room_step_by_step() -> None:
    """A run that has too little room for all of them goes on, instead of refusing results for ever."""
    driver = verified(1, 2, 3, percent=100, within=20, config__client_timeout_s=9000)
    play(driver)
    pass_all(driver)
    play(driver, 3)
    waiting = sorted({one.step for one in open_of(driver)})
    assert len(waiting) == 3
    for step in waiting:
        number = driver.round.number
        for one in driver.workers():
            large = ResultCommitment(number.step, number.attempt, digest_of(f"large {one} {number}"), 10, METRICS)
            driver.reject(one, large, NO_ROOM)
        driver.pass_time(61)
        assert (driver.round.number.step, driver.round.number.attempt) > (number.step, number.attempt), "it was void"
        dropped = [one for one in driver.instructions if isinstance(one, ReplaysDropped)][-1]
        assert ({one.step for one in dropped.replays}, "max_total_bytes" in dropped.reason) == ({step}, True)
    assert not open_of(driver)


def test_nothing_is_dropped_for_a_result_that_found_room_at_last() -> None:
    driver = verified(1, 2, 3, percent=100, within=20)
    play(driver)
    pass_all(driver)
    play(driver)
    before, number = open_of(driver), driver.round.number
    large = ResultCommitment(number.step, number.attempt, digest_of("large"), 10, METRICS)
    driver.reject(client(1), large, NO_ROOM)
    driver.send(stimuli.ResultReceived(client(1), large, CheckVerdict(driver.replica_digest(), 1.0)))
    driver.deliver(*(one for one in driver.workers() if one != client(1)))
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert driver.round.number.step == number.step + 1
    assert {one.key for one in before} <= {one.key for one in open_of(driver)}


def test_disputed_results_and_those_of_proven_members_make_room_last() -> None:
    driver, newcomer = with_newcomer(percent=100, within=20)
    play(driver)
    (exam,) = open_of(driver, newcomer)
    heard(driver, "v", "w")
    disputed = min((one for one in open_of(driver) if one.client_id != newcomer), key=lambda one: one.step)
    report(driver, disputed, LIE, "v")
    order = to_make_room(open_of(driver))
    assert order == [exam]
    others = [one for one in open_of(driver) if one != exam]
    assert disputed.key not in {one.key for one in to_make_room(others)}
    assert [one.key for one in to_make_room([one for one in others if one.is_disputed])] == [disputed.key]


def test_nothing_stays_open_once_an_edit_ends_verification() -> None:
    driver, _ = with_newcomer()
    driver.send(stimuli.ConfigChanged(driver.run.state_file.model_copy(update={"verify": None})))
    play(driver)
    assert open_of(driver) == []
    assert not driver.run.members.verification.known


def test_replay_of_a_replica_that_cannot_be_built_any_more_is_dropped() -> None:
    driver = verified(1, 2)
    play(driver)
    checkpoint = driver.run.models.checkpoint
    assert checkpoint is not None
    assert open_of(driver)
    later = replace(driver.run.models, checkpoints=(replace(checkpoint, step=1),))
    driver.run = driver.run.with_parts(later)
    play(driver)
    assert all(one.step == 2 for one in open_of(driver))


def fail(driver: Driver, replay: OpenReplay, verifier: str) -> tuple[Instruction, ...]:
    failure = ReplayFailure(replay.step, replay.client_id, "data", "the data have gone")
    return driver.send(ReplayFailed(verifier, failure))


def test_failures_of_three_verifiers_drop_a_replay_and_blame_nobody() -> None:
    driver, newcomer = with_newcomer()
    (exam,) = open_of(driver, newcomer)
    assert fail(driver, exam, "v") == fail(driver, exam, "w") == ()
    assert "the data have gone" in only(fail(driver, exam, "x"), ReplaysDropped).reason
    assert open_of(driver, newcomer) == []
    assert newcomer in driver.run.members
    with refused("stale-round"):
        fail(driver, exam, "v")


def test_verifier_that_fails_again_and_again_leaves_the_replay_to_others() -> None:
    driver, newcomer = with_newcomer()
    (exam,) = open_of(driver, newcomer)
    heard(driver, "bad")
    for _ in range(3):
        assert exam.key in due_keys(driver, "bad")
        assert fail(driver, exam, "bad") == ()
    assert exam.key not in due_keys(driver, "bad")
    before = driver.run
    assert fail(driver, exam, "bad") == ()
    assert driver.run is before
    assert only(report(driver, exam, LIE, "v"), ReplayJudged).verdict == "disputed"
    assert exam.key not in due_keys(driver, "bad")
    assert exam.key in due_keys(driver, "v"), "nobody else is to report it"


def due_keys(driver: Driver, verifier: str) -> list[str]:
    return [one.key for one in driver.run.members.verification.due(verifier, driver.run.progress.step, 8)]


def test_share_of_a_new_key_grows_only_while_none_awaits_a_replay() -> None:
    driver, newcomer = with_newcomer()
    play(driver, 3)
    pass_all(driver, newcomer)
    assert driver.run.members.by_id[newcomer].trust.rounds == 0
    assert driver.run.members.by_id[newcomer].conduct.earned == 0
    report(driver, open_of(driver, newcomer)[0], HONEST)
    for expected in range(1, 6):
        play(driver)
        pass_all(driver)
        assert driver.run.members.by_id[newcomer].trust.rounds == expected
    founder = driver.run.members.by_id[client(1)].trust
    assert founder.rounds == driver.run.progress.step - 1


def test_share_stops_growing_while_a_later_result_awaits_its_replay() -> None:
    driver, newcomer = with_newcomer(percent=100)
    report(driver, open_of(driver, newcomer)[0], HONEST)
    for expected in (1, 2):
        play(driver)
        pass_all(driver, *([newcomer] if expected == 2 else []))
        assert driver.run.members.by_id[newcomer].trust.rounds == expected
    for _ in range(3):
        play(driver)
        pass_all(driver, newcomer)
    assert newcomer in applied(driver)
    assert driver.run.members.by_id[newcomer].trust.rounds == 2
    pass_all(driver)
    play(driver)
    assert driver.run.members.by_id[newcomer].trust.rounds == 3


def test_no_report_alone_convicts_and_three_do() -> None:
    driver, newcomer = with_newcomer()
    (exam,) = open_of(driver, newcomer)
    assert only(report(driver, exam, LIE, "v"), ReplayJudged).verdict == "disputed"
    assert only(report(driver, exam, LIE, "w"), ReplayJudged).verdict == "disputed"
    assert newcomer in driver.run.members
    told = report(driver, exam, LIE, "x")
    assert only(told, ReplayJudged).verdict == "convicted"
    found = only(told, Convicted)
    assert (found.client_id, found.step) == (newcomer, exam.step)
    assert "1.2 (of 0.3) by v" in found.figures
    assert newcomer not in driver.run.members
    assert newcomer in driver.run.members.ejected
    assert open_of(driver, newcomer) == []
    with refused("ejected"):
        driver.join(4)


def test_one_verifier_convicts_by_three_replays_where_there_is_no_other() -> None:
    driver, newcomer = with_newcomer()
    (exam,) = open_of(driver, newcomer)
    report(driver, exam, LIE, replay_class=GPU)
    assert driver.run.members.verification.open[exam.key].wanted_class("v") == CPU
    report(driver, exam, LIE)
    assert driver.run.members.verification.open[exam.key].wanted_class("v") is None
    assert only(report(driver, exam, LIE, took_ms=7), ReplayJudged).verdict == "disputed"
    assert newcomer in driver.run.members
    assert exam.key not in due_keys(driver, "v")
    told = report(driver, control_of(driver), HONEST, took_ms=8)
    assert not only(told, VerifierTested).is_refused
    assert only(told, Convicted).client_id == newcomer


def test_one_verifier_that_does_not_repeat_itself_convicts_nobody() -> None:
    """As after an upgrade, or with other data: what it passed before is false now, as everything else."""
    driver, newcomer = with_newcomer()
    (exam,) = open_of(driver, newcomer)
    for number in range(3):
        report(driver, exam, LIE, took_ms=number)
    control = control_of(driver)
    assert control.result_sha256 in blobs_needed(driver.run)
    assert control.result_sha256 in {blob.sha256 for blob in blobs_kept(driver.run)}
    assert only(report(driver, control, LIE), VerifierTested).is_refused
    assert driver.run.members.verification.convicted == {}
    assert driver.run.members.verification.open[exam.key].reports == ()
    assert driver.run.members.verification.control is None
    with refused("forbidden"):
        report(driver, exam, LIE)


def test_one_verifier_that_has_passed_nothing_convicts_nobody() -> None:
    driver = verified(1, 2, 3, within=3)
    play(driver)
    for one in open_of(driver):
        for number in range(3):
            report(driver, one, LIE, took_ms=number)
    assert due_keys(driver, "v") == []
    play(driver, 4)
    assert len(driver.run.members) == 3
    dropped = [one for one in driver.instructions if isinstance(one, ReplaysDropped)]
    assert "none has shown since that it computes as before" in dropped[0].reason


def accused_by_two(driver: Driver, client_id: ClientId) -> OpenReplay:
    """Let "v" and "w" find a result false, of a client which awaits replays; "v" has passed all others."""
    pass_all(driver, client_id)
    replay = open_of(driver, client_id)[0]
    for number, verifier in enumerate("vwv"):
        assert only(report(driver, replay, LIE, verifier, took_ms=number), ReplayJudged).verdict == "disputed"
    assert replay.key not in due_keys(driver, "v") + due_keys(driver, "w")
    return replay


@pytest.mark.parametrize("shows", ["v", "w"])
def test_two_verifiers_convict_once_one_finds_what_passed_the_same(shows: str) -> None:
    driver = verified(1, 2, 3)
    play(driver)
    accused_by_two(driver, client(3))
    told = report(driver, control_of(driver, shows), HONEST, shows, took_ms=9)
    assert only(told, Convicted).client_id == client(3)


def test_two_verifiers_that_have_passed_nothing_convict_nobody() -> None:
    driver = verified(1, 2, 3, within=3)
    play(driver)
    for one in open_of(driver):
        for number, verifier in enumerate("vwv"):
            report(driver, one, LIE, verifier, took_ms=number)
    assert due_keys(driver, "v") == due_keys(driver, "w") == []
    play(driver, 4)
    assert len(driver.run.members) == 3
    dropped = [one for one in driver.instructions if isinstance(one, ReplaysDropped)]
    assert "none has shown since that it computes as before" in dropped[0].reason


def test_two_verifiers_that_both_compute_otherwise_now_convict_nobody() -> None:
    """The one does not find again what the other has passed: both are doubted, and there is no control."""
    driver = verified(1, 2, 3)
    play(driver)
    accused = accused_by_two(driver, client(3))
    report(driver, control_of(driver, "w"), LIE, "w", took_ms=9)
    verification = driver.run.members.verification
    assert {name: one.doubt for name, one in verification.verifiers.items()} == {"v": "below", "w": "above"}
    assert verification.control is None
    assert verification.open[accused.key].accusers == {"v", "w"}
    assert due_keys(driver, "v") == due_keys(driver, "w") == []


def test_two_verifiers_leave_as_many_proven_members_as_they_convict() -> None:
    driver = verified(*range(1, 5), percent=100, within=64)
    play(driver)
    pass_all(driver)
    for number in (1, 2):
        play(driver)
        accused_by_two(driver, client(number))
        report(driver, control_of(driver), HONEST, took_ms=9)
    play(driver)
    accused_by_two(driver, client(3))
    dropped = only(report(driver, control_of(driver, "w"), HONEST, "w", took_ms=9), ReplaysDropped)
    assert "v and w found it false, as those of 2 other members; 1 remain" in dropped.reason
    assert set(driver.run.members.verification.convicted) == {client(1), client(2)}


def test_one_verifier_that_fails_at_its_control_convicts_after_another_one() -> None:
    driver = verified(1, 2, 3)
    play(driver)
    pass_all(driver, client(1), client(2))
    accused = open_of(driver, client(1))[0]
    for number in range(3):
        report(driver, accused, LIE, took_ms=number)
    assert fail(driver, control_of(driver), "v") == ()
    assert accused.key in driver.run.members.verification.open
    assert accused.key not in due_keys(driver, "v")
    report(driver, open_of(driver, client(2))[0], HONEST)
    assert only(report(driver, control_of(driver), HONEST, took_ms=9), Convicted).client_id == client(1)


def test_one_verifier_leaves_as_many_proven_members_as_it_convicts() -> None:
    """One with other data in a few of its files is as sure of itself as an honest one."""
    driver = verified(*range(1, 7), percent=100, within=64)
    play(driver)
    pass_all(driver)
    for number in range(1, 7):
        play(driver)
        mine = open_of(driver, client(number))
        pass_all(driver, client(number))
        for took_ms in range(3 if mine else 0):
            report(driver, mine[0], LIE, took_ms=took_ms)
        if mine:
            told = report(driver, control_of(driver), HONEST, took_ms=9)
    assert set(driver.run.members.verification.convicted) == {client(number) for number in (1, 2, 3)}
    assert "v found it false, as those of 3 other members; 2 remain" in only(told, ReplaysDropped).reason


def test_median_of_three_passes_honest_work_that_one_misjudged() -> None:
    driver, newcomer = with_newcomer()
    (exam,) = open_of(driver, newcomer)
    report(driver, exam, LIE, "v")
    report(driver, exam, HONEST, "w")
    assert only(report(driver, exam, HONEST, "x"), ReplayJudged).verdict == "passed"
    assert driver.run.members.by_id[newcomer].trust.passed == 1


def test_operator_is_told_of_a_conviction_by_which_figures() -> None:
    driver, newcomer = with_newcomer(notify__webhooks=[{"url": "https://a.example"}])
    told = convict(driver, newcomer)
    raised = due_news(driver.run, KnownSoFar(), Room(0), driver.now_s)
    (notice,) = (one for one in raised if one.kind == "member_convicted")
    assert notice.subject == newcomer
    assert newcomer in notice.message
    assert only(told, Convicted).figures in notice.message


def test_notice_of_several_convictions_names_the_last_three() -> None:
    driver, newcomer = with_newcomer(notify__webhooks=[{"url": "https://a.example"}])
    convict(driver, newcomer)
    verification = driver.run.members.verification
    earlier = {client(number): "earlier figures" for number in (6, 7, 8)} | dict(verification.convicted)
    run = driver.run.with_parts(driver.run.members.verified_as(replace(verification, convicted=earlier)))
    raised = due_news(run, KnownSoFar(), Room(0), driver.now_s)
    (notice,) = (one for one in raised if one.kind == "member_convicted")
    assert notice.message.startswith("4 members convicted")
    assert f"{newcomer}, {client(8)}, {client(7)}. " in notice.message
    assert client(6) not in notice.message
    assert verification.convicted[newcomer] in notice.message


def test_what_verifiers_do_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    driver, newcomer = with_newcomer()
    convict(driver, newcomer)
    for one in driver.instructions:
        log_event(one, driver.run)
    lines = {record.getMessage(): record.__dict__ for record in caplog.records}
    assert lines["client_convicted"]["client_id"] == newcomer
    assert (lines["replayed"]["excess"], lines["replayed"]["verdict"]) == (LIE, "disputed")
    assert lines["replays_drawn"]["count"] >= 1


def test_absolved_client_joins_again_as_a_new_one() -> None:
    driver, newcomer = with_newcomer()
    convict(driver, newcomer)
    driver.send(stimuli.ClientAbsolved(newcomer))
    assert driver.projection().actions[-1].name == "absolve"
    with refused("not-found"):
        driver.send(stimuli.ClientAbsolved(newcomer))
    play(driver)
    join(driver, 4)
    assert driver.run.members.by_id[newcomer].trust == Trust()
    play(driver, 2)
    assert [one.why for one in open_of(driver, newcomer)] == ["exam"]


def test_ejected_client_is_not_absolved() -> None:
    driver = verified(1, 2)
    driver.send(stimuli.ClientEjected(client(2)))
    with refused("not-found"):
        driver.send(stimuli.ClientAbsolved(client(2)))


def test_waiting_result_of_a_convicted_client_is_void() -> None:
    driver = verified(1, 2, 3)
    play(driver)
    driver.deliver(*driver.workers())
    convict(driver, client(3))
    driver.deliver(*driver.workers(3), name="result")
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert sorted(applied(driver)) == sorted((client(1), client(2)))
    carried = total_batches(driver.run.work.carried) + total_batches(driver.round.tasks.work.shared)
    assert carried >= 12
    assert all(driver.run.members.by_id[client(number)].conduct.is_good for number in (1, 2))


def test_those_with_the_same_invitation_are_replayed_until_enough_passed() -> None:
    fields = {"access__mode": "invitations", "config__total_steps": 500, "config__epoch_time": 1e6, "verify": {}}
    fields |= {"merge__inner_state": "reset"}
    driver = Driver(state_file(**fields))
    for code, numbers in (("one", (1,)), ("other", (2, 3))):
        driver.send(stimuli.InvitationMade(digest_of(code), len(numbers), None))
        driver.join(*numbers, invitation_sha256=digest_of(code))
    driver.pass_time(2)
    driver.warm_up()
    play(driver)
    pass_all(driver, client(3))
    told = convict(driver, client(3))
    reason = driver.run.members.by_id[client(2)].trust.flagged
    assert f"client {client(3)}, which came by the same invitation" in reason
    assert only(told, Flagged) == Flagged(client(2), 1, reason)
    assert not driver.run.members.by_id[client(1)].trust.flagged
    earned = driver.conduct(2).earned
    for _ in range(LAST_DISTANCES):
        play(driver)
        assert [one.why for one in open_of(driver, client(2))] == ["flagged"]
        assert driver.conduct(2).earned <= earned
        pass_all(driver)
    assert not driver.run.members.by_id[client(2)].trust.flagged


@played_once
def drifting(excess: float) -> Driver:
    """Return a driver of three members, each result of which passes, and the first's with this distance."""
    driver = verified(1, 2, 3, percent=100)
    for _ in range(17):
        play(driver)
        for one in open_of(driver):
            report(driver, one, excess if one.client_id == client(1) else HONEST)
    return driver


@pytest.mark.nightly
@pytest.mark.parametrize(("excess", "is_flagged"), [(0.021, True), (0.019, False)])
def test_member_that_is_long_farther_than_twice_the_usual_is_flagged(excess: float, is_flagged: bool) -> None:
    driver = drifting(excess)
    assert bool(driver.run.members.by_id[client(1)].trust.flagged) is is_flagged
    assert not driver.run.members.by_id[client(2)].trust.flagged
    told = {(one.client_id, one.reason) for one in driver.instructions if isinstance(one, Flagged)}
    assert told == ({(client(1), DRIFTS)} if is_flagged else set())
    if is_flagged:
        driver.send(stimuli.ClientAbsolved(client(1)))
        assert not driver.run.members.by_id[client(1)].trust.flagged


def test_same_report_changes_nothing_and_another_one_is_refused() -> None:
    driver, newcomer = with_newcomer()
    (exam,) = open_of(driver, newcomer)
    heard(driver, "w")
    report(driver, exam, LIE, "v")
    before = driver.run
    assert report(driver, exam, LIE, "v") == ()
    assert driver.run is before
    with refused("already-committed"):
        report(driver, exam, HONEST, "v")
    with refused("not-found"):
        report(driver, exam, LIE, "x", result_sha256=digest_of("another"))
    with refused("not-found"):
        report(driver, replace(exam, step=900), LIE, "x")
    with refused("stale-round"):
        report(driver, replace(exam, step=1), LIE, "x")


def heard(driver: Driver, *verifiers: str) -> None:
    for verifier in verifiers:
        driver.send(CalibrationReported(verifier, CalibrationReport(CPU, CPU, 8, (0.1,))))


def comparable(driver: Driver) -> OpenReplay:
    """Play until a result is drawn that two verifiers are to replay."""
    for _ in range(50):
        found = [one for one in open_of(driver) if one.is_compared and not one.reports]
        if found:
            return found[0]
        play(driver)
    raise AssertionError("no result is to be compared")


def test_nobody_is_tested_by_what_one_verifier_alone_has_found() -> None:
    driver = verified(*range(1, 5), percent=100)
    play(driver)
    convict(driver, client(4))
    assert driver.run.members.verification.counts.convicted == 1
    assert driver.run.members.verification.known == ()


@pytest.mark.parametrize(("middle", "is_known"), [(1.5, False), (1.19, True)])
def test_nobody_is_tested_by_what_each_verifier_found_otherwise(middle: float, is_known: bool) -> None:
    """All convict but one: whose figure is in the middle has nobody that agrees with it, or has."""
    driver = verified(*range(1, 7))
    play(driver)
    one = open_of(driver)[0]
    pass_all(driver, one.client_id, verifier="h")
    heard(driver, "h", "passes", "convicts")
    for excess, verifier in ((1.2, "h"), (0.0, "passes"), (middle, "convicts")):
        report(driver, one, 1.8 if middle == 1.5 and excess == 1.2 else excess, verifier)
    told = report(driver, control_of(driver, "h"), HONEST, "h", took_ms=9)
    assert only(told, Convicted).client_id == one.client_id
    assert bool(driver.run.members.verification.known) is is_known


def test_class_that_nobody_calibrated_is_flagged_beyond_calibrated_ones() -> None:
    driver = verified(1, 2, 3)
    driver.send(CalibrationReported("v", CalibrationReport(CPU, CPU, driver.run.state_file.merge.local_steps, (0.04,))))
    play(driver)
    first, second, third = open_of(driver)
    made_up = "bf16/made-up"
    told = report(driver, first, 0.25, result_class=made_up)
    assert f"a class that nobody has calibrated ({made_up})" in only(told, Flagged).reason
    assert not [one for one in report(driver, second, 0.05, result_class=made_up) if isinstance(one, Flagged)]
    assert not [one for one in report(driver, third, 0.06) if isinstance(one, Flagged)]
    assert driver.run.members.verification.counts.passed == 3


def test_exams_leave_room_for_the_lot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.coordinator.machine.replays.lottery.MAX_OPEN_REPLAYS", 8)
    monkeypatch.setattr("epochal.coordinator.machine.replays.lottery.ROOM_FOR_PROVEN", 4)
    driver = verified(1, 2, 3, percent=1)
    play(driver)
    pass_all(driver)
    driver.seeds = 100
    for number in range(4, 10):
        join(driver, number)
    play(driver, 4)
    assert [one.why for one in open_of(driver)].count("exam") == 4


def test_verifier_that_convicts_everything_loses_its_role() -> None:
    driver = verified(1, 2, 3, percent=50)
    heard(driver, "h", "i", "bad")
    one = comparable(driver)
    report(driver, one, HONEST, "h")
    report(driver, one, HONEST, "i")
    assert driver.run.members.verification.known
    play(driver, 2)
    disputed = open_of(driver)[0]
    report(driver, disputed, LIE, "bad")
    report(driver, disputed, HONEST, "h")
    test = next(driver.run.members.verification.due("bad", driver.run.progress.step, 8))
    assert test.key == one.key
    found = only(report(driver, test, LIE, "bad"), VerifierTested)
    assert found.is_refused
    assert driver.run.members.verification.open[disputed.key].reports[0].verifier == "h"
    with refused("forbidden"):
        report(driver, disputed, LIE, "bad")
    assert list(driver.run.members.verification.due("bad", driver.run.progress.step, 8)) == []
    assert len(driver.run.members) == 3


def test_verifier_that_passes_everything_is_found_by_a_lie_that_is_known() -> None:
    driver = verified(*range(1, 7), percent=50)
    heard(driver, "h", "i", "bad")
    play(driver)
    convict(driver, client(6), "h", "i", "j")
    one = comparable(driver)
    heard(driver, "h", "i", "bad")
    report(driver, one, 0.0, "bad")
    report(driver, one, LIE, "h")
    test = next(driver.run.members.verification.due("bad", driver.run.progress.step, 8))
    assert test.answer == LIE
    assert only(report(driver, test, 0.0, "bad"), VerifierTested).is_refused
    report(driver, one, LIE, "i")
    assert only(report(driver, one, LIE, "j", replay_class=GPU), ReplayJudged).verdict == "disputed"
    assert one.key not in due_keys(driver, "k"), "three have reported it"
    told = report(driver, control_of(driver, "j"), HONEST, "j")
    assert only(told, Convicted).client_id == one.client_id


def test_honest_verifier_passes_its_test_and_keeps_its_role() -> None:
    driver = verified(*range(1, 7), percent=50)
    heard(driver, "h", "i", "bad")
    play(driver)
    convict(driver, client(6), "h", "i", "j")
    one = comparable(driver)
    heard(driver, "h", "i", "bad")
    report(driver, one, HONEST, "h")
    report(driver, one, LIE, "bad")
    test = next(driver.run.members.verification.due("h", driver.run.progress.step, 8))
    assert not only(report(driver, test, LIE, "h"), VerifierTested).is_refused
    assert driver.run.members.verification.verifiers["h"].doubt == ""


def test_verifier_beside_others_reports_a_result_once() -> None:
    driver, newcomer = with_newcomer()
    heard(driver, "bad", "h")
    (exam,) = open_of(driver, newcomer)
    report(driver, exam, LIE, "bad")
    for other in (GPU, "bf16/other"):
        with refused("already-committed"):
            report(driver, exam, LIE, "bad", replay_class=other)
    assert newcomer in driver.run.members
    report(driver, exam, HONEST, "h")


@pytest.mark.parametrize("names", ["vvv", "abc"])
def test_result_that_a_replay_in_its_own_class_passes_convicts_nobody(names: str) -> None:
    """It was farther than is allowed from replays in another class, whose distances were not known well enough."""
    driver, newcomer = with_newcomer()
    heard(driver, *set(names))
    (exam,) = open_of(driver, newcomer)
    report(driver, exam, LIE, names[0], replay_class=GPU)
    report(driver, exam, 0.0, names[1])
    assert only(report(driver, exam, LIE, names[2], replay_class=GPU, took_ms=7), ReplayJudged).verdict == "unclear"
    assert newcomer in driver.run.members
    assert open_of(driver, newcomer) == []


def test_verifier_alone_against_another_convicts_nobody() -> None:
    driver, newcomer = with_newcomer()
    heard(driver, "bad")
    (exam,) = open_of(driver, newcomer)
    report(driver, exam, LIE, "bad")
    report(driver, exam, HONEST, "v")
    assert only(report(driver, exam, LIE, "bad", replay_class=GPU), ReplayJudged).verdict == "unclear"
    assert newcomer in driver.run.members
    assert open_of(driver, newcomer) == []


def test_result_that_passed_waits_for_another_verifier_if_there_is_one() -> None:
    driver = verified(1, 2, 3, percent=50)
    one = comparable(driver)
    report(driver, one, HONEST, "h")
    assert one.key not in driver.run.members.verification.open
    heard(driver, "i")
    other = comparable(driver)
    report(driver, other, HONEST, "h")
    assert not driver.run.members.verification.open[other.key].wants("h")
    passed = driver.run.members.verification.counts.passed
    play(driver, 10)
    assert other.key not in driver.run.members.verification.open
    assert driver.run.members.verification.counts.passed == passed + 1


def test_calibration_sets_the_tolerance_of_its_classes_and_steps() -> None:
    driver, newcomer = with_newcomer()
    driver.send(CalibrationReported("v", CalibrationReport(CPU, CPU, 8, (0.01, 0.04))))
    driver.send(CalibrationReported("v", CalibrationReport(CPU, CPU, 30, (0.2,))))
    (exam,) = open_of(driver, newcomer)
    assert only(report(driver, exam, 0.07), ReplayJudged).tolerance == pytest.approx(0.06)


@pytest.mark.nightly
def test_classes_that_members_make_up_keep_nobody_from_calibrating() -> None:
    driver = verified(1, 2, percent=100, within=64)
    number = 0
    while number < MAX_PAIRS:
        play(driver)
        for one in open_of(driver):
            report(driver, one, HONEST, result_class=f"float32/made-up-{number}")
            number += 1
    driver.send(CalibrationReported("v", CalibrationReport(CPU, CPU, 8, (0.01,))))
    assert len(driver.run.members.verification.distances) == MAX_PAIRS
    play(driver)
    assert only(report(driver, open_of(driver)[0], HONEST), ReplayJudged).tolerance == pytest.approx(0.02)


def test_key_of_which_nothing_passed_has_one_open_replay_at_most() -> None:
    driver = verified(1, 2, 3, percent=100)
    play(driver, 5)
    assert [one.step for one in open_of(driver)] == [1, 1, 1]


def test_verifier_silent_for_longest_is_forgotten_for_a_new_one() -> None:
    driver = verified(1, 2)
    heard(driver, "first")
    play(driver)
    heard(driver, *map(str, range(MAX_VERIFIERS)))
    assert len(driver.run.members.verification.verifiers) == MAX_VERIFIERS
    assert "first" not in driver.run.members.verification.verifiers


def doubted() -> tuple[Driver, OpenReplay]:
    """Return a driver in which verifier "bad" has contradicted another one, and the result by which it is tested."""
    driver = verified(1, 2, 3, percent=50, within=64)
    heard(driver, "h", "i", "bad")
    one = comparable(driver)
    report(driver, one, HONEST, "h")
    report(driver, one, HONEST, "i")
    play(driver)
    disputed = open_of(driver)[0]
    report(driver, disputed, LIE, "bad")
    report(driver, disputed, HONEST, "h")
    return driver, one


def test_doubted_verifier_reports_nothing_before_its_test() -> None:
    """One that ignores it would go on to report what it likes."""
    driver, test = doubted()
    others = [one for one in open_of(driver) if one.key != test.key and one.is_new_to("bad")]
    assert others
    assert due_keys(driver, "bad") == [test.key]
    for one in others:
        with refused("not-found"):
            report(driver, one, HONEST, "bad")
    report(driver, test, HONEST, "bad")
    assert others[0].key in due_keys(driver, "bad")
    report(driver, others[0], HONEST, "bad")


def test_verifier_that_fails_its_test_in_three_rounds_loses_its_role() -> None:
    driver, test = doubted()
    for is_last in (False, False, True):
        assert due_keys(driver, "bad")[0] == test.key
        told = only(fail(driver, test, "bad"), VerifierTested)
        assert (told.found, told.is_refused) == (None, is_last)
        assert test.key not in due_keys(driver, "bad"), "once in a round: data may come back"
        play(driver)
    with refused("forbidden"):
        fail(driver, test, "bad")


def test_verifier_that_passes_its_test_at_last_is_doubted_no_more() -> None:
    driver, test = doubted()
    fail(driver, test, "bad")
    play(driver)
    assert not only(report(driver, test, HONEST, "bad"), VerifierTested).is_refused
    known = driver.run.members.verification.verifiers["bad"]
    assert (known.doubt, known.failed_tests) == ("", ())


def _events() -> st.SearchStrategy[list[tuple[str, int, float]]]:
    kinds = st.sampled_from(["play", "report", "report", "report", "join", "leave", "fail", "absolve"])
    return st.lists(st.tuples(kinds, st.integers(0, 7), st.sampled_from([0.0, 0.1, LIE])), max_size=20)


def _apply(driver: Driver, kind: str, number: int, excess: float) -> None:
    replays = open_of(driver)
    match kind:
        case "play":
            play(driver)
        case "join":
            driver.join(number + 1)
            driver.ready(client(number + 1))
        case "leave" if number >= 3:
            driver.send(stimuli.ClientWithdrew(client(number + 1)))
        case "report" if replays:
            one = replays[number % len(replays)]
            report(driver, one, excess, f"v{number % 3}", (CPU, GPU)[number % 2], took_ms=number)
        case "fail" if replays:
            one = replays[number % len(replays)]
            fail(driver, one, f"v{number % 4}")
        case "absolve":
            driver.send(stimuli.ClientAbsolved(client(number + 1)))


def _reports(driver: Driver, key: str) -> Iterator[ReplayJudged]:
    for one in driver.instructions:
        if isinstance(one, ReplayJudged) and f"{one.report.step}/{one.report.client_id}" == key:
            yield one


@given(events=_events())
@settings(max_examples=20, deadline=None)
def test_batches_are_applied_once_and_three_replays_convict(events: list[tuple[str, int, float]]) -> None:
    driver = verified(1, 2, 3, percent=30)  # after each stimulus it checks that every batch is counted once
    for kind, number, excess in events:
        if len(driver.run.members) < 2:
            return
        try:
            _apply(driver, kind, number, excess)
        except Refused:
            assert kind != "play"
    for one in driver.instructions:
        if isinstance(one, Convicted):
            reports = list(_reports(driver, f"{one.step}/{one.client_id}"))
            assert len(reports) >= 3
            assert sum(of.report.excess > of.tolerance for of in reports) >= 2
    assert set(driver.run.members.verification.convicted) <= driver.run.members.ejected


@pytest.mark.parametrize(
    ("claimed", "counted", "is_flagged"),
    [(8, 8, False), (8, 6, True), (8, 0, True), (8, None, False), (None, 6, False)],
)
def test_member_that_claims_other_tokens_than_a_replay_counts_is_flagged(
    claimed: int | None, counted: int | None, is_flagged: bool
) -> None:
    driver = verified(1, 2, 3, percent=100)
    for one in driver.workers():
        number = driver.round.number
        metrics = replace(METRICS, sample_tokens=claimed)
        result = digest_of(f"{one} {number}")
        driver.verify(one, ResultCommitment(number.step, number.attempt, result, 10, metrics))
    driver.attest(*driver.round.tasks.plan.witnesses)
    replay = open_of(driver)[0]
    assert replay.tokens == claimed
    report(driver, replay, HONEST, tokens=counted)
    reason = driver.run.members.trust_of(replay.client_id).flagged
    assert reason == (f"its result of step 1 claims 8 tokens; replays counted {counted}" if is_flagged else "")
