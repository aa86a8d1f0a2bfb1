"""Conditions that somebody is told: when each holds, and in which words."""

from dataclasses import replace
from typing import Any

import pytest

from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.machine.instructions import OutcomeDecided
from epochal.coordinator.machine.parts.run_work import Suspect
from epochal.coordinator.machine.run import Run, new_run
from epochal.coordinator.machine.stimuli import StepFailed
from epochal.coordinator.notify.conditions import KnownSoFar, Room, due_news
from epochal.state.config.notify_table import NOTICE_KINDS
from epochal.state.documents import CheckpointRef
from epochal.state.errors import FailureKind
from epochal.state.intervals import BatchId
from epochal.state.messages.requests import FailureReport
from epochal.state.phase_names import RunState
from epochal.state.wire import Seed, Sha256
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import Driver, client

WEBHOOK = {"url": "https://hooks.example/x"}
ROOM = Room(blob_bytes=0)
NOTHING = KnownSoFar()


def begun_run(**overrides: Any) -> Run:
    """A run of which rounds have ended, with enough members: none is needed."""
    state = state_file(notify__webhooks=[WEBHOOK], notify__loss_rounds=3, notify__rounds_without_outcome=5, **overrides)
    run = new_run(state, lineage="ab" * 16, coordinator_key="cd" * 32, now_s=1000.0)
    return run.with_parts(
        replace(run.work, next_assignment_seed=Seed("00" * 32)),
        replace(run.clock, phase=RunState.ROUND_TRAIN),
        replace(run.progress, step=9),
    )


def told(run: Run, past: KnownSoFar = NOTHING, room: Room = ROOM) -> dict[str, str]:
    return {news.kind: news.message for news in due_news(run, past, room, 1000.0) if news.kind != "members"}


def test_too_few_members_are_told_once_the_run_has_begun() -> None:
    kinds = [news.kind for news in due_news(begun_run(), NOTHING, ROOM, 1000.0)]
    assert kinds == ["members"]
    before = begun_run()
    assert due_news(before.with_parts(replace(before.work, next_assignment_seed=None)), NOTHING, ROOM, 1000.0) == []
    assert due_news(before.with_parts(replace(before.clock, phase=RunState.PAUSED)), NOTHING, ROOM, 1000.0) == []


@pytest.mark.parametrize(("attempt", "kinds"), [(4, set()), (5, {"no-outcome"})])
def test_rounds_without_an_outcome_are_told(attempt: int, kinds: set[str]) -> None:
    before = begun_run()
    assert set(told(before.with_parts(replace(before.progress, attempt=attempt)))) == kinds


@pytest.mark.parametrize(
    ("losses", "is_told"),
    [
        ([3.0, 2.0, 1.0, 1.0, 1.0, 1.04], False),
        ([2.0, 2.0, 2.0, 2.09, 2.09, 2.09], False),
        ([2.0, 2.0, 2.0, 2.11, 2.11, 2.11], True),
        ([3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.2, 1.2], True),
        ([1.0, 1.0, 1.0, 9.0, 9.0], False),
        ([1.0, 1.0, 1.0, 9.0, 9.0, 9.0], True),
    ],
    ids=["level", "within", "above", "rising", "too-few", "jump"],
)
def test_rising_loss_is_told(losses: list[float], is_told: bool) -> None:
    found = told(begun_run(), KnownSoFar(losses=losses))
    assert ("loss" in found) is is_told


@pytest.mark.parametrize("kind", ["not_finite", "trainer"])
def test_loss_that_is_not_finite_is_told_by_the_kind_of_the_report(kind: FailureKind) -> None:
    driver = Driver(state_file(config__min_clients=1, config__init_min_clients=1))
    driver.join(1)
    driver.next_round()
    number, history = driver.round.number, Projection()
    driver.send(StepFailed(client(1), FailureReport(number.step, number.attempt, kind, "the loss is nan")))
    driver.pass_time(1000)
    driver.pass_time(1000)
    history.add(next(one for one in driver.instructions if isinstance(one, OutcomeDecided)), 1)
    assert [failed for failed, _ in KnownSoFar.of(history).not_finite] == [client(1)] * (kind == "not_finite")
    assert ("loss" in told(begun_run(), KnownSoFar.of(history))) is (kind == "not_finite")


def test_quarantine_is_told_with_the_newest_reason_as_text() -> None:
    before = begun_run()
    found = told(
        before.with_parts(replace(before.work, quarantined=(Suspect(BatchId(4, 5), (), "bad \x1b[31m<b>\n"),)))
    )
    assert found["quarantine"].startswith("2 batches in quarantine; the newest are ")
    assert "\x1b" not in found["quarantine"]
    assert "\n" not in found["quarantine"]


@pytest.mark.parametrize(
    ("room", "is_told"),
    [(Room(90), False), (Room(91), True), (Room(0, "no space left on device"), True)],
    ids=["below", "blobs", "disk"],
)
def test_little_room_is_told(room: Room, is_told: bool) -> None:
    assert ("room" in told(begun_run(blobs__max_total_bytes=100), room=room)) is is_told


def test_checkpoint_and_end_are_told_with_their_step() -> None:
    reference = CheckpointRef(8, Sha256("aa" * 32), 10, Sha256("bb" * 32))
    before = begun_run()
    run = before.with_parts(
        replace(before.clock, phase=RunState.FINISHED), replace(before.models, checkpoints=(reference,))
    )
    news = {one.kind: one for one in due_news(run, KnownSoFar(losses=(1.5,)), ROOM, 1000.0)}
    assert set(news) == {"checkpoint", "end"}
    assert (news["checkpoint"].subject, news["end"].subject) == ("8", "8")
    assert "1.5 nats" in news["end"].message


def test_kinds_that_nobody_wants_are_not_told() -> None:
    wanted = [kind for kind in NOTICE_KINDS if kind != "members"]
    run = begun_run()
    notify = run.state_file.notify
    quiet = notify.model_copy(update={"webhooks": (notify.webhooks[0].model_copy(update={"on": tuple(wanted)}),)})
    run = run.with_parts(replace(run.identity, state_file=run.state_file.model_copy(update={"notify": quiet})))
    assert due_news(run, NOTHING, ROOM, 1000.0) == []
