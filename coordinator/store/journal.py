"""The journal of a run: records in order, cut into segments, each opened by a snapshot of the whole run.

The rule kept here: when `append` or `open_segment` returns, what was given survives a loss of power; when it raises
`StoreFailed`, the caller assumes nothing and stops accepting. A sequence number is a compare-and-swap: whoever appends
says which record it believes to be the last.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One group commit: its sequence number (1, 2, 3, … over the whole run) and its JSON body."""

    sequence: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole run as of `sequence`, as JSON. It opens a segment; the records after it follow."""

    sequence: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment of the journal: its opening snapshot and the records after it.

    Attributes:
        number: counts segments from 0; each epoch begins one, and so does a long epoch in its middle.
    """

    number: int
    snapshot: Snapshot
    records: tuple[JournalRecord, ...]


class JournalReader(Protocol):
    """A journal that is only read; a coordinator may append to it meanwhile."""

    def history(self) -> AsyncIterator[Segment]:
        """Return every segment from the first, oldest first.

        Raises:
            StoreFailed: a record is damaged, or the medium cannot be read.
        """
        ...


class Journal(JournalReader, Protocol):
    """A journal that a coordinator appends to."""

    async def load(self) -> Segment | None:
        """Return the newest segment, or None for a run that was never started.

        Raises:
            StoreFailed: a record is damaged, or the medium cannot be read.
        """
        ...

    async def append(self, record: JournalRecord) -> None:
        """Keep one record durably; it must follow the last one directly.

        Raises:
            StoreConflict: another coordinator has appended, or the sequence does not follow. Nothing was kept.
            StoreFailed: it may not have been kept (full disk, failing fsync). Every later call fails too.
        """
        ...

    async def open_segment(self, snapshot: Snapshot) -> None:
        """Start a new segment whose snapshot covers everything so far, and more than the snapshot before it.

        Raises:
            StoreConflict: another coordinator has appended or opened a segment. Nothing was kept.
            StoreFailed: it may not have been kept. Every later call fails too.
        """
        ...
