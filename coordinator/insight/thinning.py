"""Rows of a whole history, merged into few for those who open the run's page: of the next page only the last is new.

Merging takes 5 microseconds a row: a tenth of a second for a long run, each time that a round has ended.
"""

from collections.abc import Sequence
from functools import reduce

from epochal.state.messages.history_rows import RoundFigures, merged

USUAL_POINTS = (512, 1024, 4096)
"""Maximum numbers of rows for which the run's page, the terminal's and notebooks ask."""


class Thinning:
    """Merges rows as `epochal.state.messages.history_rows.thinned` does, and keeps what was merged, for each of
    `USUAL_POINTS`."""

    def __init__(self) -> None:
        self._kept: dict[int, list[RoundFigures]] = {}

    def thinned(self, rows: Sequence[RoundFigures], most: int) -> list[RoundFigures]:
        """Return all rows of a history, from the first on, merged into at most `most`."""
        size = -(-len(rows) // most)
        if size <= 1:
            return list(rows)
        kept, found = iter(self._kept.get(most, ())), list[RoundFigures]()
        for start in range(0, len(rows), size):
            part, known = rows[start : start + size], next(kept, None)
            found.append(known if known is not None and _stands_for(known, part) else reduce(merged, part))
        if most in USUAL_POINTS:
            self._kept[most] = found
        return found


def _stands_for(row: RoundFigures, part: Sequence[RoundFigures]) -> bool:
    """Return whether a row is these, merged: it begins and ends as they do."""
    first, last = part[0], part[-1]
    begins = (row.number, row.started_s) == (first.number, first.started_s)
    return begins and (row.next_number, row.version, row.ended_s) == (last.next_number, last.version, last.ended_s)
