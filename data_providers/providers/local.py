"""Samples from token files on this machine: one file, or a folder of them and of folders below it.

Files are read with `preadv` straight into the answer: if a mapped file is truncated, whoever reads it ends (SIGBUS),
while a read returns less and is reported. Bytes in the page cache are read at once; only a read that would wait for
the disk goes to a thread, so that the event loop never waits. After each read the system is asked whether the file is
still the one that it was (`KeptFile`); if not, it is read again, compared with its manifest.
"""

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from epochal.data_providers.description import describe_tokens
from epochal.data_providers.file_names import TOKEN_FILES
from epochal.data_providers.formats.discovery import Part, discovery
from epochal.data_providers.formats.token_file import TokenFile
from epochal.data_providers.identity import contents_of
from epochal.data_providers.order import DataOrder
from epochal.data_providers.protocol import CorruptData, DatasetSpec, SourceUnavailable, TokenBatch
from epochal.data_providers.providers.local_manifest import refuse_splits
from epochal.data_providers.providers.local_source import LocalSource
from epochal.data_providers.providers.unchanged_file import FileVersion, read_whole
from epochal.state.errors import InternalError
from epochal.state.intervals import DataIds

MAX_OPEN_FILES = 64
MAX_INLINE_BYTES = 4 * 1024**2
"""A larger answer is copied in a thread even if it is in memory, so that the event loop is not held up."""

_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
"""Linux's flag for "read only without waiting"; None elsewhere, and then every read goes to a thread."""


class _OpenFile:
    """A descriptor that is closed when its last user drops it, so that a thread never reads from a reused one."""

    def __init__(self, path: Path, expected_bytes: int) -> None:
        self.fd = os.open(path, os.O_RDONLY)
        size_bytes = os.fstat(self.fd).st_size
        if size_bytes != expected_bytes:
            raise CorruptData(f"{path} had {expected_bytes} bytes and now has {size_bytes}", path=str(path))

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


class LocalDataProvider:
    """A `DataProvider` over local token files. Make one with `open`."""

    is_at_hand = True

    def __init__(self, source: LocalSource, files: Sequence[TokenFile], spec: DatasetSpec) -> None:
        self.order = DataOrder(files, spec, contents=contents_of(source.files))
        self.encodings = {file.name: file.encoding for file in source.files if file.encoding is not None}
        self.sequence_count = self.order.sequence_count
        self.fingerprint = self.order.fingerprint
        self.description = describe_tokens("token files", self.order)
        self._files = [source.kept[file.name] for file in self.order.files]
        self._open_files: OrderedDict[int, _OpenFile] = OrderedDict()
        self._lock = threading.Lock()
        self._nowait = _NOWAIT
        self._closed = False

    @classmethod
    def open(cls, path: Path, spec: DatasetSpec) -> Self:
        """Open one token file, or every token file in a folder and those below it. Blocks.

        Raises:
            SourceUnavailable: the files cannot be read now; retry.
            Rejected: there is no such path, or this user may not read it.
            CorruptData: there are no token files, one of them is not in its format, or differs from the manifest
                beside them; the fault of the data's owner.
        """
        source = LocalSource.open(path)
        if path.is_dir():
            refuse_splits(path, [file.name for file in source.files])
        files = _discovered(source, spec)
        if not files:
            raise CorruptData(f"{path} holds no token files ({TOKEN_FILES})", path=str(path))
        return cls(source, files, spec)

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        """Return the samples of these data indices, as `DataProvider.get_samples`."""
        if self._closed:
            raise InternalError("get_samples after aclose")
        tokens = self.order.spec.empty_tokens(data_ids)
        view = tokens.view(np.uint8).data
        spec, files = self.order.spec, self.order.files
        places = [
            _Place(
                extent.file,
                files[extent.file].offset_bytes(extent.sequence, spec),
                extent.length * spec.sequence_bytes,
            )
            for extent in self.order.locate(data_ids)
        ]
        if len(view) > MAX_INLINE_BYTES or not self._fill(places, view, may_wait=False):
            await asyncio.to_thread(self._fill, places, view, may_wait=True)
        return TokenBatch.fixed_length(tokens, spec.sequence_length)

    async def aclose(self) -> None:
        self._closed = True
        with self._lock:
            self._open_files.clear()

    def _fill(self, places: "Sequence[_Place]", into: memoryview, *, may_wait: bool) -> bool:
        """Fill `into` with the bytes of these places one after the other, as `fill`."""
        filled = 0
        for file_number, of_file in groupby(places, key=lambda place: place.file):
            stretches: list[_Stretch] = []
            for place in of_file:
                stretches.append(_Stretch(place.offset, into[filled : filled + place.length]))
                filled += place.length
            if not self.fill(file_number, stretches, may_wait=may_wait):
                return False
        return True

    def fill(self, file_number: int, stretches: "Sequence[_Stretch]", *, may_wait: bool) -> bool:
        """Fill stretches of an answer with a file's bytes and return True.

        Unless it may wait, return False instead of opening a file, waiting for the disk, or comparing what changed.

        Raises:
            CorruptData: the file is not what it was; the fault of who changed it.
            SourceUnavailable: it cannot be read now; retry.
        """
        if not may_wait and self._nowait is None:
            return False
        file = self.opened(file_number, may_open=may_wait)
        if file is None:
            return False
        kept, flags = self._files[file_number], 0 if may_wait else self._nowait or 0
        try:
            for offset, into in stretches:
                if not _read_into(into, file.fd, offset, flags, kept.path):
                    return False
            found = FileVersion.of(os.fstat(file.fd))
            for offset, into in stretches:
                if not kept.holds(found, offset, len(into)):
                    if not may_wait:
                        return False
                    file = self._present(file_number, file)
                    kept.read(file.fd, offset, into)
            return True
        except BlockingIOError:
            return False
        except OSError as error:
            if may_wait:
                raise SourceUnavailable(f"a token file cannot be read: {error}") from error
            self._nowait = None  # the file system does not support the flag
            return False

    def _present(self, file_number: int, file: _OpenFile) -> _OpenFile:
        """Return the file that the path leads to now, if there is one: another one may have been put in its place."""
        found, held = self._files[file_number].path.stat(), os.fstat(file.fd)
        if (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino):
            return file
        with self._lock:
            self._open_files.pop(file_number, None)
        present = self.opened(file_number, may_open=True)
        assert present is not None
        return present

    def opened(self, number: int, *, may_open: bool) -> _OpenFile | None:
        """Return a file's descriptor, or None if it is not open and may not be opened."""
        with self._lock:
            file = self._open_files.get(number)
            if file is not None:
                self._open_files.move_to_end(number)
                return file
        if not may_open:
            return None
        try:
            file = _OpenFile(self._files[number].path, self.order.files[number].size_bytes)
        except OSError as error:
            raise SourceUnavailable(f"a token file cannot be read: {error}") from error
        with self._lock:
            if not self._closed:
                self._open_files[number] = file
                if len(self._open_files) > MAX_OPEN_FILES:
                    self._open_files.popitem(last=False)
        return file


class _Place(NamedTuple):
    """A stretch of an answer: `length` bytes from `offset` on of a file, by its number in the dataset's order."""

    file: int
    offset: int
    length: int


class _Stretch(NamedTuple):
    """The offsets of bytes in a file and in their destination."""

    offset: int
    into: memoryview


def _read_into(view: memoryview, fd: int, offset: int, flags: int, path: Path) -> bool:
    """Fill the view from the file and return True; with flags, return False if it cannot be filled at once."""
    if flags:
        return os.preadv(fd, [view], offset, flags) == len(view)
    read_whole(fd, offset, view, path)
    return True


def _discovered(source: LocalSource, spec: DatasetSpec) -> list[TokenFile]:
    asking = discovery(source.files, spec)
    try:
        wanted = next(asking)
        while True:
            wanted = asking.send([_read_part(source, part) for part in wanted])
    except StopIteration as finished:
        found: list[TokenFile] = finished.value
        return found


def _read_part(source: LocalSource, part: Part) -> bytes:
    into = bytearray(part.stop - part.start)
    source.read(part.name, part.start, memoryview(into))
    return bytes(into)
