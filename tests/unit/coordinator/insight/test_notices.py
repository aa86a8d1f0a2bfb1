"""Notices of a run: one of a kind in a period, what happens once is told once, webhooks are settled once."""

from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.machine.handle import handle
from epochal.coordinator.machine.parts.run_identity import config_json
from epochal.coordinator.machine.run import Run, new_run
from epochal.coordinator.machine.stimuli import CoordinatorStarted, NoticeRaised, NoticeSettled, Stamped, Stimulus
from epochal.state.config.notify_table import NoticeKind
from epochal.state.messages.notices import Notice
from epochal.state.wire import Seed
from tests.support.data.states import state_file

PERIOD_S = 100.0
SEED = Seed("00" * 32)


class NotedRun:
    """A run, and its projection."""

    def __init__(self) -> None:
        self.run: Run = new_run(state_file(), lineage="ab" * 16, coordinator_key="cd" * 32, now_s=1000.0)
        self.projection = Projection()

    def send(self, now_s: float, stimulus: Stimulus) -> tuple[Notice, ...]:
        """Return the notices after a stimulus."""
        self.run, instructions = handle(self.run, Stamped(stimulus, now_s, SEED))
        self.projection.take(instructions, 1)
        return self.projection.notices.notices()


def raising(subject: str = "", message: str = "few", kind: NoticeKind = "members") -> NoticeRaised:
    return NoticeRaised(kind, subject, message, PERIOD_S)


def test_one_notice_of_a_kind_is_raised_in_a_period() -> None:
    noted = NotedRun()
    first = noted.send(1000.0, raising())
    assert noted.send(1000.0 + PERIOD_S - 0.1, raising(message="still")) == first
    again = noted.send(1000.0 + PERIOD_S, raising(message="still"))
    assert [(notice.raised_s, notice.message) for notice in again] == [(1000.0 + PERIOD_S, "still")]


def test_what_happens_once_is_told_once() -> None:
    noted = NotedRun()
    first = noted.send(1000.0, raising("7"))
    assert noted.send(1000.0 + 9 * PERIOD_S, raising("7")) == first
    assert [notice.subject for notice in noted.send(1000.0 + 9 * PERIOD_S, raising("8"))] == ["8"]


def test_kinds_do_not_hold_each_other_back() -> None:
    noted = NotedRun()
    noted.send(1000.0, raising())
    assert [notice.kind for notice in noted.send(1000.0, raising("4", "over", "end"))] == ["members", "end"]


def test_webhook_is_settled_for_the_newest_notice_alone() -> None:
    noted = NotedRun()
    noted.send(1000.0, raising())
    settling = NoticeSettled("members", 1000.0, "json-1")
    for _ in range(2):
        assert noted.send(1001.0, settling)[0].settled == ("json-1",)
    assert noted.send(1000.0 + PERIOD_S, raising())[0].settled == ()
    assert noted.send(1000.0 + PERIOD_S, settling)[0].settled == ()


def test_notice_is_kept_with_the_projection_and_leaves_the_run_as_it_is() -> None:
    noted = NotedRun()
    noted.send(1000.0, CoordinatorStarted())
    before = noted.run
    told = noted.send(1000.0, raising())
    assert noted.run == before
    assert noted.run is not before, "so that it is in the journal"
    assert Projection.decoded(noted.projection.encoded()).notices.notices() == told


def test_webhooks_are_not_in_what_clients_see() -> None:
    told = state_file(notify__webhooks=[{"url": "https://hooks.example/secret"}])
    run = NotedRun().run
    assert config_json(told) == config_json(run.state_file)
