"""Why the run is not faster, worked out in a thread when somebody asks and another round has ended since."""

import asyncio
from functools import partial

from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.machine.resting_reason import hold_reason
from epochal.coordinator.machine.run import Run
from epochal.runtime.worker_thread import Worker
from epochal.state.shown.critical_path import pauses_of
from epochal.state.shown.explanation import MAX_EXPLAINED_ROUNDS, SpeedExplanation, explained, said_of


class SpeedExplanations:
    """Keeps the newest explanation of one run.

    Args:
        worker: works it out: with 10,000 clients that takes a good part of a second.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._of: tuple[str, int, bool] | None = None
        self._turn = asyncio.Lock()
        self.latest: SpeedExplanation = explained((), {})

    async def refresh(self, history: Projection, run: Run) -> SpeedExplanation:
        """Return the explanation of the rounds that have ended by now.

        Args:
            history: of the run.
            run: names its clients.
        """
        if self._name(history, run) == self._of:
            return self.latest
        async with self._turn:
            name = self._name(history, run)
            if name != self._of:
                details = history.last_details(MAX_EXPLAINED_ROUNDS + 1)
                names = {str(client_id): member.name for client_id, member in run.members.by_id.items() if member.name}
                pauses = pauses_of(history.actions)
                self.latest = await self._worker.run(partial(explained, details, names, pauses))
                self._of = name
            return self.latest

    def sentence(self, history: Projection | None, run: Run, problem: str | None) -> str:
        """Return what is said of the run's speed; "" before a round has ended, and while none can begin.

        Args:
            history: of the run; None while it is being read.
            run: as it is now.
            problem: why the coordinator can keep nothing; None if it can.
        """
        holds = problem is not None or hold_reason(run.clock, run.members, run.state_file.config) is not None
        rows = () if history is None else history.rows
        took_s = rows[-1].ended_s - rows[0].started_s if rows else 0.0
        return said_of(self.latest, run.clock.phase, is_held=holds, took_s=took_s)

    @staticmethod
    def _name(history: Projection, run: Run) -> tuple[str, int, bool]:
        """Return the key of an explanation: the last round, and whether its clients have reported their times."""
        return run.identity.lineage, history.next, history.is_told(history.next - 1)
