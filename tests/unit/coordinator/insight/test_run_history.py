"""A run's history is the same wherever it is read from."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.insight.run_history import JournalHistory, RunHistory, read_history
from epochal.coordinator.machine.instructions import Instruction, OutcomeDecided
from epochal.coordinator.machine.journal_records import Segment
from epochal.coordinator.machine.records import Kept, opened_by, replay, replay_unchecked
from epochal.coordinator.machine.run import Run
from epochal.coordinator.store.open import open_store_reader
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.errors import Refused
from tests.support.drive.journaled_run import KeptRun, compact, compact_state, keep_in, simulated_segments
from tests.support.simulate.memory_store import MemoryJournal
from tests.support.simulate.virtual_time import run_virtually
from tests.support.thinned import thinned

SHORT = {"config__epoch_time": 0.25, "config__warmup_time": 0.2, "config__max_round_train_time": 0.2}


@pytest.fixture(scope="module")
def kept() -> KeptRun:
    return run_virtually(simulated_segments(3, compact_state(**SHORT, run__keep_journal="all")))


def journal_of(kept: KeptRun) -> MemoryJournal:
    journal = MemoryJournal()
    journal.segments = list(kept.segments)
    return journal


def content(found: JournalHistory) -> tuple[object, ...]:
    return found.history.rows, list(found.history.details), found.history.next, found.sequence


@pytest.mark.nightly
@thinned(("rows", "details"), [(8, 3), (16_384, 64)], kept=1)
async def test_history_of_a_compacted_journal_is_that_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, kept: KeptRun, tmp_path: Path, rows: int, details: int
) -> None:
    monkeypatch.setattr("epochal.coordinator.insight.projection.MAX_ROWS", rows)
    monkeypatch.setattr("epochal.coordinator.insight.projection.MAX_DETAILED_ROUNDS", details)
    expected = content(await read_history(journal_of(kept)))
    assert expected[2] == 24
    await keep_in(tmp_path / "run", kept)
    offline = open_store_reader(str(tmp_path / "run")).journal
    assert content(await read_history(offline)) == expected
    steps = 0
    while await compact(tmp_path / "run", steps=1):
        steps += 1
        found = await read_history(offline)
        assert content(found)[:3] == expected[:3]
    assert steps > 1


@pytest.mark.nightly
async def test_news_that_wait_for_a_history_to_be_read_have_a_maximum(
    monkeypatch: pytest.MonkeyPatch, kept: KeptRun
) -> None:
    monkeypatch.setattr("epochal.coordinator.insight.run_history.MAX_WAITING", 5)
    journal, told = journal_of(kept), 0
    history, known = RunHistory(journal, InlineWorker()), journal.history

    def take(_run: Run, instructions: tuple[Instruction, ...], record: Kept) -> None:
        nonlocal told
        history.take(instructions, record)
        told += len([one for one in instructions if isinstance(one, OutcomeDecided)])
        assert len(history._waiting) <= 5

    async def growing(start: int | None = None) -> AsyncGenerator[Segment, None]:
        """The journal without its last segments, which is whole when it is read again."""
        monkeypatch.setattr(journal, "history", known)
        async for segment in known(start):
            if segment.number < len(kept.segments) - 2:
                yield segment

    for segment in kept.segments:
        replay_unchecked(opened_by(segment.snapshot), segment.records, take)
    assert told > 20, "more than may wait"
    monkeypatch.setattr(journal, "history", growing)
    task = asyncio.create_task(history.run())
    async with asyncio.timeout(60):
        await history.is_read.wait()
    task.cancel()
    assert history.history.rows == (await read_history(journal)).history.rows, "what was thrown away is in the journal"


async def test_history_that_is_being_read_is_not_shown_yet(kept: KeptRun) -> None:
    history = RunHistory(journal_of(kept), InlineWorker())
    with pytest.raises(Refused, match="is being read") as error:
        _ = history.history
    assert error.value.kind == "overloaded"


def test_snapshot_of_a_segment_gives_the_run_that_opens_it(kept: KeptRun) -> None:
    for segment in kept.segments:
        assert opened_by(segment.snapshot) == replay(Segment(segment.number, segment.snapshot, ())).run
    assert Projection().next == 0


@pytest.mark.parametrize("lacking", [0, 2])
async def test_rounds_that_end_while_the_journal_is_read_are_added_once(kept: KeptRun, lacking: int) -> None:
    told: list[tuple[tuple[Instruction, ...], Kept]] = []
    for segment in kept.segments:
        replay(segment, lambda _, instructions, record: told.append((instructions, record)))
    whole = await read_history(journal_of(kept))
    journal = journal_of(kept)
    journal.segments = list(kept.segments[: len(kept.segments) - lacking])
    history = RunHistory(journal, InlineWorker())
    for instructions, record in told[-len(told) // 2 :]:
        history.take(instructions, record)
    task = asyncio.create_task(history.run())
    await history.is_read.wait()
    for instructions, record in told[-1:]:
        history.take(instructions, record)
    task.cancel()
    assert history.history.rows == whole.history.rows
