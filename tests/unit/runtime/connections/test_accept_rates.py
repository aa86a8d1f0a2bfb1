"""`runtime/connections/shedding.py`: which new connections are taken, in virtual time."""

from epochal.runtime.connections.per_address import sender_of
from epochal.runtime.connections.shedding import (
    ADDRESS_AT_ONCE,
    ADDRESS_PER_S,
    KNOWN_S,
    STRANGERS_AT_ONCE,
    STRANGERS_PER_S,
    AcceptRates,
)

FLOOD_PER_S = 1600
MEMBER, STRANGER = "192.0.2.1", "192.0.2.2"


def taken_of_flood(rates: AcceptRates, since_s: int, until_s: int) -> int:
    """Return how many connections are taken of a flood that comes from another address each time."""
    numbers = range(since_s * FLOOD_PER_S, until_s * FLOOD_PER_S)
    return sum(rates.take(f"flood {number}", number / FLOOD_PER_S) is not None for number in numbers)


def exhaust(rates: AcceptRates, now_s: float) -> None:
    """Open connections from ever new addresses until one is refused."""
    number = 0
    while rates.take(f"flood at {now_s}: {number}", now_s) is not None:
        number += 1


def test_flood_from_many_addresses_is_taken_at_a_bounded_rate() -> None:
    assert taken_of_flood(AcceptRates(), 0, 10) <= STRANGERS_AT_ONCE + 10 * STRANGERS_PER_S


def test_flood_leaves_the_tokens_of_addresses_with_members() -> None:
    rates = AcceptRates()
    rates.know(MEMBER, 0.0)
    exhaust(rates, 10.0)
    assert rates.take(STRANGER, 10.0) is None
    assert rates.take(MEMBER, 10.0) is not None


def test_flood_from_the_address_of_a_member_is_bounded() -> None:
    rates = AcceptRates()
    rates.know(MEMBER, 0.0)
    taken = sum(rates.take(MEMBER, number / FLOOD_PER_S) is not None for number in range(10 * FLOOD_PER_S))
    assert taken <= ADDRESS_AT_ONCE + 10 * ADDRESS_PER_S
    assert rates.take(STRANGER, 10.0) is not None


def test_network_of_ipv6_addresses_has_the_rate_of_one() -> None:
    rates = AcceptRates()
    taken = [rates.take(sender_of(f"2001:db8::{number:x}"), 0.0) for number in range(ADDRESS_AT_ONCE + 1)]
    assert taken.index(None) == ADDRESS_AT_ONCE


def test_address_is_forgotten_long_after_its_last_member() -> None:
    rates = AcceptRates()
    rates.know(MEMBER, 0.0)
    exhaust(rates, KNOWN_S - 1e-3)
    assert rates.take(MEMBER, KNOWN_S - 1e-3) is not None
    exhaust(rates, KNOWN_S)
    assert rates.take(MEMBER, KNOWN_S) is None
