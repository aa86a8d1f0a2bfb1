"""Chooses the samples that share a row: pure functions over lengths.

`fill_row` is the rolling packer's: it takes the oldest sample and, of those that wait, a set that fills the rest of
the row best. Finding it is the subset-sum problem, which dynamic programming over sums solves exactly (Bellman, 1957);
with the sums that can be reached as the bits of one integer, a candidate costs one shift and one `or` over a row's
length in bits, and the search ends with the first set that fills the row to the last token. Some twenty candidates
have a million subsets for a few thousand sums, so the end comes soon, however large the pool.

`first_fit_decreasing` and `best_fit_decreasing` are the classical rules (Johnson, 1973), which place all samples of a
pool at once.
"""

import bisect
from collections.abc import Sequence

MAX_CANDIDATES = 64
"""Samples that `fill_row` looks at; bounds the memory of its search to so many bit sets of a row's length."""


def fill_row(lengths: Sequence[int], row: int) -> list[int]:
    """Positions, ascending, of samples that fill a row of `row` tokens as far as can be; position 0 is one of them.

    After it only the first `MAX_CANDIDATES` that fit are looked at, so that those go first that waited longest.

    Args:
        lengths: from 1 to `row`; in the order of their arrival.
        row: tokens.
    """
    room = row - lengths[0]
    full, within = 1 << room, (2 << room) - 1
    reached = 1  # bit s: some of the candidates so far add up to s
    candidates: list[int] = []
    reached_before: list[int] = []
    for position, length in enumerate(lengths):
        if length > room or not position:
            continue
        candidates.append(position)
        reached_before.append(reached)
        reached |= (reached << length) & within
        if reached & full or len(candidates) == MAX_CANDIDATES:
            break
    chosen: list[int] = []
    left = reached.bit_length() - 1
    while left:
        before, position = reached_before.pop(), candidates.pop()
        if not before >> left & 1:  # this sum was not there without the candidate
            chosen.append(position)
            left -= lengths[position]
    return [0, *reversed(chosen)]


def first_fit_decreasing(lengths: Sequence[int], row: int) -> list[list[int]]:
    """All positions in rows of at most `row` tokens: the longest first, each into the first row with room."""
    rows: list[list[int]] = []
    room: list[int] = []
    for position in _longest_first(lengths):
        number = next((number for number, left in enumerate(room) if left >= lengths[position]), len(rows))
        if number == len(rows):
            rows.append([])
            room.append(row)
        rows[number].append(position)
        room[number] -= lengths[position]
    return rows


def best_fit_decreasing(lengths: Sequence[int], row: int) -> list[list[int]]:
    """All positions in rows of at most `row` tokens: the longest first, each into the fullest row with room."""
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
    """All positions in rows of at most `row` tokens, where none will follow: what needs fewer rows, `fill_row` for row
    after row, or `best_fit_decreasing`."""
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
