"""Small blobs that a journal keeps with its records: durable by the same transaction, and seen by all coordinators.

A blob that comes along with a message needs no writing of its own then, and a group of messages is kept at once.

The rule kept here: a blob is held only if the journal has the record with which it came. So who lists blobs first, and
reads the journal afterwards, knows of each whether the run needs it. Deleting them is a compare-and-swap, as appending
is: it does nothing if a record was appended that the deleter does not know, by which the run may need one of them.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from epochal.coordinator.store.blobs import BlobReader
from epochal.state.wire import Sha256

DROPPED_AT_A_TIME = 1024
"""Maximum number of blobs that one transaction deletes; meanwhile no record is appended."""


class RecordedBlobReader(BlobReader, Protocol):
    """Blobs kept with records, which are only read."""

    async def read(self, digests: Collection[Sha256]) -> Mapping[Sha256, bytes]:
        """Return the bytes of those of these blobs that are held; the caller bounds their sizes."""

    async def held(self) -> frozenset[Sha256]:
        """Return the digests of all of them."""


class RecordedBlobs(RecordedBlobReader, Protocol):
    """Blobs kept with records (`JournalRecord.blobs`), as a coordinator of the run uses them."""

    @property
    def total_bytes(self) -> int:
        """Size of all of them, and of those that arrive."""

    def arriving(self, size_bytes: int) -> AbstractContextManager[None]:
        """Count a blob that waits for its record, until the context is left."""

    async def drop(self, digests: Collection[Sha256], known: int) -> None:
        """Delete those of these blobs that are held, unless the journal has gone on.

        Args:
            digests: at most `DROPPED_AT_A_TIME`.
            known: number of the last record that the coordinator knows; the run after it does not need them.

        Raises:
            StoreConflict: that is not the last record of the journal; nothing is deleted.
            StoreFailed: the medium fails; `StoreBlocked` if the same may succeed later.
        """

    async def recount(self) -> None:
        """Bring `total_bytes` up to date: other coordinators of the run add and delete blobs as well."""


class RecordedBytes:
    """Counts the sizes of blobs that are kept with records."""

    def __init__(self) -> None:
        self._kept = 0
        self._arriving = 0

    @property
    def total(self) -> int:
        """Bytes that are kept, and that arrive."""
        return self._kept + self._arriving

    def grew(self, by: int) -> None:
        """Note that so many bytes more are kept; less, if it is negative."""
        self._kept += by

    def recounted(self, kept: int) -> None:
        """Note how many bytes are kept."""
        self._kept = kept

    @contextlib.contextmanager
    def arriving(self, size_bytes: int) -> Iterator[None]:
        """Count bytes that arrive until the context is left."""
        self._arriving += size_bytes
        try:
            yield
        finally:
            self._arriving -= size_bytes
