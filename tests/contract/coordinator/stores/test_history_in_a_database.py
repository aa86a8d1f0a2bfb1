"""A run's history, read from a database and from memory."""

import pytest

from epochal.coordinator.insight.run_history import read_history
from epochal.coordinator.store.memory import MemoryJournal
from tests.support.data.database_store import database_store
from tests.support.drive.journaled_run import KeptRun, compact_state, simulated_segments
from tests.support.servers.postgres_server import PostgresServer
from tests.support.simulate.virtual_time import run_virtually

VERY_SHORT = {"config__epoch_time": 0.25, "config__warmup_time": 0.2, "config__max_round_train_time": 0.2}


@pytest.fixture(scope="module")
def kept() -> KeptRun:
    state = compact_state(**VERY_SHORT, run__keep_journal="all", config__total_steps=8)
    return run_virtually(simulated_segments(4, state))


async def test_history_from_a_database_is_that_from_memory(database_server: PostgresServer, kept: KeptRun) -> None:
    memory = MemoryJournal()
    memory.segments = list(kept.segments)
    store = await database_store(database_server.new_database())
    try:
        for segment in kept.segments:
            await store.journal.open_segment(segment.snapshot)
            for record in segment.records:
                await store.journal.append(record)
        there, here = await read_history(store.journal), await read_history(memory)
    finally:
        await store.aclose()
    assert there.history.next == 8
    assert there.history.rows == here.history.rows
    assert list(there.history.details) == list(here.history.details)
    assert (there.sequence, there.openings) == (here.sequence, here.openings)
