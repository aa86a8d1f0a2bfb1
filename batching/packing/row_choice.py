"""Chooses the samples that share a row: pure functions over lengths.

`fill_row`, for rolling packing, takes the oldest sample and those that fill the rest of the row best. That is the
subset-sum problem, which dynamic programming over sums solves exactly (Bellman, 1957). The reachable sums are the bits
of one integer, so a candidate costs one shift and one `or` over a row's length in bits, and the search ends with the
first set that fills the row completely. Some twenty candidates have a million subsets for a few thousand sums, so it
ends soon, however large the pool.

`best_fit_decreasing` is the classical rule (Johnson, 1973), which places all samples of a pool at once: the last ones,
if it needs fewer rows.
"""

import bisect
from collections.abc import Sequence

MAX_CANDIDATES = 64
"""Maximum number of samples that `fill_row` considers, and so of the bit sets of a row's length that it holds."""


def fill_row(lengths: Sequence[int], row: int) -> list[int]:
    """Return ascending positions, 0 among them, of samples that fill a row of `row` tokens as far as possible.

    Besides position 0 only the first `MAX_CANDIDATES` that fit are considered, so that older samples go first.

    Args:
        lengths: from 1 to `row`; in the order of their arrival.
        row: tokens.
    """
    room = row - lengths[0]
    full, within = 1 << room, (2 << room) - 1
    reached = 1  # bit s: some of the candidates so far add up to s
    candidates: list[int] = []
    reached_before: list[int] = []
    for position, length in enumerate(lengths[1:], 1):
        if length > room:
            continue
        candidates.append(position)
        reached_before.append(reached)
        reached |= (reached << length) & within
        if reached >= full or len(candidates) == MAX_CANDIDATES:
            break
    chosen: list[int] = []
    left = reached.bit_length() - 1
    while left:
        before, position = reached_before.pop(), candidates.pop()
        if not before >> left & 1:  # this sum needs the candidate
            chosen.append(position)
            left -= lengths[position]
    return [0, *reversed(chosen)]


def best_fit_decreasing(lengths: Sequence[int], row: int) -> list[list[int]]:
    """Return all positions in rows of at most `row` tokens: the longest first, each into the fullest row with room."""
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, the row's number), sorted
    for position in _longest_first(lengths):
        at = bisect.bisect_left(room, (lengths[position], -1))
        left, number = room.pop(at) if at < len(room) else (row, len(rows))
        if number == len(rows):
            rows.append([])
        rows[number].append(position)
        bisect.insort(room, (left - lengths[position], number))
    return rows


def tail_rows(lengths: Sequence[int], row: int) -> list[list[int]]:
    """Return all positions in rows of at most `row` tokens: by `fill_row` or, if that makes fewer, best fit."""
    left = list(range(len(lengths)))
    rolled: list[list[int]] = []
    while left:
        chosen = fill_row([lengths[position] for position in left], row)
        rolled.append([left[place] for place in chosen])
        for place in reversed(chosen):
            del left[place]
    return min(rolled, best_fit_decreasing(lengths, row), key=len)


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda position: (-lengths[position], position))
