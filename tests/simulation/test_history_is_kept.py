"""A run's history is the same whether its coordinator has kept it all along or it is read from the journal, which is
compacted, while coordinators are killed and the journal goes back."""

import asyncio
import random

import pytest

from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.insight.run_history import read_history
from epochal.coordinator.machine.journal_records import Segment
from tests.support.drive.journaled_run import compact_state
from tests.support.simulate.simulated_coordinator import SlowJournal
from tests.support.simulate.simulated_run import BOUND_S, repeatedly, simulated_run
from tests.support.simulate.virtual_time import in_virtual_time
from tests.support.thinned import thinned

STEPS = 24
SHORT_EPOCHS = {
    "config__epoch_time": 2,
    "config__warmup_time": 1.5,
    "config__max_round_train_time": 1.5,
    "config__total_steps": STEPS,
}


class WholeBeside(SlowJournal):
    """A journal that is compacted, and remembers what was deleted."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.dropped: list[Segment] = []

    async def drop_covered(self, segment_count: int) -> None:
        self.dropped += [segment for segment in self.segments if segment.number < segment_count]
        await super().drop_covered(segment_count)

    def whole(self) -> "SlowJournal":
        """The same journal, as if it had never been compacted."""
        found = SlowJournal(self._chance)
        found.segments = [*self.dropped, *self.segments]
        return found


def content(history: Projection) -> tuple[object, ...]:
    book = history.book
    return history.rows, list(history.details), history.next, book.records(), list(history.actions)


@pytest.mark.nightly
@thinned(("seed", "rows"), [(0, 16_384), (1, 16)], kept=1)
@in_virtual_time
async def test_history_kept_by_coordinators_is_that_of_the_journal(
    monkeypatch: pytest.MonkeyPatch, seed: int, rows: int
) -> None:
    monkeypatch.setattr("epochal.coordinator.insight.projection.MAX_ROWS", rows)
    monkeypatch.setattr("epochal.coordinator.insight.projection.MAX_DETAILED_ROUNDS", 5)
    monkeypatch.setattr("epochal.coordinator.run.run_journal.MAX_SEGMENT_RECORDS", 50)
    async with simulated_run(compact_state(**SHORT_EPOCHS), seed, WholeBeside) as run:
        journal = run.coordinator.journal
        assert isinstance(journal, WholeBeside)

        async def restart() -> None:
            await run.coordinator.restart_after(run.chance.choice([0.05, 0.3]))

        clients = run.start_clients(3)
        trouble = run.tasks.create_task(repeatedly(restart, run.chance, (0.5, 6)))
        await run.ends(clients, BOUND_S)
        trouble.cancel()
        kept = run.coordinator.handlers().insight.history
        async with asyncio.timeout(BOUND_S):
            await kept.is_read.wait()
        found = content(kept.history)
        assert kept.history.next >= STEPS
        assert run.coordinator.starts > 2
        assert journal.dropped
        told = [client for detail in kept.history.details for client in detail.clients if client.upload_s is not None]
        assert len(told) > 2, "clients report what they know of a round afterwards, too"
        assert content((await read_history(journal)).history) == found
        assert content((await read_history(journal.whole())).history) == found
