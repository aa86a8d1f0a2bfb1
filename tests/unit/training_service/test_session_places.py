"""Places for sessions: how many one sender has, and which gives way."""

import pytest

from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.trainers.remote.service_messages import SessionRequest
from epochal.training_service.sessions import GIVE_WAY_IDLE_S, SessionBounds, SessionTable, TrainingSession
from tests.support.drive.served_training import SPEC, HandClock

LATER_S = GIVE_WAY_IDLE_S + 2
SESSION = TrainingSession(SessionRequest(SPEC, None))


def full_table(clock: HandClock) -> tuple[SessionTable, list[str]]:
    """A table without a free place, and its sessions, the oldest first."""
    table, held = SessionTable(SessionBounds(3), clock), []
    for number in range(3):
        clock.now_s = 0.1 * number
        held.append(table.open(SESSION))
    return table, held


def test_longest_idle_session_gives_way() -> None:
    clock = HandClock()
    table, held = full_table(clock)
    clock.now_s = LATER_S
    table.use(held[0])
    table.open(SESSION)
    assert [one in table for one in held] == [True, False, True]


def test_sessions_that_were_just_used_do_not_give_way() -> None:
    clock = HandClock()
    table, held = full_table(clock)
    clock.now_s = GIVE_WAY_IDLE_S - 1
    with pytest.raises(Refused, match="3 sessions are open, the maximum") as refused:
        table.open(SESSION)
    assert refused.value.kind == Refusal.OVERLOADED
    assert all(one in table for one in held)


def test_session_with_a_request_under_way_is_not_idle() -> None:
    clock = HandClock()
    table, held = full_table(clock)
    with table.using(held[0]):
        clock.now_s = 1e6
        table.open(SESSION)
        assert [one in table for one in held] == [True, False, False]
