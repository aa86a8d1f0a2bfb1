"""`coordinator/run/liveness.py`: who was heard when, and when another process may use a member's key."""

from epochal.coordinator.run.liveness import GONE_AFTER_S, GONE_TIMEOUTS, KEY_FREE_AFTER_S, LOOKED_AT_ONCE, Liveness
from epochal.runtime.connections.shedding import Connection, ConnectionLimits, ServerConnections
from epochal.state.wire import ClientId

ONE, OTHER = ClientId("01" * 16), ClientId("02" * 16)
LONG_S = 30.0
SHORT_S = 2.5


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
    liveness.lost(members, (ONE,), 100.0, LONG_S)
    return liveness.lost(members, (ONE,), 100.0 + seconds, LONG_S)


def test_member_that_closed_its_connections_is_gone_after_a_while() -> None:
    liveness = Liveness(100.0)
    with liveness.waiting(ONE, lambda: True):
        assert gone_after(liveness, GONE_AFTER_S, (ONE, OTHER)) == ()
        assert gone_after(liveness, GONE_AFTER_S + 0.1, (ONE, OTHER)) == (ONE,)


def test_member_that_asks_again_is_not_gone() -> None:
    liveness = Liveness(100.0)
    with liveness.waiting(ONE, lambda: True):
        liveness.lost((ONE, OTHER), (ONE,), 100.0, LONG_S)
    liveness.heard(ONE, 101.0)
    assert liveness.lost((ONE, OTHER), (ONE,), 110.0, LONG_S) == ()


def test_nobody_is_gone_when_most_members_closed_their_connections() -> None:
    liveness = Liveness(100.0)
    with liveness.waiting(ONE, lambda: True):
        assert gone_after(liveness, GONE_AFTER_S + 0.1, (ONE,)) == ()


def test_member_that_closed_its_connection_before_its_wait_ended_is_gone() -> None:
    liveness = Liveness(100.0)
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


class Server:
    """A server's connections, and who waits by them."""

    def __init__(self) -> None:
        self.connections = ServerConnections(ConnectionLimits(8))
        self.liveness = Liveness(100.0)

    def request(self, client_id: ClientId, connection: Connection | None = None) -> Connection:
        connection = connection or self.connections.admit("127.0.0.1", lambda: None)
        assert connection is not None
        self.connections.vouch(connection, client_id)
        self.liveness.connected(client_id, connection)
        return connection

    def gone_by(self, now_s: float, timeout_s: float = SHORT_S) -> tuple[ClientId, ...]:
        return self.liveness.lost((ONE, OTHER), (ONE,), now_s, timeout_s)


def test_with_a_short_limit_a_client_without_connections_is_gone_sooner() -> None:
    server = Server()
    poll, upload = server.request(ONE), server.request(ONE)
    with server.liveness.waiting(ONE, lambda: not poll.is_held):
        server.connections.forget(poll)
        assert server.gone_by(100.0) == ()
        assert server.gone_by(100.1 + SHORT_S * GONE_TIMEOUTS) == (), "its other connection is open"
        server.connections.forget(upload)
        assert server.gone_by(100.1 + SHORT_S * GONE_TIMEOUTS, LONG_S) == ()
        assert server.gone_by(100.1 + SHORT_S * GONE_TIMEOUTS) == (ONE,)


def test_client_that_only_cancelled_its_wait_is_not_gone_sooner() -> None:
    server = Server()
    poll, other = server.request(ONE), server.request(ONE)
    with server.liveness.waiting(ONE, lambda: not poll.is_held):
        server.connections.forget(poll)
    assert server.gone_by(100.0) == ()
    assert server.gone_by(100.0 + GONE_AFTER_S) == ()
    assert other.is_held


def test_connection_that_a_proxy_gave_to_another_client_is_not_the_ones() -> None:
    server = Server()
    poll, shared = server.request(ONE), server.request(ONE)
    server.request(OTHER, shared)
    with server.liveness.waiting(ONE, lambda: not poll.is_held):
        server.connections.forget(poll)
        server.gone_by(100.0)
        assert server.gone_by(100.1 + SHORT_S * GONE_TIMEOUTS) == (ONE,)


def test_client_whose_connections_are_not_known_has_two_seconds() -> None:
    server = Server()
    with server.liveness.waiting(ONE, lambda: True):
        server.gone_by(100.0)
        assert server.gone_by(100.0 + GONE_AFTER_S) == ()
        assert server.gone_by(100.1 + GONE_AFTER_S) == (ONE,)


def test_every_silent_member_of_many_is_found_in_turn() -> None:
    members = {ClientId(f"{number:032x}") for number in range(3 * LOOKED_AT_ONCE + 5)}
    silent = {ClientId(f"{number:032x}") for number in (0, 700, 3 * LOOKED_AT_ONCE + 4)}
    liveness = Liveness(100.0)
    for client in members - silent:
        liveness.heard(client, 110.0)
    found = [liveness.lost(members, (), 112.0, 5.0) for _ in range(4)]
    assert {client for each in found for client in each} == silent
    assert all(len(each) <= len(silent) for each in found)


def test_member_of_many_that_has_closed_its_wait_is_found_in_turn() -> None:
    members = [ClientId(f"{number:032x}") for number in range(2 * LOOKED_AT_ONCE)]
    liveness, gone = Liveness(100.0), members[LOOKED_AT_ONCE + 7]
    for client in members:
        liveness.heard(client, 100.0)
    with liveness.waiting(gone, lambda: True):
        pass
    found = [liveness.lost(members, members, 100.0 + second, 1000.0) for second in range(6)]
    assert [client for each in found for client in each][:1] == [gone]
