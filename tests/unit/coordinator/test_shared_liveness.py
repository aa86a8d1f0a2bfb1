"""`coordinator/run/liveness.py`: what the coordinators of one run tell each other about its members."""

from collections import Counter
from contextlib import ExitStack
from functools import partial

from epochal.coordinator.run.liveness import GONE_AFTER_S, TOLD_FOR_S, WAITS_LOOKED_AT, Liveness
from epochal.coordinator.store.replication import Heartbeats
from epochal.state.wire import ClientId

ONE, OTHER = ClientId("01" * 16), ClientId("02" * 16)
MEMBERS = (ONE, OTHER, ClientId("03" * 16))
LONG_S = 30.0


def lost(liveness: Liveness, now_s: float) -> tuple[ClientId, ...]:
    return liveness.lost(MEMBERS, MEMBERS, now_s, LONG_S)


def test_member_that_another_coordinator_heard_is_not_silent() -> None:
    liveness = Liveness(0.0)
    for member in MEMBERS[1:]:
        liveness.heard(member, 40.0)
    liveness.take(Heartbeats({ONE: 20.0}))
    assert lost(liveness, 45.0) == ()
    assert lost(liveness, 51.0) == (ONE,)


def test_older_news_of_a_member_change_nothing() -> None:
    liveness = Liveness(0.0)
    liveness.heard(ONE, 20.0)
    liveness.take(Heartbeats({ONE: 10.0}, {ONE: 15.0}))
    assert liveness.silent_s(ONE, 20.0) == 0
    assert lost(liveness, 20.0 + GONE_AFTER_S + 1) == ()


def test_others_are_told_who_was_heard_lately_and_who_waits() -> None:
    liveness = Liveness(0.0)
    liveness.heard(ONE, 10.0)
    with liveness.waiting(OTHER, lambda: False, lambda: 0.0):
        assert liveness.heartbeats(12.0) == Heartbeats({ONE: 10.0, OTHER: 12.0})
        assert liveness.heartbeats(10.1 + TOLD_FOR_S).heard.keys() == {OTHER}


def test_look_at_waiting_members_is_bounded_and_reaches_all_in_turn() -> None:
    liveness, looks, gone = Liveness(0.0), Counter[ClientId](), set[ClientId]()
    members = [ClientId(f"{number:032x}") for number in range(3 * WAITS_LOOKED_AT)]

    def looked_at(client: ClientId) -> bool:
        looks[client] += 1
        return client in gone

    with ExitStack() as waits:
        for client in members:
            waits.enter_context(liveness.waiting(client, partial(looked_at, client), lambda: 0.0))
        assert liveness.heartbeats(12.0).heard.keys() == set(members)
        assert looks.total() <= WAITS_LOOKED_AT
        gone |= {members[0], members[-1]}
        for _ in range(4):
            told = liveness.heartbeats(13.0).heard.keys()
        assert told == set(members) - gone
        assert looks.total() <= 5 * WAITS_LOOKED_AT
        with liveness.waiting(members[0], lambda: False, lambda: 0.0):
            assert members[0] in liveness.heartbeats(14.0).heard, "it waits again"


def test_member_that_closed_its_wait_at_another_coordinator_is_lost_soon() -> None:
    one, other = Liveness(0.0), Liveness(0.0)
    with other.waiting(ONE, lambda: True, lambda: 5.0):
        pass
    one.take(other.heartbeats(6.0))
    assert lost(one, 5.0 + GONE_AFTER_S - 0.1) == ()
    assert lost(one, 5.0 + GONE_AFTER_S + 0.1) == (ONE,)


def test_member_that_closed_a_wait_and_is_heard_elsewhere_is_not_lost() -> None:
    for heard_first in (True, False):
        liveness = Liveness(0.0)
        with liveness.waiting(ONE, lambda: True, lambda: 5.0):
            pass
        if heard_first:
            liveness.take(Heartbeats({ONE: 5.1}))
        assert lost(liveness, 6.0) == ()
        liveness.take(Heartbeats({ONE: 6.1}))
        assert lost(liveness, 20.0) == ()


def test_coordinator_that_begins_again_takes_every_member_as_heard() -> None:
    liveness = Liveness(0.0)
    liveness.heard(ONE, 10.0)
    liveness.begin_again(50.0)
    assert lost(liveness, 50.0 + LONG_S) == ()
    assert set(lost(liveness, 50.1 + LONG_S)) == set(MEMBERS)
