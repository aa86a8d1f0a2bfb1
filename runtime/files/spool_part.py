"""Parts of one spool file: byte ranges that are received, or sent, each as one blob.

Parts of one file may be received at the same time: each writes at its place, and counts its bytes that have arrived.
"""

import hashlib
from collections.abc import Iterable
from typing import Protocol

from epochal.runtime.files.file_room import write_at
from epochal.runtime.files.spool import READ_BYTES, SpoolFile
from epochal.runtime.long_work import LongWork
from epochal.state.errors import InternalError, InvalidDocument, SpoolFull
from epochal.state.model.tensors import Buffer
from epochal.state.wire import Sha256


class ReceivedBytes(Protocol):
    """The destination of a received blob: a spool file, or a part of one."""

    @property
    def size_bytes(self) -> int:
        """Number of bytes that have arrived."""
        ...

    def append(self, data: Buffer) -> None:
        """Add bytes after those that have arrived, and to the digest."""
        ...

    def sha256(self) -> Sha256:
        """Return the digest of the bytes that have arrived."""
        ...

    def clear(self) -> None:
        """Begin again with no bytes."""
        ...


class SentBytes(Protocol):
    """The source of a sent blob: a spool file, or a part of one."""

    @property
    def size_bytes(self) -> int:
        """Number of bytes."""
        ...

    def to_bytes(self) -> bytes:
        """Return all of them."""
        ...

    def pieces(self, size_bytes: int = READ_BYTES) -> Iterable[bytes]:
        """Yield them, a piece at a time."""
        ...


class ReceivedPart:
    """A part of a file that is being received (`ReceivedBytes`). The file's room must have been `prepared`.

    Args:
        file: on the disk.
        start_bytes: where the part begins in it.
        part_bytes: size of the part.
    """

    def __init__(self, file: SpoolFile, start_bytes: int, part_bytes: int) -> None:
        assert file.descriptor is not None, "its room was prepared"
        self._file = file
        self._descriptor = file.descriptor
        self._start_bytes = start_bytes
        self._part_bytes = part_bytes
        self._size_bytes = 0
        self._digest = hashlib.sha256()

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def append(self, data: Buffer) -> None:
        """Add bytes. Raise `InvalidDocument` (rule `oversized`) if the part has no room for them."""
        _check_size(self._size_bytes + len(data), self._part_bytes)
        try:
            write_at(self._descriptor, self._start_bytes + self._size_bytes, data)
        except OSError as error:
            raise SpoolFull(f"a spool file cannot be written: {error.strerror or error}") from error
        self._digest.update(data)
        self._size_bytes += len(data)

    def sha256(self) -> Sha256:
        return Sha256(self._digest.hexdigest())

    def clear(self) -> None:
        self._digest = hashlib.sha256()
        self._size_bytes = 0


class ReceivedFile:
    """A whole file that is being received (`ReceivedBytes`), in memory while it is small.

    Args:
        file: empty.
        most_bytes: size that it is to have at most.
    """

    def __init__(self, file: SpoolFile, most_bytes: int) -> None:
        self._file = file
        self._most_bytes = most_bytes

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    def append(self, data: Buffer) -> None:
        """Add bytes. Raise `InvalidDocument` (rule `oversized`) if they are too many; `SpoolFull` as `SpoolFile`."""
        _check_size(self._file.size_bytes + len(data), self._most_bytes)
        self._file.append(data)

    def sha256(self) -> Sha256:
        return self._file.sha256()

    def clear(self) -> None:
        self._file.clear()


class CountedBytes:
    """Where a blob is received (`ReceivedBytes`), with what arrives, and what is dropped again, counted as long work.

    Args:
        target: receives it.
        work: counts it.
    """

    def __init__(self, target: ReceivedBytes, work: LongWork) -> None:
        self._target = target
        self._work = work

    @property
    def size_bytes(self) -> int:
        return self._target.size_bytes

    def append(self, data: Buffer) -> None:
        self._target.append(data)
        self._work.advance(len(data))

    def sha256(self) -> Sha256:
        return self._target.sha256()

    def clear(self) -> None:
        self._work.advance(-self._target.size_bytes)
        self._target.clear()


def rest_of(sent: SentBytes, start_bytes: int) -> SentBytes:
    """Return the bytes that follow the first `start_bytes` of them."""
    size_bytes = sent.size_bytes - start_bytes
    if isinstance(sent, SpoolFile):
        return SentPart(sent, start_bytes, size_bytes)
    if isinstance(sent, SentPart):
        return SentPart(sent.file, sent.start_bytes + start_bytes, size_bytes)
    raise InternalError(f"the rest of a {type(sent).__name__}")


def _check_size(size_bytes: int, most_bytes: int) -> None:
    if size_bytes > most_bytes:
        surplus_bytes = size_bytes - most_bytes
        raise InvalidDocument(f"a blob of {most_bytes} bytes is followed by {surplus_bytes} more", rule="oversized")


class SentPart:
    """A part of a file that holds all of its bytes (`SentBytes`).

    Args:
        file: the file.
        start_bytes: where the part begins in it.
        size_bytes: size of the part.
    """

    def __init__(self, file: SpoolFile, start_bytes: int, size_bytes: int) -> None:
        self.file = file
        self.start_bytes = start_bytes
        self._size_bytes = size_bytes

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def to_bytes(self) -> bytes:
        return self.file[self.start_bytes : self.start_bytes + self._size_bytes]

    def pieces(self, size_bytes: int = READ_BYTES) -> Iterable[bytes]:
        stop = self.start_bytes + self._size_bytes
        for start in range(self.start_bytes, stop, size_bytes):
            yield self.file[start : min(start + size_bytes, stop)]

    def sha256(self) -> Sha256:
        """Return the digest of the bytes, read once more. It blocks."""
        digest = hashlib.sha256()
        for piece in self.pieces():
            digest.update(piece)
        return Sha256(digest.hexdigest())
