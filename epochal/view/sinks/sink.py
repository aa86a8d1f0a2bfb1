"""A sink: one place where a run's figures are kept.

The rule kept here: a sink knows itself how far it has got, and notes a row only once it is kept. So a follower that is
killed anywhere and started again may repeat a row, and loses none.
"""

import re
from collections.abc import Sequence
from typing import Protocol

from epochal.state.errors import EpochalError
from epochal.state.messages.history_rows import RoundFigures


class SinkFailed(EpochalError):
    """Figures could not be kept: the disk is full, or the service that takes them fails. Start the command again."""


class FigureSink(Protocol):
    """A place for a run's figures. Calls are blocking, and one at a time."""

    name: str
    """As the command names it."""

    def open(self, run_id: str, lineage: str) -> int:
        """Return the number of the first round of this history that may not be kept yet; 0 if none of it is.

        Args:
            run_id: of the run.
            lineage: of its history; another one begins anew.

        Raises:
            InvalidInput: the place belongs to another run, or is something else.
            SinkFailed: it cannot be opened.
        """
        ...

    def write(self, rows: Sequence[RoundFigures]) -> None:
        """Write rows in their order, and return once they are kept.

        Raises:
            SinkFailed: they are not; the sink may have kept the first of them.
        """
        ...

    def close(self) -> None:
        """Close the place. What was written is kept whether or not this is called."""
        ...


def plain_name(run_id: str, lineage: str) -> str:
    """Return a name of letters, digits and hyphens for one lineage of a run."""
    return f"{re.sub('[^A-Za-z0-9]+', '-', run_id).strip('-') or 'run'}-{lineage[:12]}"
