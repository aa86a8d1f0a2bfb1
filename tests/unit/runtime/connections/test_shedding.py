"""Who loses a connection when there are too many: strangers first, then readers, never a member for them."""

import pytest

from epochal.runtime.connections import shedding
from epochal.runtime.connections.descriptors import MAX_CONNECTIONS, connections_within
from epochal.runtime.connections.per_address import ByAddress, sender_of
from epochal.runtime.connections.shedding import (
    CONNECTION_IN_SCOPE,
    STRANGER_GRACE_S,
    Connection,
    ConnectionLimits,
    Peer,
    ServerConnections,
    Shed,
    gone_of,
    vouch_for,
)


class Opened:
    """Opens connections and records those that are ended."""

    def __init__(self, total: int, **limits: int) -> None:
        self.now_s = 0.0
        self.connections = ServerConnections(ConnectionLimits(total, **limits), lambda: self.now_s)
        self.ended: list[str] = []

    def open(self, name: str, address: str = "10.0.0.1") -> Connection | None:
        return self.connections.admit(address, lambda: self.ended.append(name))

    def stranger(self, name: str, address: str = "10.0.0.1") -> Connection:
        connection = self.open(name, address)
        assert connection is not None
        return connection

    def sender(self, name: str, address: str = "10.0.0.1") -> Connection:
        connection = self.stranger(name, address)
        self.connections.has_head(connection)
        return connection

    def reader(self, name: str, address: str = "10.0.0.1") -> Connection:
        connection = self.stranger(name, address)
        self.connections.has_asked(connection)
        return connection

    def member(self, name: str, owner: str = "m", address: str = "10.0.0.1") -> Connection:
        connection = self.reader(name, address)
        self.connections.vouch(connection, owner)
        return connection


def test_others_wait_while_every_stranger_is_new() -> None:
    opened = Opened(2)
    opened.stranger("first")
    opened.now_s = 0.2
    assert opened.connections.wait_s() == 0
    opened.stranger("second")
    assert opened.connections.wait_s() == pytest.approx(STRANGER_GRACE_S - 0.2)
    opened.now_s = STRANGER_GRACE_S
    assert opened.connections.wait_s() == 0
    opened.stranger("third")
    assert opened.ended == ["first"]


def test_member_gets_back_what_its_connection_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shedding, "STRANGERS_AT_ONCE", 1)
    opened = Opened(10)
    for number in range(3):
        opened.member(f"member {number}", f"m {number}", f"10.0.0.{number}")
    opened.reader("reader", "10.0.1.1")
    assert opened.open("another", "10.0.1.2") is None
    assert opened.connections.shed_counts == {Shed.TOO_FAST: 1}


def test_member_with_too_many_connections_gets_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shedding, "ADDRESS_AT_ONCE", 3)
    opened = Opened(10, per_member=1)
    for number in range(4):
        opened.member(str(number))
    assert opened.open("fifth") is None


def test_readers_leave_places_to_those_who_are_about_to_ask() -> None:
    opened = Opened(8)
    for number in range(7):
        opened.reader(f"reader {number}", f"10.0.0.{number}")
    for name in ("a", "b", "c"):
        opened.stranger(name)
        assert opened.connections.wait_s() == 0
        opened.now_s += STRANGER_GRACE_S
    assert opened.ended == ["reader 0", "a"]


def test_oldest_stranger_makes_room_before_a_reader_and_a_member() -> None:
    opened = Opened(4)
    opened.member("member")
    opened.reader("reader")
    opened.stranger("first")
    opened.stranger("second")
    for name in ("a", "b", "c"):
        opened.stranger(name)
    assert opened.ended == ["first", "second", "a"]
    assert opened.connections.shed_counts == {Shed.CONNECTIONS: 3}


def test_unfinished_heads_make_room_before_older_unfinished_bodies() -> None:
    opened = Opened(100, strangers=3)
    opened.sender("body", "10.0.0.1")
    opened.stranger("head", "10.0.0.2")
    opened.stranger("later head", "10.0.0.3")
    for name in ("a", "b"):
        opened.now_s += STRANGER_GRACE_S
        opened.stranger(name, name)
    assert opened.ended == ["head", "later head"]


def test_unfinished_bodies_leave_places_to_those_who_are_about_to_ask() -> None:
    opened = Opened(100, strangers=8)
    for number in range(8):
        opened.sender(f"body {number}", f"10.0.0.{number}")
    opened.now_s = STRANGER_GRACE_S
    opened.stranger("new", "10.0.1.1")
    assert opened.ended == ["body 0"]


def test_one_address_loses_its_unfinished_head_before_its_body() -> None:
    opened = Opened(100, strangers=4)
    opened.sender("body")
    for name in ("head", "later head"):
        opened.stranger(name)
    opened.now_s = STRANGER_GRACE_S
    opened.stranger("new")
    assert opened.ended == ["head"]


def test_reader_makes_room_for_a_newcomer_where_there_is_no_stranger() -> None:
    opened = Opened(2)
    opened.member("member")
    opened.reader("reader")
    opened.member("another", "other")
    assert opened.ended == ["reader"]


def test_newcomer_is_turned_away_where_only_members_are() -> None:
    opened = Opened(2)
    opened.member("one")
    opened.member("two", "other")
    assert opened.open("three") is None
    assert opened.ended == []
    assert len(opened.connections) == 2


def test_address_with_the_most_connections_loses_one() -> None:
    opened = Opened(5)
    opened.stranger("quiet", "10.0.0.2")
    for number in range(3):
        opened.stranger(f"loud {number}", "10.0.0.3")
    opened.stranger("late", "10.0.0.4")
    opened.stranger("later", "10.0.0.4")
    assert opened.ended == ["loud 0"]


def test_strangers_and_readers_have_a_bound_of_their_own() -> None:
    opened = Opened(100, strangers=2, readers=2)
    for number in range(3):
        opened.stranger(f"stranger {number}", f"10.0.0.{number}")
    assert opened.ended == ["stranger 0"]
    for number in range(3):
        opened.reader(f"reader {number}", f"10.0.1.{number}")
    assert opened.connections.count(Peer.READER) == 2
    assert opened.connections.shed_counts[Shed.READERS] == 1


def test_one_address_leaves_places_to_others() -> None:
    opened = Opened(100, strangers=8)
    for number in range(8):
        opened.stranger(str(number))
        opened.now_s += 1
    assert opened.ended == ["0", "1"]


def test_member_with_too_many_connections_loses_its_oldest() -> None:
    opened = Opened(100, per_member=2)
    for name in ("one", "two"):
        opened.member(name, "greedy")
    opened.member("modest", "other")
    opened.member("three", "greedy")
    assert opened.ended == ["one"]
    assert opened.connections.shed_counts == {Shed.MEMBER: 1}


def test_connection_whose_next_request_has_no_token_is_a_readers() -> None:
    opened = Opened(10)
    connection = opened.member("member")
    opened.connections.has_answered(connection)
    assert connection.peer is Peer.MEMBER
    opened.connections.has_asked(connection)
    opened.connections.has_answered(connection)
    assert (connection.peer, connection.owner) == (Peer.READER, "")


def test_token_is_vouched_for_through_the_scope() -> None:
    opened = Opened(10)
    connection = opened.stranger("one")
    vouch_for({CONNECTION_IN_SCOPE: (opened.connections, connection)}, "member")
    vouch_for({}, "a request over no connection")
    assert (connection.peer, connection.owner) == (Peer.MEMBER, "member")


def test_connection_that_was_shed_changes_nothing_more() -> None:
    opened = Opened(10)
    connection = opened.stranger("one")
    opened.connections.shed(connection, Shed.UNREAD)
    opened.connections.has_asked(connection)
    opened.connections.vouch(connection, "member")
    opened.connections.forget(connection)
    assert len(opened.connections) == 0
    assert opened.ended == ["one"]


def test_what_is_shed_is_noted_for_a_minute() -> None:
    opened = Opened(10)
    opened.connections.shed(opened.stranger("one"), Shed.UNREAD)
    assert list(opened.connections.notes()) == ["shedding connections (unread): 1 since the start"]
    opened.now_s = 61.0
    assert list(opened.connections.notes()) == []


def test_thing_of_the_busiest_address_is_found_after_any_changes() -> None:
    held: ByAddress[int] = ByAddress()
    plain: dict[str, list[int]] = {}
    number = 1
    for step in range(2_000):
        number = number * 48_271 % 2_147_483_647
        address, thing = f"10.0.0.{number % 7}", number % 50
        things = plain.setdefault(address, [])
        if number % 5 < 3:
            held.add(address, thing)
            if thing not in things:
                things.append(thing)
        else:
            held.remove(address, thing)
            if thing in things:
                things.remove(thing)
        most = max(map(len, plain.values()))
        oldest = {things[0] for things in plain.values() if things and len(things) == most}
        found = held.oldest_of_most()
        assert found in oldest if oldest else found is None, step
        assert len(held) == sum(map(len, plain.values()))
        assert held.count(address) == len(things)


@pytest.mark.parametrize(
    ("host", "sender"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("somewhere", "somewhere"),
    ],
)
def test_sender_of_an_address(host: str, sender: str) -> None:
    assert sender_of(host) == sender


@pytest.mark.parametrize(
    ("descriptors", "others", "connections"),
    [(20_000, 0, 19_744), (1_024, 0, 768), (1_024, 1_024, 384), (128, 0, 64), (16, 0, 8), (10**6, 0, MAX_CONNECTIONS)],
)
def test_connections_leave_descriptors_to_files(descriptors: int, others: int, connections: int) -> None:
    assert connections_within(descriptors, others) == connections


def test_sender_has_gone_once_its_connection_has_ended() -> None:
    opened = Opened(10)
    connection = opened.member("one")
    has_gone = gone_of({CONNECTION_IN_SCOPE: (opened.connections, connection)}, lambda: True)
    assert not has_gone()
    opened.connections.forget(connection)
    assert has_gone()
    assert gone_of({}, lambda: True)()
