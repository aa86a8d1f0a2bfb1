"""Notices in the run: one of a kind in a period, what happens once is told once, webhooks are settled once."""

from dataclasses import replace

from epochal.coordinator.machine.handle import handle
from epochal.coordinator.machine.parts.run_identity import config_json
from epochal.coordinator.machine.run import Run, new_run, parse_snapshot, snapshot_bytes
from epochal.coordinator.machine.stimuli import NoticeRaised, NoticeSettled, Stamped, Stimulus
from epochal.state.wire import Seed
from tests.support.data.states import state_file

PERIOD_S = 100.0
SEED = Seed("00" * 32)


def fresh_run() -> Run:
    return new_run(state_file(notify__period_s=PERIOD_S), lineage="ab" * 16, coordinator_key="cd" * 32, now_s=1000.0)


def after(run: Run, now_s: float, stimulus: Stimulus) -> Run:
    found, _ = handle(run, Stamped(stimulus, now_s, SEED))
    return found


def raising(subject: str = "", message: str = "few") -> NoticeRaised:
    return NoticeRaised("members", subject, message)


def test_one_notice_of_a_kind_is_raised_in_a_period() -> None:
    run = after(fresh_run(), 1000.0, raising())
    assert after(run, 1000.0 + PERIOD_S - 0.1, raising(message="still")) is run
    again = after(run, 1000.0 + PERIOD_S, raising(message="still"))
    assert [(notice.raised_s, notice.message) for notice in again.records.notices] == [(1000.0 + PERIOD_S, "still")]


def test_what_happens_once_is_told_once() -> None:
    run = after(fresh_run(), 1000.0, raising("7"))
    assert after(run, 1000.0 + 9 * PERIOD_S, raising("7")) is run
    assert after(run, 1000.0 + PERIOD_S, raising("8")).records.notices[0].subject == "8"


def test_kinds_do_not_hold_each_other_back() -> None:
    run = after(after(fresh_run(), 1000.0, raising()), 1000.0, NoticeRaised("end", "4", "over"))
    assert [notice.kind for notice in run.records.notices] == ["members", "end"]


def test_webhook_is_settled_for_the_newest_notice_alone() -> None:
    run = after(fresh_run(), 1000.0, raising())
    settled = after(run, 1001.0, NoticeSettled("members", 1000.0, "json-1"))
    assert settled.records.notices[0].settled == ("json-1",)
    assert after(settled, 1002.0, NoticeSettled("members", 1000.0, "json-1")) is settled
    newer = after(settled, 1000.0 + PERIOD_S, raising())
    assert newer.records.notices[0].settled == ()
    assert after(newer, 1000.0 + PERIOD_S, NoticeSettled("members", 1000.0, "json-1")) is newer


def test_notices_are_in_snapshots_and_not_in_what_clients_see() -> None:
    run = after(fresh_run(), 1000.0, raising())
    assert parse_snapshot(snapshot_bytes(run)) == run
    told = state_file(notify__webhooks=[{"url": "https://hooks.example/secret"}])
    assert config_json(told) == config_json(run.with_parts(replace(run.identity, state_file=state_file())).state_file)
