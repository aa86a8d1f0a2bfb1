"""The ceiling on one client's part of a round's work, and on one result's part of a merge.

However fast a client is, it gets at most twice an equal part. Among many an eighth is always allowed, so that a large
machine among many small ones may do more. An operator may name another part (`config.max_share`). Equal parts are
allowed as well, since somebody must do the work: with fewer batches than clients one batch is the least part.
"""

from collections.abc import Sequence
from fractions import Fraction

PARTS = 1_000_000
"""A roster names the ceiling in millionths of a round: its digest allows no fractions."""
EQUAL_PARTS = 2
"""A client gets at most so many equal parts."""
ALWAYS_ALLOWED = Fraction(1, 8)


def largest_part(counts: Sequence[int], whole: int, ceiling: int | None) -> Fraction:
    """Return the number of batches above which one of these clients may not have more.

    Args:
        counts: the clients' batches, not empty.
        whole: number of the round's batches, those of other clients included.
        ceiling: the largest part in millionths; None for the default.
    """
    equal = Fraction(max(1, -(-sum(counts) // len(counts))))
    part = max(Fraction(EQUAL_PARTS, len(counts)), ALWAYS_ALLOWED) if ceiling is None else Fraction(ceiling, PARTS)
    return max(whole * part, equal)


def apportion_below(shares: Sequence[int], total: int, whole: int, ceiling: int | None) -> list[int]:
    """Return integers in proportion to `shares` that add up to `total`, none of them above the ceiling.

    The others take what it leaves over, in proportion again.

    Args:
        shares: integers, at least 0.
        total: what is shared out among them.
        whole, ceiling: as `largest_part` takes them.
    """
    if not total:
        return apportion(shares, total)
    limit = int(largest_part(apportion(shares, total), whole, ceiling))
    return apportion_within(shares, total, [limit] * len(shares))


def apportion_within(shares: Sequence[int], total: int, limits: Sequence[int]) -> list[int]:
    """Return integers in proportion to `shares`, none of them above its limit; the others take what that leaves over.

    They add up to `total`, or to all of the limits.
    """
    counts, rest = [0] * len(shares), list(range(len(shares)))
    while True:
        found = apportion([shares[position] for position in rest], total)
        below = [position for position, count in zip(rest, found, strict=True) if count <= limits[position]]
        for position, count in zip(rest, found, strict=True):
            counts[position] = min(count, limits[position])
        if len(below) == len(rest):
            return counts
        total -= sum(limits[position] for position in rest) - sum(limits[position] for position in below)
        rest = below


def apportion(shares: Sequence[int], total: int) -> list[int]:
    """Return integers in proportion to `shares` that add up to `total`, by Hamilton's largest remainder.

    Ties go to the earlier position. Without any share above 0 all are alike; without shares the total must be 0.
    """
    if not shares:
        return []
    share_sum = sum(shares)
    if not share_sum:
        return apportion([1] * len(shares), total)
    counts = [share * total // share_sum for share in shares]
    missing = total - sum(counts)
    if not missing:
        return counts
    by_remainder = sorted(range(len(shares)), key=lambda i: -(shares[i] * total % share_sum))
    for position in by_remainder[:missing]:
        counts[position] += 1
    return counts
