"""What a coordinator needs of the place where its run is kept: load, compare-and-swap, watch; and blobs by content.

The rule kept here: when `append` or `open_segment` returns, the record survives the machine's loss of power; when it
raises, the caller must assume nothing and stop accepting. A record's sequence number is its compare-and-swap: whoever
appends says which sequence number it believes to be the last.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from state.wire import Sha256


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
        torn_bytes: how many bytes of an unfinished last record were found and cut off; 0 normally. Only the last
            segment of a journal may have any.
    """

    number: int
    snapshot: Snapshot
    records: tuple[JournalRecord, ...]
    torn_bytes: int


class Store(Protocol):
    """The journal of one run. Opening it takes an exclusive lock where the medium has one."""

    async def load(self) -> Segment | None:
        """The newest segment, repaired of a torn last record, or None for a run that was never started.

        Raises:
            StoreFailed: a record in the middle is damaged, or the medium cannot be read.
        """
        ...

    async def append(self, record: JournalRecord) -> None:
        """Keep one record durably; it must follow the last one directly.

        Raises:
            StoreConflict: another coordinator has appended, or the sequence does not follow.
            StoreFailed: it may not have been kept (full disk, failing fsync). Every later call fails too.
        """
        ...

    async def open_segment(self, snapshot: Snapshot) -> None:
        """Start a new segment whose snapshot covers everything so far. Same errors as `append`."""
        ...

    async def save_state_file(self, text: str) -> None:
        """Replace the kept `state.toml` atomically."""
        ...

    def history(self) -> AsyncIterator[Segment]:
        """Every segment from the first, oldest first, for an audit."""
        ...

    async def watch(self, after: int) -> int:
        """The last sequence number, as soon as it is above `after`."""
        ...

    @property
    def journal_bytes(self) -> int:
        """How many bytes the journal takes up."""
        ...

    async def aclose(self) -> None:
        """Release the lock. Idempotent."""
        ...


class BlobStore(Protocol):
    """Immutable bytes named by their SHA-256."""

    @property
    def total_bytes(self) -> int:
        """How many bytes the blobs take up, unfinished uploads included."""
        ...

    async def receive(self, sha256: Sha256, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int = 0) -> None:
        """Keep the streamed bytes durably if they are `size_bytes` long and hash to `sha256`; else keep nothing.

        Receiving a blob that is already held reads the body and changes nothing. A new one must leave `spare_bytes` of
        the bound free.

        Raises:
            Refused: `blob-mismatch`, `blob-too-large` or `blobs-full`.
            StoreFailed: the medium failed.
        """
        ...

    async def contains(self, sha256: Sha256) -> bool: ...

    async def size(self, sha256: Sha256) -> int | None:
        """The blob's size in bytes, or None when it is not held."""
        ...

    def stream(self, sha256: Sha256, start: int, stop: int) -> AsyncIterator[bytes]:
        """The bytes `[start, stop)` in pieces. Raises `Refused(Refusal.NOT_FOUND)` when the blob is not held."""
        ...

    async def read(self, sha256: Sha256) -> bytes:
        """The whole blob. Raises `Refused(Refusal.NOT_FOUND)` when it is not held."""
        ...

    async def delete(self, sha256: Sha256) -> None:
        """Forget the blob; no error when it is not held."""
        ...

    async def held(self) -> frozenset[Sha256]:
        """The digests of all blobs held."""
        ...
