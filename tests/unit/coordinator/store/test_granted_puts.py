"""Uploads that were granted take room until they end: taken in, given up, too many of one client, or too late."""

from epochal.coordinator.store.object_store.granted_puts import MAX_PUTS_PER_CLIENT, TAKEN_WITHIN_S, GrantedPuts
from epochal.state.wire import ClientId

ONE, OTHER = ClientId("a" * 32), ClientId("b" * 32)


def test_upload_takes_room_until_it_ends() -> None:
    puts = GrantedPuts(lambda: 0.0)
    puts.grant("first", ONE, 10)
    puts.grant("second", OTHER, 5)
    assert (puts.total_bytes, puts.keys) == (15, frozenset({"first", "second"}))
    puts.end("first")
    puts.end("first")
    assert (puts.total_bytes, puts.keys) == (5, frozenset({"second"}))


def test_upload_granted_again_takes_its_room_once() -> None:
    puts = GrantedPuts(lambda: 0.0)
    for _ in range(3):
        puts.grant("key", ONE, 10)
    assert puts.total_bytes == 10


def test_upload_takes_no_room_once_it_comes_too_late() -> None:
    now = [0.0]
    puts = GrantedPuts(lambda: now[0])
    puts.grant("early", ONE, 10)
    now[0] = TAKEN_WITHIN_S / 2
    puts.grant("late", ONE, 5)
    puts.grant("early again", OTHER, 1)
    now[0] = TAKEN_WITHIN_S
    assert puts.total_bytes == 16
    now[0] = TAKEN_WITHIN_S + 1
    assert puts.total_bytes == 6
    now[0] = 2 * TAKEN_WITHIN_S
    assert (puts.total_bytes, puts.keys) == (0, frozenset())


def test_one_client_takes_room_for_a_few_uploads_only() -> None:
    puts = GrantedPuts(lambda: 0.0)
    for number in range(3 * MAX_PUTS_PER_CLIENT):
        puts.grant(f"{number}", ONE, 1)
    puts.grant("other", OTHER, 100)
    assert puts.total_bytes == MAX_PUTS_PER_CLIENT + 100
    newest = {f"{number}" for number in range(2 * MAX_PUTS_PER_CLIENT, 3 * MAX_PUTS_PER_CLIENT)}
    assert puts.keys == newest | {"other"}
