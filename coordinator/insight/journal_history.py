"""Reads the history of a run from its journal: from what a proof holds, and what follows."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial

from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.machine.instructions import Instruction
from epochal.coordinator.machine.journal_records import JournalRecord
from epochal.coordinator.machine.records import Kept, opened_by, replay_unchecked
from epochal.coordinator.machine.run import Run
from epochal.coordinator.proof.journal_proof import parse_proof
from epochal.coordinator.store.sql.history import JournalReader, StoredProof
from epochal.runtime.long_work import long_work
from epochal.runtime.worker_thread import InlineWorker, Worker

RECORDS_AT_A_TIME = 64
"""Number of records that are replayed in one call."""


class JournalHistory:
    """The history of a journal as far as it was read.

    Attributes:
        history: its rounds.
        sequence: number of the last record that was read; -1 before any segment was.
        segment: number of the last segment that was read; None before the first.
    """

    def __init__(self, history: Projection) -> None:
        self.history = history
        self.sequence = -1
        self.segment: int | None = None


async def read_history(
    journal: JournalReader,
    worker: Worker | None = None,
    before: JournalHistory | None = None,
    *,
    has_rests: bool = False,
) -> JournalHistory:
    """Return the history of a run from its journal, which may have been compacted, and be appended to meanwhile.

    Args:
        journal: of the run.
        worker: replays its records; inline if none is given.
        before: as it was read before, to which what follows is added.
        has_rests: whether to rest as long as each piece took, because others need the processor.

    Raises:
        StoreFailed: it cannot be read, or was written under other rules.
    """
    loop, worker = asyncio.get_running_loop(), worker or InlineWorker()
    proofs = await journal.proofs()
    if before is None or (before.segment or 0) < _first(proofs):
        found, start = await _begun(proofs, worker)
    else:
        found, start = before, before.segment
    known = found.sequence

    def watch(_run: Run, instructions: tuple[Instruction, ...], kept: Kept) -> None:
        if kept.sequence > known:
            found.history.take(instructions, kept.version)

    first, newest = start or 0, await journal.newest_segment()
    total = None if newest is None else newest + 1 - first
    with long_work("reading the run's history", total, "segments") as work:
        async with aclosing(journal.history(start)) as segments:
            async for segment in segments:
                run = await worker.run(partial(opened_by, segment.snapshot))
                found.segment, found.sequence = segment.number, max(found.sequence, segment.snapshot.sequence)
                for place in range(0, len(segment.records), RECORDS_AT_A_TIME):
                    began_s = loop.time()
                    records: tuple[JournalRecord, ...] = segment.records[place : place + RECORDS_AT_A_TIME]
                    run = await worker.run(partial(replay_unchecked, run, records, watch))
                    found.sequence = max(found.sequence, records[-1].sequence)
                    work.advance(len(records) / len(segment.records))
                    if has_rests:
                        await asyncio.sleep(loop.time() - began_s)
    return found


async def _begun(proofs: Sequence[StoredProof], worker: Worker) -> tuple[JournalHistory, int | None]:
    """Return the history with which the reading of a journal begins, and the first segment to be read."""
    if not proofs:
        return JournalHistory(Projection()), None
    history = await worker.run(partial(Projection.decoded, parse_proof(proofs[-1]).history))
    return JournalHistory(history), _first(proofs)


def _first(proofs: Sequence[StoredProof]) -> int:
    """Return the number of the first segment that is not compacted."""
    return proofs[-1].segment_count if proofs else 0
