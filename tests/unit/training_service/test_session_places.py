"""Places for sessions: how many one sender has, and which gives way."""

import pytest

from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.trainers.remote.service_messages import SessionRequest
from epochal.training_service.sessions import GIVE_WAY_IDLE_S, SessionBounds, SessionTable, TrainingSession
from tests.support.drive.served_training import SPEC, HandClock

MANY, OTHER = "192.0.2.1", "192.0.2.2"
LATER_S = GIVE_WAY_IDLE_S + 2


SESSION = TrainingSession(SessionRequest(SPEC, None))


def table_of(clock: HandClock) -> SessionTable:
    return SessionTable(SessionBounds(8), clock)


def opened_by(table: SessionTable, sender: str, count: int) -> list[str]:
    return [table.open(SESSION, sender) for _ in range(count)]


def test_one_sender_has_three_quarters_of_the_places() -> None:
    table = table_of(HandClock())
    opened_by(table, MANY, 6)
    with pytest.raises(Refused, match="6 sessions are open, 6 of this sender; at most 8, 6 of one sender") as refused:
        table.open(SESSION, MANY)
    assert refused.value.kind == Refusal.OVERLOADED
    assert len(opened_by(table, OTHER, 2)) == 2


def test_longest_idle_session_of_the_largest_sender_gives_way() -> None:
    clock = HandClock()
    table = table_of(clock)
    others = opened_by(table, OTHER, 2)
    held = []
    for number in range(6):
        clock.now_s = 1.0 + 0.1 * number
        held += opened_by(table, MANY, 1)
    clock.now_s = LATER_S
    table.use(held[0])
    table.open(SESSION, OTHER)
    assert [one in table for one in held] == [True, False, True, True, True, True]
    assert all(one in table for one in others)


def test_sessions_that_were_just_used_do_not_give_way() -> None:
    clock = HandClock()
    table = table_of(clock)
    opened_by(table, OTHER, 2)
    opened_by(table, MANY, 6)
    clock.now_s = GIVE_WAY_IDLE_S - 1
    with pytest.raises(Refused, match="8 sessions are open"):
        table.open(SESSION, OTHER)


def test_session_with_a_request_under_way_is_not_idle() -> None:
    clock = HandClock()
    table = table_of(clock)
    held = opened_by(table, MANY, 6)
    with table.using(held[0]):
        clock.now_s = LATER_S
        table.open(SESSION, MANY)
        clock.now_s = 1e6
        table.open(SESSION, MANY)
        assert held[0] in table
    assert not any(one in table for one in held[1:])
