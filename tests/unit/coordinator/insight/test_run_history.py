"""A run's history is the same wherever it is read from."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from epochal.coordinator.insight.kept_history import KeptHistory
from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.insight.run_history import JournalHistory, RunHistory, read_history
from epochal.coordinator.machine.instructions import Instruction, OutcomeDecided
from epochal.coordinator.machine.journal_records import Segment
from epochal.coordinator.machine.records import Kept, opened_by, replay, replay_unchecked
from epochal.coordinator.machine.run import Run
from epochal.coordinator.store.files.opening import open_folder_reader
from epochal.coordinator.store.open import open_store_reader
from epochal.coordinator.store.sql.notes import HISTORY
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.errors import Refused
from tests.support.drive.journaled_run import KeptRun, compact, compact_state, keep_in, simulated_segments
from tests.support.simulate.memory_store import MemoryJournal
from tests.support.simulate.virtual_time import run_virtually

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


@pytest.mark.parametrize(("rows", "details"), [(16_384, 64), (8, 3)])
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


@pytest.mark.parametrize("bound", ["MAX_WAITING", "MAX_WAITING_ROUNDS"])
async def test_what_waits_for_a_history_to_be_read_is_bounded(
    monkeypatch: pytest.MonkeyPatch, kept: KeptRun, bound: str
) -> None:
    monkeypatch.setattr(f"epochal.coordinator.insight.run_history.{bound}", 5)
    history, told = RunHistory(journal_of(kept), InlineWorker()), 0

    def take(_run: Run, instructions: tuple[Instruction, ...], record: Kept) -> None:
        nonlocal told
        history.take(instructions, record)
        told += len([one for one in instructions if isinstance(one, OutcomeDecided)])
        assert (len(history._waiting) if bound == "MAX_WAITING" else history._waiting_rounds) <= 5

    for segment in kept.segments:
        replay_unchecked(opened_by(segment.snapshot), segment.records, take)
    assert told > 20, "more than may wait"
    task = asyncio.create_task(history.run())
    async with asyncio.timeout(60):
        await history.is_read.wait()
    task.cancel()
    assert history.history.next == told, "what was thrown away is in the journal"


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


async def kept_beside(kept: KeptRun, monkeypatch: pytest.MonkeyPatch, segments: int) -> MemoryJournal:
    """A journal beside which the history of its first segments is kept, and which has gone on since."""
    monkeypatch.setattr("epochal.coordinator.insight.run_history.MIN_ROUNDS_KEPT", 1)
    journal = journal_of(kept)
    journal.segments = list(kept.segments[:segments])
    history = RunHistory(journal, InlineWorker())
    task = asyncio.create_task(history.run())
    async with asyncio.timeout(60):
        await history.was_kept.wait()
    task.cancel()
    journal.segments = list(kept.segments)
    return journal


async def test_history_that_is_kept_goes_on_with_what_follows(monkeypatch: pytest.MonkeyPatch, kept: KeptRun) -> None:
    whole = await read_history(journal_of(kept))
    journal = await kept_beside(kept, monkeypatch, len(kept.segments) - 1)
    read: list[int | None] = []
    history = journal.history

    def watched(start: int | None = None) -> AsyncGenerator[Segment, None]:
        read.append(start)
        return history(start)

    monkeypatch.setattr(journal, "history", watched)
    found = await read_history(journal)
    assert set(read) == {kept.segments[-2].number}, "nothing before was read again"
    assert content(found) == content(whole)
    assert (found.segment, found.mark) == (whole.segment, whole.mark)
    assert found.history.book.records() == whole.history.book.records()


async def test_history_that_is_damaged_or_of_another_journal_is_not_used(
    monkeypatch: pytest.MonkeyPatch, kept: KeptRun
) -> None:
    expected = content(await read_history(journal_of(kept)))
    journal = await kept_beside(kept, monkeypatch, 2)
    good = KeptHistory.decoded(await journal.kept_history() or b"")
    assert good is not None
    good = replace(good, history=Projection().encoded())  # which differs, so that one sees whether it is used
    await journal.keep_history(good.encoded())
    assert content(await read_history(journal)) != expected
    wrong = [
        b"",
        b"nonsense",
        good.encoded()[:-1],
        b"0" * 64 + good.encoded()[64:],
        replace(good, mark=replace(good.mark, document_sha256="0" * 64)).encoded(),
        replace(good, mark=replace(good.mark, sequence=good.mark.sequence + 1)).encoded(),
        replace(good, segment=999).encoded(),
        replace(good, history="%").encoded(),
    ]
    for stored in wrong:
        await journal.keep_history(stored)
        assert content(await read_history(journal)) == expected


async def test_history_that_is_kept_ends_before_what_was_compacted(
    monkeypatch: pytest.MonkeyPatch, kept: KeptRun, tmp_path: Path
) -> None:
    expected = content(await read_history(journal_of(kept)))
    beside = await kept_beside(kept, monkeypatch, 1)
    await keep_in(tmp_path / "run", kept)
    assert await compact(tmp_path / "run", steps=2)
    writing = open_folder_reader(tmp_path / "run", writes=True)
    await writing.notes.write(HISTORY, await beside.kept_history() or b"")
    await writing.aclose()
    found = await read_history(open_store_reader(str(tmp_path / "run")).journal)
    assert content(found)[:3] == expected[:3]
