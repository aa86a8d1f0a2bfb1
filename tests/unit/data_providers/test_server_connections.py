"""Which connection of a data server gives way to which."""

from typing import Any, cast

import pytest

from epochal.data_providers.protocol import SourceUnavailable
from epochal.data_providers.tcp.connections import DataConnections, ServerConnection
from epochal.data_providers.tcp.gate import ANYONE
from epochal.data_providers.tcp.server_limits import DEFAULT_LIMITS, ServerLimits
from epochal.state.wire import ClientId

GREEDY, MODEST = ClientId("a" * 32), ClientId("b" * 32)
IN_ROUNDS = {ClientId("c" * 32), ClientId("d" * 32)}
MEMBER, OTHER_MEMBER = sorted(IN_ROUNDS)


def connections_of(limits: ServerLimits) -> DataConnections:
    return DataConnections(limits, IN_ROUNDS.__contains__)


def connection(address: str = "192.0.2.1", since_s: float = 0.0) -> ServerConnection:
    unused = cast("Any", None)
    return ServerConnection(unused, address, since_s)


def entered(connections: DataConnections, count: int, address: str) -> list[ServerConnection]:
    made = [connection(address) for _ in range(count)]
    assert [connections.enter(one) for one in made] == [None] * count
    return made


def admitted(connections: DataConnections, client_id: ClientId, count: int) -> list[ServerConnection]:
    made = entered(connections, count, "192.0.2.1")
    assert [connections.admit(one, client_id) for one in made] == [None] * count
    return made


def test_oldest_stranger_of_a_full_address_gives_way() -> None:
    connections = connections_of(ServerLimits(max_strangers=10, max_strangers_per_address=3))
    first, second, _ = entered(connections, 3, "192.0.2.1")
    entered(connections, 3, "192.0.2.2")
    assert connections.enter(connection("192.0.2.1")) is first
    assert connections.enter(connection("192.0.2.1")) is second
    assert connections.stranger_count == 6


def test_address_with_the_most_strangers_gives_way() -> None:
    connections = connections_of(ServerLimits(max_strangers=5, max_strangers_per_address=5))
    entered(connections, 1, "192.0.2.1")
    oldest = entered(connections, 3, "192.0.2.2")[0]
    entered(connections, 1, "192.0.2.3")
    assert connections.enter(connection("192.0.2.3")) is oldest
    assert len(connections) == 5


def test_stranger_is_not_displaced_before_it_could_greet() -> None:
    connections = connections_of(ServerLimits(max_strangers=4, max_strangers_per_address=2, displaced_after_s=1.0))
    assert connections.wait_s("192.0.2.1", 10.0) <= 0
    for since_s in (10.0, 10.5):
        connections.enter(connection("192.0.2.1", since_s))
    assert connections.wait_s("192.0.2.1", 10.75) == 0.25
    assert connections.wait_s("192.0.2.2", 10.75) <= 0, "another address has room"
    connections.enter(connection("192.0.2.1", 11.0))
    assert connections.wait_s("192.0.2.1", 11.0) == 0.5, "the next oldest one's time"


def test_strangers_take_no_clients_place_and_clients_no_strangers() -> None:
    connections = connections_of(ServerLimits(max_connections=2, max_strangers=2, max_strangers_per_address=2))
    kept = admitted(connections, GREEDY, 2)
    for _ in range(9):
        connections.enter(connection())
    assert (connections.client_count, connections.stranger_count) == (2, 2)
    assert set(kept) <= set(connections)


def test_idle_connection_of_the_greediest_client_gives_way() -> None:
    connections = connections_of(ServerLimits(max_connections=4))
    busy, idle, *_ = admitted(connections, GREEDY, 4)
    busy.busy = True
    newcomer = connection()
    connections.enter(newcomer)
    assert connections.admit(newcomer, MODEST) is idle
    assert connections.client_count == 4
    assert idle not in set(connections)


def test_client_with_as_many_connections_as_anyone_is_told_to_come_again() -> None:
    connections = connections_of(ServerLimits(max_connections=2))
    admitted(connections, GREEDY, 1)
    admitted(connections, MODEST, 1)
    newcomer = connection()
    connections.enter(newcomer)
    with pytest.raises(SourceUnavailable, match="full"):
        connections.admit(newcomer, GREEDY)


def newcomer_to(connections: DataConnections, address: str = "192.0.2.1") -> ServerConnection:
    made = connection(address)
    connections.enter(made)
    return made


def strangers_keys(connections: DataConnections, count: int, address: str = "192.0.2.1") -> list[ServerConnection]:
    """Fill places with one connection each of new clients; the first one is idle for longest."""
    made = [connection(address, float(number)) for number in range(count)]
    for number, one in enumerate(made):
        connections.enter(one)
        assert connections.admit(one, ClientId(f"{number + 1:032x}")) is None
    return made


@pytest.mark.parametrize("is_busy", [False, True])
def test_client_in_no_round_gives_way_to_one_that_is(is_busy: bool) -> None:
    connections = connections_of(ServerLimits(max_connections=4))
    held = strangers_keys(connections, 4)
    for one in held:
        one.busy = is_busy
    assert connections.admit(newcomer_to(connections), MEMBER) is held[0]
    assert connections.admit(newcomer_to(connections), MEMBER) is held[1]
    assert connections.client_count == 4


def test_idle_client_in_no_round_gives_way_before_a_busy_one() -> None:
    connections = connections_of(ServerLimits(max_connections=4))
    held = strangers_keys(connections, 4)
    for one in held[:3]:
        one.busy = True
    assert connections.admit(newcomer_to(connections), MEMBER) is held[3]


def test_longest_idle_of_the_clients_in_no_round_gives_way() -> None:
    connections = connections_of(ServerLimits(max_connections=4))
    held = strangers_keys(connections, 4)
    held[0].busy = True
    held[1].answered_s = 9.0
    assert connections.admit(newcomer_to(connections), MODEST) is held[2]


def test_client_in_no_round_takes_no_place_of_one_that_is() -> None:
    connections = connections_of(ServerLimits(max_connections=4))
    admitted(connections, MEMBER, 4)
    with pytest.raises(SourceUnavailable, match="full"):
        connections.admit(newcomer_to(connections), MODEST)


def test_idle_connection_of_the_client_with_most_in_a_round_gives_way() -> None:
    connections = connections_of(ServerLimits(max_connections=4))
    busy, idle, *_ = admitted(connections, MEMBER, 4)
    busy.busy = True
    assert connections.admit(newcomer_to(connections), OTHER_MEMBER) is idle


def test_address_with_its_share_displaces_its_own_only() -> None:
    connections = connections_of(ServerLimits(max_connections=4))
    elsewhere = newcomer_to(connections, "192.0.2.9")
    connections.admit(elsewhere, MODEST)
    held = strangers_keys(connections, 3)
    assert connections.admit(newcomer_to(connections), GREEDY) is held[0]
    assert elsewhere in set(connections)


def test_address_above_its_share_gives_way_first_and_only_when_full() -> None:
    connections = connections_of(ServerLimits(max_connections=8))
    early = newcomer_to(connections, "192.0.2.9")
    connections.admit(early, MODEST)
    held = strangers_keys(connections, 7)
    assert connections.admit(newcomer_to(connections, "192.0.2.8"), GREEDY) is held[0]
    assert early in set(connections)


def test_stranger_that_gave_way_is_not_admitted_any_more() -> None:
    connections = connections_of(ServerLimits(max_strangers=1, max_strangers_per_address=1))
    first = entered(connections, 1, "192.0.2.1")[0]
    assert connections.enter(connection("192.0.2.2")) is first
    with pytest.raises(SourceUnavailable, match="gave way"):
        connections.admit(first, MODEST)
    connections.leave(first)
    assert (connections.client_count, connections.stranger_count) == (0, 1)


def test_open_gate_closes_no_connection_for_another() -> None:
    connections = connections_of(ServerLimits(max_connections=2, max_connections_per_client=1))
    admitted(connections, ANYONE, 2)
    newcomer = connection()
    connections.enter(newcomer)
    with pytest.raises(SourceUnavailable, match="full"):
        connections.admit(newcomer, ANYONE)


def test_connection_that_left_is_counted_nowhere() -> None:
    connections = connections_of(ServerLimits())
    stranger = entered(connections, 1, "192.0.2.1")[0]
    client = admitted(connections, MODEST, 1)[0]
    for one in (stranger, client, stranger, client):
        connections.leave(one)
    assert (len(connections), connections.stranger_count, connections.client_count) == (0, 0, 0)


@pytest.mark.parametrize("open_files", [256, 1024, 65_536])
def test_pools_leave_half_of_the_descriptors_for_the_rest_of_the_process(open_files: int) -> None:
    limits = DEFAULT_LIMITS.within(open_files)
    assert 1 <= limits.max_connections + limits.max_strangers <= max(open_files // 2, 1)
    assert 1 <= limits.max_strangers_per_address <= limits.max_strangers <= DEFAULT_LIMITS.max_strangers
