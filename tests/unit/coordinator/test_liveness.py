"""`coordinator/liveness.py`: who was heard when, and when another process may use a member's key."""

from coordinator.liveness import GONE_AFTER_S, KEY_FREE_AFTER_S, Liveness
from state.wire import ClientId

ONE, OTHER = ClientId("01" * 16), ClientId("02" * 16)


def test_key_is_free_after_silence() -> None:
    liveness = Liveness(0.0)
    liveness.heard(ONE, 100.0)
    assert liveness.free_in_s(ONE, 101.0) == KEY_FREE_AFTER_S - 1
    assert liveness.free_in_s(ONE, 100.0 + KEY_FREE_AFTER_S) == 0


def test_key_of_a_member_that_waits_is_not_free_however_long_it_waits() -> None:
    liveness = Liveness(0.0)
    with liveness.waiting(ONE, lambda: False):
        assert liveness.free_in_s(ONE, 1000.0) == KEY_FREE_AFTER_S
        assert liveness.free_in_s(ONE, 2000.0) == KEY_FREE_AFTER_S
    assert liveness.free_in_s(ONE, 3000.0) == 0


def test_wait_whose_sender_has_gone_counts_once() -> None:
    liveness = Liveness(0.0)
    with liveness.waiting(ONE, lambda: True):
        assert liveness.free_in_s(ONE, 1000.0) == KEY_FREE_AFTER_S, "it may be opening another connection"
        assert liveness.free_in_s(ONE, 1000.0 + KEY_FREE_AFTER_S) == 0


def test_end_of_an_old_wait_leaves_the_new_one() -> None:
    liveness = Liveness(0.0)
    old, new = liveness.waiting(ONE, lambda: True), liveness.waiting(ONE, lambda: False)
    old.__enter__()
    liveness.free_in_s(ONE, 1000.0)
    new.__enter__()
    old.__exit__(None, None, None)
    assert liveness.free_in_s(ONE, 2000.0) == KEY_FREE_AFTER_S


def test_every_member_counts_as_heard_at_the_start() -> None:
    assert Liveness(50.0).free_in_s(ONE, 51.0) == KEY_FREE_AFTER_S - 1


def gone_after(liveness: Liveness, seconds: float, members: tuple[ClientId, ...]) -> tuple[ClientId, ...]:
    liveness.gone((ONE,), members, 100.0)
    return liveness.gone((ONE,), members, 100.0 + seconds)


def test_member_that_closed_its_connections_is_gone_after_a_while() -> None:
    liveness = Liveness(0.0)
    with liveness.waiting(ONE, lambda: True):
        assert gone_after(liveness, GONE_AFTER_S, (ONE, OTHER)) == ()
        assert gone_after(liveness, GONE_AFTER_S + 0.1, (ONE, OTHER)) == (ONE,)


def test_member_that_asks_again_is_not_gone() -> None:
    liveness = Liveness(0.0)
    with liveness.waiting(ONE, lambda: True):
        liveness.gone((ONE,), (ONE, OTHER), 100.0)
    liveness.heard(ONE, 101.0)
    assert liveness.gone((ONE,), (ONE, OTHER), 110.0) == ()


def test_nobody_is_gone_when_most_members_closed_their_connections() -> None:
    liveness = Liveness(0.0)
    with liveness.waiting(ONE, lambda: True):
        assert gone_after(liveness, GONE_AFTER_S + 0.1, (ONE,)) == ()


def test_member_that_closed_its_connection_before_its_wait_ended_is_gone() -> None:
    liveness = Liveness(0.0)
    with liveness.waiting(ONE, lambda: True):
        pass
    assert gone_after(liveness, GONE_AFTER_S + 0.1, (ONE, OTHER)) == (ONE,)


def test_lost_are_the_silent_and_the_gone() -> None:
    liveness = Liveness(100.0)
    with liveness.waiting(ONE, lambda: True):
        assert liveness.lost((ONE, OTHER), (ONE,), 100.0, 5.0) == ()
        assert liveness.lost((ONE, OTHER), (ONE,), 100.1 + GONE_AFTER_S, 5.0) == (ONE,)
        liveness.heard(ONE, 104.0)
        assert liveness.lost((ONE, OTHER), (), 105.5, 5.0) == (OTHER,)
