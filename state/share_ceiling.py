"""The ceiling on one client's part of a round's work, and on one result's part of a merge.

Whatever a client claims and has earned, it gets at most twice the median client's part. Among eight or more that is at
most a quarter of the round, and an eighth is always allowed, so that a large machine among many small ones may do more.
An operator may name another part (`config.max_share`). Equal parts are allowed as well, since somebody must do the
work: with fewer clients than the ceiling needs they are all that is possible, and with fewer batches than clients one
batch is the least part.
"""

from collections.abc import Sequence
from fractions import Fraction
from statistics import median_low

PARTS = 1_000_000
"""A roster names the ceiling in millionths of a round: its digest allows no fractions."""
FEW = 8
"""With fewer clients than this, the ceiling is twice the median client's part, however much of the round that is."""
ALWAYS_ALLOWED = Fraction(1, 8)
AT_MOST = Fraction(1, 4)


def largest_part(counts: Sequence[int], whole: int, ceiling: int | None) -> Fraction:
    """Return the number of batches above which one of these clients may not have more.

    Args:
        counts: the clients' batches, not empty.
        whole: number of the round's batches, those of other clients included.
        ceiling: the largest part in millionths; None for the default.
    """
    equal = Fraction(max(1, -(-sum(counts) // len(counts))))
    if ceiling is not None:
        return max(Fraction(whole * ceiling, PARTS), equal)
    twice = Fraction(2 * median_low(counts))
    if len(counts) >= FEW:
        twice = min(max(twice, whole * ALWAYS_ALLOWED), whole * AT_MOST)
    return max(twice, equal)


def apportion_below(shares: Sequence[int], total: int, whole: int, ceiling: int | None) -> list[int]:
    """Return integers in proportion to `shares` that add up to `total`, none of them above the ceiling.

    The others take what it leaves over, in proportion again.

    Args:
        shares: positive integers.
        total: what is shared out among them.
        whole, ceiling: as `largest_part` takes them.
    """
    counts = apportion(shares, total)
    if not total or max(counts) <= largest_part(counts, whole, ceiling):
        return counts
    allowed, refused = -(-total // len(shares)), max(counts)
    while allowed + 1 < refused:
        limit = (allowed + refused) // 2
        tried = _limited(shares, total, limit)
        if max(tried) <= largest_part(tried, whole, ceiling):
            allowed = limit
        else:
            refused = limit
    return _limited(shares, total, allowed)


def _limited(shares: Sequence[int], total: int, limit: int) -> list[int]:
    """Return integers in proportion to `shares` that add up to `total`, at most `limit` each; there is room for all."""
    counts, rest = [limit] * len(shares), list(range(len(shares)))
    while True:
        found = apportion([shares[position] for position in rest], total)
        below = [position for position, count in zip(rest, found, strict=True) if count <= limit]
        if len(below) == len(rest):
            for position, count in zip(rest, found, strict=True):
                counts[position] = count
            return counts
        total -= limit * (len(rest) - len(below))
        rest = below


def apportion(shares: Sequence[int], total: int) -> list[int]:
    """Return integers in proportion to `shares` (positive) that add up to `total`, by Hamilton's largest remainder.

    Ties go to the earlier position. Without shares the total must be 0.
    """
    if not shares:
        return []
    share_sum = sum(shares)
    counts = [share * total // share_sum for share in shares]
    missing = total - sum(counts)
    by_remainder = sorted(range(len(shares)), key=lambda i: -(shares[i] * total % share_sum))
    for position in by_remainder[:missing]:
        counts[position] += 1
    return counts
