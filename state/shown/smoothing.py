"""The smoothed loss of a run, as plots, reports and the page draw it.

The rule kept here: a mean is over neighbours on both sides, as many before as after, so that it neither lags behind the
values nor lies above them where they fall evenly; the page's `smoothed` (`widgets/chart.js`) computes the same.
"""

from collections.abc import Sequence

SMOOTHED_PART = 0.02
"""Part of the run's rounds on either side of a round over which its smoothed loss is the mean."""
_ROUNDING = 1e-9


def smoothed(
    xs: Sequence[float], values: Sequence[float | None], weights: Sequence[float], half: float
) -> list[float | None]:
    """Return the mean of each value and its neighbours.

    Neighbours are not farther away than `half`, and not farther than the nearer end.

    Args:
        xs: places of the values, such as the number of the middle round of each, in ascending order.
        values: None where there is none, which stays so.
        weights: of the values, above 0, such as the number of rounds that each represents.
        half: maximum distance of a neighbour.
    """
    found: list[float | None] = []
    start = end = 0
    for x, value in zip(xs, values, strict=True):
        reach = min(half, x - xs[0], xs[-1] - x) + _ROUNDING
        while end < len(xs) and xs[end] <= x + reach:
            end += 1
        while xs[start] < x - reach:
            start += 1
        near = [(values[place], weights[place]) for place in range(start, end)]
        known = [(loss, weight) for loss, weight in near if loss is not None]
        total = sum(weight for _, weight in known)
        found.append(None if value is None else sum(loss * weight for loss, weight in known) / total)
    return found
