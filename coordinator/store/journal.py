"""The journal of a run: numbered records, cut into segments, each of which begins with a snapshot of the whole run.

The rule kept here: when `append` or `open_segment` returns, the record or snapshot survives a power failure; when it
raises `StoreBlocked`, the caller goes on as if nothing was kept, and may repeat the same call; when it raises another
`StoreFailed`, the caller assumes nothing and stops accepting messages. Writing is a compare-and-swap. So where several
coordinators share a journal, and a database took a record but its answer was lost, the next writing is a conflict, and
who reads the journal then finds the record.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from epochal.coordinator.machine.journal_records import JournalRecord, Segment, Snapshot

STORE_RETRY_S = 2.0
"""Time between two attempts to go on while a disk keeps nothing."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The records that were appended after a known one.

    Attributes:
        records: all of them, in order.
        segment_records: number of records in the newest segment.
    """

    records: tuple[JournalRecord, ...]
    segment_records: int


@dataclass(frozen=True, slots=True)
class StoredProof:
    """A proof that is kept in the place of the first segments, once they are deleted
    (`coordinator/proof/journal_proof.py`).

    Attributes:
        segment_count: number of segments that it covers: the journal goes on with the segment of this number.
        body: the proof as JSON.
    """

    segment_count: int
    body: bytes


class JournalReader(Protocol):
    """A journal that is only read; meanwhile a coordinator may append to it.

    Reading raises `StoreFailed` if a record is damaged or missing, which it names, or the medium cannot be read.
    """

    async def proofs(self) -> tuple[StoredProof, ...]:
        """Return the kept proofs, the one of the fewest segments first: one, or more while the journal is compacted."""

    async def problems(self) -> tuple[str, ...]:
        """Return what is wrong with the rest of what is kept: notes, counts, and the medium as far as it can tell."""

    async def newest_segment(self) -> int | None:
        """Return the number of the newest segment; None if there is none."""

    async def kept_history(self) -> bytes | None:
        """Return what `Journal.keep_history` kept last; None if nothing is kept."""

    def history(self, start: int | None = None) -> AsyncGenerator[Segment, None]:
        """Return all segments from `start` on, oldest first.

        Args:
            start: number of the first; None for the one that follows the newest proof, or the run's first.
        """


class Journal(JournalReader, Protocol):
    """A journal that a coordinator appends to.

    Writing raises `StoreConflict`, and keeps nothing, if another coordinator has written meanwhile or the sequence does
    not follow. It raises `StoreBlocked` if the disk is full, a database does not answer, or the like. It raises
    `StoreFailed` if the data may not have been kept (failing fsync), and ever after.
    """

    @property
    def size_bytes(self) -> int:
        """Size of all segments."""

    async def load(self) -> Segment | None:
        """Return the newest segment, or None if the run was never started. It says whether the journal went back."""

    async def tail(self, after: int) -> Tail | None:
        """Return what was appended after the record that this object read or appended last.

        Args:
            after: number of that record; 0 for the first snapshot.

        Returns:
            None if the journal does not go on from that record: it was taken back to an older state, or compacted. Then
            `load` must follow.
        """

    async def keep_proof(self, proof: StoredProof) -> None:
        """Keep a proof durably. Raise `StoreFailed` if it is not kept; the journal goes on as it was."""

    async def keep_history(self, body: bytes) -> None:
        """Keep the run's history up to some record (`coordinator/insight/kept_history.py`), in place of the one kept
        before.

        It is derived from the journal, and no part of it: a copy of the run may lack it.

        Raises:
            StoreFailed: it is not kept; the journal goes on as it was.
        """

    async def drop_covered(self, segment_count: int) -> None:
        """Delete this many segments, from the first, and the proofs of fewer. May be called again after a failure.

        Raises:
            StoreFailed: not all of them are deleted; the journal goes on as it was.
        """

    async def append(self, record: JournalRecord) -> None:
        """Keep one record durably; it must directly follow the last one."""

    async def open_segment(self, snapshot: Snapshot) -> None:
        """Start a segment with a snapshot of the run after the last record, of which there must be a new one."""
