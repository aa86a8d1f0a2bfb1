"""The ceiling on one client's part of a round, against a naive oracle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.assignment import assign_data_for_state
from epochal.state.documents import Roster, RosterEntry, WorkList
from epochal.state.intervals import BatchId, total_batches
from epochal.state.share_ceiling import PARTS, apportion, apportion_below, largest_part
from epochal.state.wire import ClientId, Seed

SHARES = st.lists(st.one_of(st.integers(0, 20), st.integers(1, 8_000_000)), min_size=1, max_size=30)
CEILINGS = st.one_of(st.none(), st.integers(1, PARTS))


def is_allowed(counts: list[int], whole: int, ceiling: int | None) -> bool:
    """The rule in words: each part is an equal one, or within the ceiling, or twice an equal part, or an eighth."""
    most, clients = max(counts), len(counts)
    if most <= -(-sum(counts) // clients):
        return True
    if ceiling is not None:
        return most * PARTS <= whole * ceiling
    return most * clients <= 2 * whole or most * 8 <= whole


def limited_one_by_one(shares: list[int], total: int, limit: int) -> list[int]:
    """Clients above the limit keep the limit, and the rest is apportioned anew, one client fewer at a time."""
    fixed: dict[int, int] = {}
    while True:
        rest = [position for position in range(len(shares)) if position not in fixed]
        found = dict(zip(rest, apportion([shares[p] for p in rest], total - limit * len(fixed)), strict=True))
        above = [position for position, count in found.items() if count > limit]
        if not above:
            return [fixed.get(position, found.get(position, 0)) for position in range(len(shares))]
        fixed |= dict.fromkeys(above, limit)


@given(SHARES, st.integers(0, 300), CEILINGS)
def test_parts_below_the_ceiling_add_up_and_keep_it(shares: list[int], total: int, ceiling: int | None) -> None:
    counts = apportion_below(shares, total, total, ceiling)
    assert sum(counts) == total
    assert is_allowed(counts, total, ceiling)


@given(SHARES, st.integers(1, 300), CEILINGS)
def test_parts_that_keep_the_ceiling_stay_as_they_are(shares: list[int], total: int, ceiling: int | None) -> None:
    plain = apportion(shares, total)
    if is_allowed(plain, total, ceiling):
        assert apportion_below(shares, total, total, ceiling) == plain


@given(SHARES, st.integers(1, 120), st.integers(1, PARTS))
def test_a_named_ceiling_is_used_up_before_it_cuts(shares: list[int], total: int, ceiling: int) -> None:
    limit = max(total * ceiling // PARTS, -(-total // len(shares)))
    assert apportion_below(shares, total, total, ceiling) == limited_one_by_one(shares, total, limit)


@given(st.integers(1, 40), st.integers(0, 200), CEILINGS)
def test_equal_shares_are_under_every_ceiling(count: int, total: int, ceiling: int | None) -> None:
    assert apportion_below([3] * count, total, total, ceiling) == apportion([3] * count, total)


@given(
    st.lists(st.tuples(st.integers(1, 8_000_000), st.booleans()), min_size=1, max_size=20),
    st.integers(1, 200),
    CEILINGS,
)
def test_no_part_of_a_round_is_above_the_ceiling(
    members: list[tuple[int, bool]], total: int, ceiling: int | None
) -> None:
    entries = [RosterEntry(ClientId(f"{n:032x}"), share, proven) for n, (share, proven) in enumerate(members)]
    work = WorkList((), (BatchId(0, total - 1),))
    found = assign_data_for_state(Roster(tuple(entries), ceiling), work, Seed("07" * 32))
    proven = [total_batches(found[entry.client_id]) for entry in entries if entry.proven]
    counts = [total_batches(found[entry.client_id]) for entry in entries]
    assert sum(counts) == total
    judged = proven or counts
    assert max(counts) <= largest_part(judged, total, ceiling)


@pytest.mark.parametrize(
    ("shares", "total", "ceiling", "expected"),
    [
        ([8_000_000, *[8] * 9], 40, None, [8, 4, 4, 4, 4, 4, 3, 3, 3, 3]),
        ([8_000_000, *[8] * 31], 80, None, [10, *[3] * 8, *[2] * 23]),
        ([8_000_000, *[8] * 9], 40, PARTS // 4, [10, 4, 4, 4, 3, 3, 3, 3, 3, 3]),
        ([8_000_000, 8, 8], 8, None, [5, 2, 1]),
        ([8_000_000, 8], 6, None, [6, 0]),
        ([5, 0, 0], 6, PARTS // 3, [2, 2, 2]),
        ([0, 0], 3, None, [2, 1]),
        ([8_000_000, 8, 8], 8, PARTS, [8, 0, 0]),
        ([8_000_000, 8, 8], 9, 1, [3, 3, 3]),
        ([8_000_000, *[8] * 9], 3, None, [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_a_member_that_claims_a_million_gets_a_part(
    shares: list[int], total: int, ceiling: int | None, expected: list[int]
) -> None:
    assert apportion_below(shares, total, total, ceiling) == expected
