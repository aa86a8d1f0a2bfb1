"""Compacting the journal (`[run] keep_journal = "compact"`): a proof takes the place of segments that are not needed.

Theory of operation. A segment is not needed once the next one begins with a replica that the oldest kept checkpoint
includes: nothing could be rebuilt from it any more. Such segments are replayed a few records at a time, in a thread,
and only what replays to what was published is compacted. Then three changes follow each other, each durable before the
next:

1. the proof is kept beside those before it;
2. the run's journal names it (`JournalCompacted`);
3. the segments that it covers are deleted, from the first, then the older proofs.

A process that ends in between leaves the journal whole: readers begin where the newest proof ends, and the next
compaction goes on from the proof that the journal names. Damage found on the way ends the compaction and nothing else.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Protocol

from epochal.coordinator.machine.instructions import Instruction
from epochal.coordinator.machine.journal_records import Segment
from epochal.coordinator.machine.records import Kept, Replayed, replay, replay_tail
from epochal.coordinator.machine.run import Run, parse_snapshot, snapshot_bytes
from epochal.coordinator.machine.stimuli import JournalCompacted
from epochal.coordinator.proof.journal_proof import is_named, is_named_by, join_problems, named, parse_proof, proof_of
from epochal.coordinator.proof.ledger import Ledger
from epochal.coordinator.store.sql.history import StoredProof
from epochal.coordinator.store.store import Store
from epochal.runtime.worker_thread import Worker
from epochal.state.errors import EpochalError, StoreFailed
from epochal.state.wire import sha256_hex

log = logging.getLogger(__name__)

RECORDS_AT_A_TIME = 64
"""Number of records that are replayed in one call."""
COPY_RETRY_S = 1.0
MAX_COPY_WAITS = 600
"""Maximum number of waits, of `COPY_RETRY_S` each, for who copies the run; then segments stay until the next time."""

Submit = Callable[[JournalCompacted], Awaitable[None]]


class Fold(Protocol):
    """A value that takes in the records of a journal one after the other, and is kept in a proof in their place."""

    def take(self, instructions: Iterable[Instruction], version: int) -> object:
        """Take in what the machine gave with a stimulus, and the version that was published with its record."""

    def encoded(self) -> str:
        """Return all of it as text."""


class Compaction:
    """Keeps the journal of one service short, if its run wants that.

    Args:
        store: holds the journal.
        run_now: returns the run as it is kept at the moment.
        submit: keeps a stimulus in the journal; raises `Refused` if it cannot.
        worker: replays records.
        fold: returns the fold that a proof holds as text, a new one of an empty text; raises `StoreFailed` if it cannot
            be read.
    """

    def __init__(
        self, store: Store, run_now: Callable[[], Run], submit: Submit, worker: Worker, fold: Callable[[str], Fold]
    ) -> None:
        self._store = store
        self._journal = store.journal
        self._run_now = run_now
        self._submit = submit
        self._worker = worker
        self._fold = fold
        self._due = asyncio.Event()
        self._due.set()  # an earlier process may have left something to do

    def due(self) -> None:
        """Have the journal compacted, as far as it may be."""
        self._due.set()

    async def run(self) -> None:
        """Work until cancelled."""
        said = ""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                while self._run_now().state_file.run.keep_journal == "compact" and await self.step():
                    said = ""
            except EpochalError as error:
                if error.message != said:
                    said = error.message
                    log.warning("journal_not_compacted", extra={"reason": said})

    async def step(self) -> bool:
        """Compact segments up to the next that a checkpoint includes; return whether there were any.

        Raises:
            StoreFailed: they are damaged, or do not replay; nothing was deleted.
            Refused: the store keeps no records at the moment.
        """
        run = self._run_now()
        base = _base(await self._journal.proofs(), run)
        if base is None or is_named(run, base):
            if base is not None:
                await self._drop(base)
            found = await self._next_proof(base, run)
            if found is None:
                return False
            await self._journal.keep_proof(found)
        else:  # an earlier process kept it, and ended; or the run was taken back to before it was named
            found = base
            await self._check_joins(found)
        await self._submit(JournalCompacted(found.segment_count, sha256_hex(found.body)))
        await self._drop(found)
        told = {"segments": found.segment_count, "journal_bytes": self._journal.size_bytes}
        log.info("journal_compacted", extra=told)
        return True

    async def _next_proof(self, base: StoredProof | None, run: Run) -> StoredProof | None:
        """Return the proof of one segment more than the base's, or None while that segment is needed."""
        covered: Segment | None = None
        async with aclosing(self._journal.history(0 if base is None else base.segment_count)) as segments:
            async for segment in segments:
                if covered is not None:
                    opening = await self._worker.run(partial(_opening, segment))
                    if not run.models.checkpoints or opening.run.progress.replica_step > run.models.checkpoints[0].step:
                        return None
                    return await self._proof(base, covered, segment, opening)
                covered = segment
        return None

    async def _proof(
        self, base: StoredProof | None, covered: Segment, following: Segment, goes_on: Replayed
    ) -> StoredProof:
        """Replay a segment, compare its end with the following one, and return the proof of both base and segment."""
        opening = await self._worker.run(partial(_opening, covered))
        ledger, text = Ledger.begin(opening.run), ""
        if base is not None:
            known = parse_proof(base)
            _refuse(join_problems(known, opening, covered.snapshot))
            ledger, text = known.ledger, known.history
        fold = await self._worker.run(partial(self._fold, text))
        last = await self._replayed(opening, covered, ledger, fold)
        if not await self._worker.run(partial(_is_same, last, goes_on)):
            raise StoreFailed(f"segment {following.number} of the journal does not continue the one before it")
        before = None if base is None else sha256_hex(base.body)
        told = await self._worker.run(fold.encoded)
        proof = proof_of(ledger, told, goes_on, following.snapshot, following.number, before)
        _refuse(join_problems(parse_proof(proof), goes_on, following.snapshot))
        return proof

    async def _replayed(self, opening: Replayed, segment: Segment, ledger: Ledger, fold: Fold) -> Replayed:
        """Replay a segment into ledger and fold; rest as long as each piece took: others need the processor."""
        loop, last = asyncio.get_running_loop(), opening

        def watch(_run: Run, instructions: tuple[Instruction, ...], kept: Kept) -> None:
            ledger.take(instructions)
            fold.take(instructions, kept.version)

        for start in range(0, len(segment.records), RECORDS_AT_A_TIME):
            began_s = loop.time()
            records = segment.records[start : start + RECORDS_AT_A_TIME]
            last = await self._worker.run(partial(replay_tail, last, records, watch))
            ledger.take_records(records)
            await asyncio.sleep(loop.time() - began_s)
        return last

    async def _check_joins(self, proof: StoredProof) -> None:
        """Raise `StoreFailed` unless the journal goes on where the proof ends."""
        async with aclosing(self._journal.history(proof.segment_count)) as segments:
            async for segment in segments:
                opening = await self._worker.run(partial(_opening, segment))
                _refuse(join_problems(parse_proof(proof), opening, segment.snapshot))
                return

    async def _drop(self, proof: StoredProof) -> None:
        """Delete what a proof covers, once nobody copies the run; after a bounded time, leave it to the next time."""
        for _ in range(MAX_COPY_WAITS):
            async with self._store.place.sweeping() as is_allowed:
                if is_allowed:
                    await self._journal.drop_covered(proof.segment_count)
                    return
            await asyncio.sleep(COPY_RETRY_S)


def _base(proofs: tuple[StoredProof, ...], run: Run) -> StoredProof | None:
    """Return the proof that the journal names, or the next one, which it does not name yet; None if it names none."""
    exact = next((proof for proof in proofs if is_named(run, proof)), None)
    found = exact or next((proof for proof in reversed(proofs) if is_named_by(run, proof)), None)
    if found is None and run.identity.compacted is not None:
        raise StoreFailed(
            f"{named(run.identity.compacted.segment_count)}, which the journal names, is missing or damaged"
        )
    return found


def _opening(segment: Segment) -> Replayed:
    return replay(Segment(segment.number, segment.snapshot, ()))


def _is_same(last: Replayed, goes_on: Replayed) -> bool:
    return (last.sequence, parse_snapshot(snapshot_bytes(last.run))) == (goes_on.sequence, goes_on.run)


def _refuse(problems: list[str]) -> None:
    if problems:
        raise StoreFailed("; ".join(problems))
