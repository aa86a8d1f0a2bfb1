"""Charts of characters: columns of eighths of a block, and bars of letters."""

import math
from collections.abc import Sequence
from itertools import pairwise

_EIGHTHS = " ▁▂▃▄▅▆▇█"
AXIS_CHARS = 10
MARK = "◆"
MARK_GAP = 4
"""Number of columns between two marks, so that they leave the bars to be seen; the last mark is always shown."""


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """Return values as exponential means of those before, each `weight` of the mean before (0: as they are)."""
    found: list[float] = []
    for value in values:
        found.append(value if not found else weight * found[-1] + (1 - weight) * value)
    return found


def columns_of(values: Sequence[float], width: int) -> list[float]:
    """Return at most `width` means of neighbours."""
    count = min(width, len(values))
    bounds = [len(values) * column // count for column in range(count + 1)] if count else []
    return [sum(values[start:stop]) / (stop - start) for start, stop in pairwise(bounds)]


def column_chart(
    values: Sequence[float],
    width: int,
    height: int,
    *,
    is_log: bool = False,
    marks: Sequence[tuple[int, float]] = (),
) -> list[str]:
    """Return the lines of a chart, highest first, with the axis at its right.

    Args:
        values: finite; with a log axis those that are not positive count as the smallest positive one.
        width, height: of the chart in characters, the axis included.
        is_log: whether the axis is logarithmic.
        marks: other values in their order, each at the index of one of `values`; the axis includes them.
    """
    if not values or height < 1 or width <= AXIS_CHARS:
        return []
    means = columns_of(values, width - AXIS_CHARS)
    places = [((index + 1) * len(means) - 1) // len(values) for index, _ in marks]
    known = [*means, *(value for _, value in marks)]
    low, high = min(known), max(known)
    scaled = _logarithms(known) if is_log else known
    least, most = min(scaled), max(scaled)
    unit = (height * 8 - 1) / (most - least) if most > least else 0.0
    drawn = set[int]()
    for index in reversed(range(len(places))):
        if all(abs(places[index] - places[other]) >= MARK_GAP for other in drawn):
            drawn.add(index)
    eighths = [1 + round((value - least) * unit) for value in scaled[: len(means)]]
    heights = [round((value - least) * unit) // 8 for value in scaled[len(means) :]]
    lines = []
    for row in range(height - 1, -1, -1):
        bars = [_EIGHTHS[min(8, max(0, eighth - 8 * row))] for eighth in eighths]
        for index in drawn:
            if heights[index] == row:
                bars[places[index]] = MARK
        label = f"{high:.4g}" if row == height - 1 else f"{low:.4g}" if row == 0 else ""
        lines.append(f"{''.join(bars).ljust(width - AXIS_CHARS)} {label}")
    return lines


def _logarithms(values: Sequence[float]) -> list[float]:
    positive = [value for value in values if value > 0]
    if not positive:
        return [0.0] * len(values)
    least = min(positive)
    return [math.log(max(value, least)) for value in values]


def letter_bar(parts: Sequence[tuple[str, float]], scale: float) -> str:
    """Return parts one after the other, each as its letter repeated; what is not 0 has at least a letter.

    Args:
        parts: letter and length of each.
        scale: characters for each unit of length.
    """
    bar, end = "", 0.0
    for letter, length in parts:
        if length <= 0:
            continue
        end += length
        bar += letter * max(1, round(end * scale) - len(bar))
    return bar
