"""A run whose journal is compacted while it goes on, and whose coordinator is killed again and again."""

import asyncio
import random

import pytest

from epochal.coordinator.run.run_journal import MAX_SEGMENT_RECORDS
from epochal.coordinator.store.sql.history import StoredProof
from tests.support.drive.journaled_run import compact_state
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_coordinator import SlowJournal
from tests.support.simulate.simulated_run import BOUND_S, prove, repeatedly, simulated_run
from tests.support.simulate.virtual_time import in_virtual_time
from tests.support.thinned import thinned

MOST_S = 0.2
"""Longest time that a change takes."""
SHORT_EPOCHS = {
    "config__epoch_time": 2,
    "config__warmup_time": 1.5,
    "config__max_round_train_time": 1.5,
    "config__total_steps": 24,
}


class SlowlyCompacted(SlowJournal):
    """A journal whose compaction takes time before and after each change."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.dropped: list[int] = []

    async def keep_proof(self, proof: StoredProof) -> None:
        await asyncio.sleep(self._chance.uniform(0, MOST_S))
        await super().keep_proof(proof)
        await asyncio.sleep(self._chance.uniform(0, MOST_S))

    async def drop_covered(self, segment_count: int) -> None:
        await asyncio.sleep(self._chance.uniform(0, MOST_S))
        await super().drop_covered(segment_count)
        self.dropped.append(segment_count)
        await asyncio.sleep(self._chance.uniform(0, MOST_S))


@pytest.mark.nightly
@thinned(("seed", "segment_records"), [(0, MAX_SEGMENT_RECORDS), (1, 7)], kept=1)
@in_virtual_time
async def test_run_compacted_while_its_coordinator_is_killed_stays_provable(
    monkeypatch: pytest.MonkeyPatch, seed: int, segment_records: int
) -> None:
    monkeypatch.setattr("epochal.coordinator.run.run_journal.MAX_SEGMENT_RECORDS", segment_records)
    async with simulated_run(compact_state(**SHORT_EPOCHS), seed, SlowlyCompacted) as run:
        journal = run.coordinator.journal

        async def restart() -> None:
            await run.coordinator.restart_after(run.chance.choice([0.05, 0.3]))

        clients = run.start_clients(3)
        trouble = run.tasks.create_task(repeatedly(restart, run.chance, (0.5, 3)))
        await run.ends(clients, BOUND_S)
        trouble.cancel()
        assert run.coordinator.starts > 2
        assert isinstance(journal, SlowlyCompacted)
        assert len(set(journal.dropped)) > 1
        assert journal.segments[0].number >= max(journal.dropped)
        await prove(run)


@pytest.mark.nightly
@in_virtual_time
async def test_journal_is_compacted_within_an_epoch_that_makes_checkpoints() -> None:
    state = compact_state(**(SHORT_EPOCHS | {"config__epoch_time": 10_000, "config__checkpoint_every": 3}))
    async with simulated_run(state, 1, SlowlyCompacted) as run:
        journal = run.coordinator.journal
        await run.play(*(ClientSpec(),) * 3)
        assert isinstance(journal, SlowlyCompacted)
        assert len(set(journal.dropped)) > 1
        assert run.coordinator.document.epoch == 1
        await prove(run)
