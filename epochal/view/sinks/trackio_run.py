"""trackio: one run of a project for each lineage of the run, under a name that follows from both.

How far it has got, trackio itself says: by the last step of the run that is resumed.
"""

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from epochal.runtime.visible_text import visible
from epochal.state.messages.history_rows import RoundFigures
from epochal.view.sinks.scalars import place_of, scalars_of
from epochal.view.sinks.sink import Mark, SinkFailed, SinkPlace, plain_name

KEPT_WITHIN_S = 30.0
"""Time within which trackio must have written rows to its database; its thread does so twice a second."""
_POLL_S = 0.05
_REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
"""Variables by which trackio sends figures to another machine, whose database cannot be read."""


class TrackioSink:
    """A `FigureSink` in a project of trackio. `TRACKIO_DIR` and its other variables hold.

    Args:
        project: its name.
    """

    def __init__(self, project: str) -> None:
        self.name = f"trackio:{project}"
        self._project = project
        self._run_id = ""
        self._run: Any = None

    def open(self, run_id: str, lineage: str) -> SinkPlace | None:
        self._run_id = run_id
        first = self._begin(lineage)
        return SinkPlace(first, lineage) if first else None

    def write(self, lineage: str, rows: Sequence[RoundFigures]) -> None:
        del lineage  # the run is the lineage's
        for row in rows:
            self._run.log(scalars_of(row), step=place_of(row))
        if rows and not any(os.environ.get(name) for name in _REMOTE):
            self._await(place_of(rows[-1]))

    def _await(self, last: int) -> None:
        """Return once the database holds the step; trackio itself only warns if it cannot write."""
        from trackio.sqlite_storage import SQLiteStorage

        until_s = time.monotonic() + KEPT_WITHIN_S
        while (held := SQLiteStorage.get_last_step(self._project, run=self._run.name)) is None or held < last:
            if time.monotonic() > until_s:
                raise SinkFailed(f"{self.name} has not kept round {last} after {KEPT_WITHIN_S:.0f} s")
            time.sleep(_POLL_S)

    def go_back(self, lineage: str, marks: Sequence[Mark]) -> int | None:
        del marks  # the lineages lie side by side
        self.close()
        return self._begin(lineage) or None

    def known(self, first: int) -> RoundFigures | None:
        del first  # points are means
        return None

    def close(self) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            with contextlib.redirect_stdout(sys.stderr):
                run.finish()

    def _begin(self, lineage: str) -> int:
        """Begin or resume the lineage's run; return the number of the round that comes next."""
        import trackio

        try:
            with contextlib.redirect_stdout(sys.stderr):
                self._run = trackio.init(
                    self._project,
                    name=plain_name(self._run_id, lineage),
                    group=visible(self._run_id),
                    resume="allow",
                    config={"run_id": visible(self._run_id), "lineage": lineage},
                    embed=False,
                    auto_log_gpu=False,
                    auto_log_cpu=False,
                )
        except (ValueError, OSError, RuntimeError) as error:
            raise SinkFailed(f"{self.name} cannot be opened: {error}") from error
        return int(self._run._next_step)
