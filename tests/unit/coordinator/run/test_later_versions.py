"""Which claims of members hold a run: an older copy is noticed, and liars cannot hold it."""

import pytest

from epochal.coordinator.run.later_versions import MORE_REMEMBERED, LaterVersions
from epochal.state.errors import StoreBlocked
from epochal.state.wire import ClientId

OURS = 995


def holds(later: dict[str, int | None], *, members: int, silent: str = "", new: str = "") -> bool:
    """Return whether a run of some members, named by letters, holds at version `OURS` after these claims."""
    present = [ClientId(letter) for letter in "abcdefgh"[:members]]
    proven = {client_id for client_id in present if client_id not in new}
    versions = LaterVersions(lambda: present, lambda: proven, lambda client_id: client_id in silent)
    for name, version in later.items():
        versions.note(ClientId(name), version)
    try:
        versions.check(OURS)
    except StoreBlocked:
        return True
    return False


def test_majority_that_knows_a_later_version_holds_the_run() -> None:
    assert holds({"a": 1200, "b": 1201, "c": None}, members=3)
    assert holds({"a": 1200}, members=1)


def test_one_member_or_half_of_them_does_not() -> None:
    assert not holds({"a": 1200}, members=2)
    assert not holds({"a": 1200, "b": None}, members=2)
    assert not holds({"a": 1200, "b": 1200, "c": None, "d": None}, members=4)


def test_claims_of_the_silent_and_of_those_who_left_do_not_count() -> None:
    assert not holds({"a": 1200, "b": 1200, "c": 1200, "d": None, "e": None}, members=5, silent="ab")
    assert not holds({"x": 1200, "y": 1200, "a": None}, members=1)


def test_claims_of_keys_that_cost_nothing_do_not_count() -> None:
    assert not holds({"a": None, "b": None, "c": 10**9, "d": 10**9, "e": 10**9}, members=5, new="cde")
    assert not holds({"a": 10**9, "b": 10**9}, members=2, new="ab")


def test_version_that_was_reached_meanwhile_is_no_later_one() -> None:
    assert not holds({"a": OURS, "b": OURS}, members=2)


def test_claim_is_taken_back_by_the_next_request() -> None:
    versions = LaterVersions(lambda: [ClientId("a")], lambda: {ClientId("a")}, lambda _: False)
    versions.note(ClientId("a"), 1200)
    with pytest.raises(StoreBlocked, match=f"version {OURS}, and 1 of 1 .*version 1200 .*--restored"):
        versions.check(OURS)
    versions.note(ClientId("a"), None)
    versions.check(OURS)


def test_clients_that_left_are_forgotten() -> None:
    versions = LaterVersions(lambda: [ClientId("a")], lambda: {ClientId("a")}, lambda _: False)
    for number in range(10 * MORE_REMEMBERED):
        versions.note(ClientId(f"{number}"), None)
    assert len(versions._later) <= MORE_REMEMBERED + 3
