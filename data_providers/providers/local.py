"""Samples from token files on this machine: one file, or a folder of them and of folders below it.

Files are read with `preadv` straight into the answer: if a mapped file is truncated, whoever reads it ends (SIGBUS),
while a read returns less and is reported. Only for the system to send from are they mapped, too (`mapped_file.py`).
Bytes in the page cache are read at once; only a read that would wait for the disk goes to a thread, so that the event
loop never waits. After each read the system is asked whether the file is still the one that it was (`KeptFile`); if
not, it is read again, compared with its manifest.
"""

import asyncio
import errno
import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import accumulate, compress, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self

import numpy as np

from epochal.data_providers.description import describe_tokens
from epochal.data_providers.file_names import TOKEN_FILES
from epochal.data_providers.formats.discovery import Part, discovery
from epochal.data_providers.formats.megatron import INDEX_SUFFIX, TOKENS_SUFFIX
from epochal.data_providers.formats.token_file import TokenFile
from epochal.data_providers.order import DataOrder
from epochal.data_providers.protocol import CorruptData, DatasetSpec, SourceUnavailable, TokenBatch
from epochal.data_providers.providers.local_manifest import (
    contents_in,
    encodings_in,
    listed_beside,
    listed_in_folder,
    refuse_splits,
)
from epochal.data_providers.providers.local_places import cannot_open, files_below
from epochal.data_providers.providers.mapped_file import MAX_VIEW_BYTES, MappedFile, mapped_if_told
from epochal.data_providers.providers.unchanged_file import FileVersion, KeptFile, read_whole
from epochal.data_providers.sources.byte_source import SourceFile
from epochal.data_providers.sources.manifest import MANIFEST_NAME, Manifest
from epochal.state.errors import InternalError
from epochal.state.intervals import DataIds

MAX_OPEN_FILES = 64
MAX_INLINE_BYTES = 4 * 1024**2
"""A larger answer is copied in a thread even if it is in memory, so that the event loop is not held up."""

MAX_MAPPED_BYTES = 128 * 1024**3
"""Files are mapped up to this size in all, which bounds the system's page tables for them at 256 MiB."""
MAX_VIEWS = 64
"""Parts of an answer that are searched in memory at a time."""

_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
"""Linux's flag for "read only without waiting"; None elsewhere, and then every read goes to a thread."""


class _OpenFile:
    """A descriptor that is closed when its last user drops it, so that a thread never reads from a reused one."""

    def __init__(self, path: Path, expected_bytes: int) -> None:
        self.fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        size_bytes = os.fstat(self.fd).st_size
        if size_bytes != expected_bytes:
            raise CorruptData(f"{path} had {expected_bytes} bytes and now has {size_bytes}", path=str(path))
        self.size_bytes = size_bytes
        self.may_be_mapped = True
        self.mapped: MappedFile | None = None

    def version(self) -> FileVersion:
        """Return the version that the file has now."""
        return FileVersion.of(os.fstat(self.fd))

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


class LocalDataProvider:
    """A `DataProvider` over local token files. Make one with `open`."""

    is_at_hand = True

    def __init__(
        self,
        paths: Mapping[str, Path],
        versions: Mapping[str, FileVersion],
        files: Sequence[TokenFile],
        spec: DatasetSpec,
        manifest: Manifest = MappingProxyType({}),
    ) -> None:
        self.order = DataOrder(files, spec, contents=contents_in(manifest))
        self.encodings = encodings_in(manifest)
        self.sequence_count = self.order.sequence_count
        self.fingerprint = self.order.fingerprint
        self.description = describe_tokens("token files", self.order)
        self._files = [
            KeptFile(paths[file.name], versions[file.name], manifest.get(file.name)) for file in self.order.files
        ]
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
        try:
            if path.is_dir():
                paths = dict(files_below(path))
                refuse_splits(path, paths)
                versions = _versions(paths)
                manifest = listed_in_folder(path, paths)
            else:
                # A single file is a dataset by itself; of the files beside it only its own index matters.
                wanted = [path] + ([path.with_suffix(INDEX_SUFFIX)] if path.suffix == TOKENS_SUFFIX else [])
                paths = {file.name: file for file in wanted if file.is_file()}
                if path.name not in paths:
                    raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
                versions = _versions(paths)
                manifest = listed_beside(path.with_name(MANIFEST_NAME), path)
            files = _discovered(paths, versions, spec)
        except OSError as error:
            raise cannot_open(path, error) from error
        if not files:
            raise CorruptData(f"{path} holds no token files ({TOKEN_FILES})", path=str(path))
        return cls(paths, versions, files, spec, manifest)

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        """Return the samples of these data indices, as `DataProvider.get_samples`."""
        if self._closed:
            raise InternalError("get_samples after aclose")
        tokens = self.order.spec.empty_tokens(data_ids)
        view = tokens.view(np.uint8).data
        found = self.sample_bytes(data_ids)
        if len(view) > MAX_INLINE_BYTES or not found.read_now(0, view):
            await asyncio.to_thread(found.read, 0, view)
        return TokenBatch.fixed_length(tokens, self.order.spec.sequence_length)

    def sample_bytes(self, data_ids: DataIds) -> "LocalSampleBytes":
        """Return the bytes of these samples, not yet read. Raise `OutOfRange` beyond the last pass."""
        if self._closed:
            raise InternalError("sample_bytes after aclose")
        spec, files = self.order.spec, self.order.files
        places = [
            _Place(
                extent.file,
                files[extent.file].offset_bytes(extent.sequence, spec),
                extent.length * spec.sequence_bytes,
            )
            for extent in self.order.locate(data_ids)
        ]
        return LocalSampleBytes(self, places)

    async def aclose(self) -> None:
        self._closed = True
        with self._lock:
            self._open_files.clear()

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

    def mapped(self, file_number: int) -> "_MappedNow | None":
        """Return a file's bytes where the system keeps them; None if it is not open, or cannot be sent from there."""
        file = self.opened(file_number, may_open=False)
        if file is None or not file.may_be_mapped:
            return None
        if file.mapped is None:
            with self._lock:
                mapped_bytes = sum(other.size_bytes for other in self._open_files.values() if other.mapped is not None)
            if mapped_bytes + file.size_bytes <= MAX_MAPPED_BYTES:
                file.mapped = mapped_if_told(file.fd, file.size_bytes)
            file.may_be_mapped = file.mapped is not None
        return None if file.mapped is None else _MappedNow(self._files[file_number], file, file.version(), file.mapped)

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

    def check_length(self, file_number: int, needed_bytes: int, *, may_open: bool) -> None:
        """Raise `CorruptData` if an open file is shorter than is needed of it."""
        file = self.opened(file_number, may_open=may_open)
        path = self._files[file_number].path
        if file is not None and (size_bytes := os.fstat(file.fd).st_size) < needed_bytes:
            raise CorruptData(f"{path} ends at byte {size_bytes}; it was longer", path=str(path))

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


class _MappedNow(NamedTuple):
    """A file that is mapped, and the version that it had before its bytes were given away."""

    kept: KeptFile
    file: _OpenFile
    version: FileVersion
    bytes: MappedFile


class LocalSampleBytes:
    """The bytes of one answer, in token files on this machine (`SampleBytes`)."""

    def __init__(self, provider: LocalDataProvider, places: Sequence[_Place]) -> None:
        self._provider = provider
        self._places = places
        self._ends = list(accumulate(place.length for place in places))
        self.size_bytes = self._ends[-1]
        self._given: dict[int, _MappedNow] = {}

    def read_now(self, begin: int, into: memoryview) -> bool:
        """Fill `into` with the bytes from `begin` on, if they are in memory; return whether it was filled."""
        return self._fill(begin, into, may_wait=False)

    def read(self, begin: int, into: memoryview) -> None:
        """Fill `into` with the bytes from `begin` on. Blocks."""
        self._fill(begin, into, may_wait=True)

    def at_hand(self, begin: int, most_bytes: int) -> list[memoryview]:
        """Return bytes from `begin` on, at most so many, where the system keeps them (`SampleBytes.at_hand`)."""
        views: list[memoryview] = []
        number, stop = bisect_right(self._ends, begin), min(begin + most_bytes, self.size_bytes)
        while begin < stop and len(views) < MAX_VIEWS:
            file_number = self._places[number].file
            stretches: list[tuple[int, int]] = []
            while begin < stop and len(views) + len(stretches) < MAX_VIEWS:
                file, offset, length = self._places[number]
                if file != file_number:
                    break
                end = self._ends[number]
                count = min(end, stop, begin + MAX_VIEW_BYTES) - begin
                stretches.append((offset + length - (end - begin), count))
                begin += count
                if begin == end:
                    number += 1
            found = self._of_file(file_number, stretches)
            views += found
            if len(found) < len(stretches):
                break
        return views

    def _of_file(self, file_number: int, stretches: list[tuple[int, int]]) -> list[memoryview]:
        """Return the first ones of some stretches of a file: those that are in memory, and what they were."""
        mapped = self._provider.mapped(file_number)
        if mapped is None or self._given.get(file_number, mapped).version != mapped.version:
            return []
        if not mapped.kept.is_all_known(mapped.version):
            held = (mapped.kept.holds(mapped.version, offset, count) for offset, count in stretches)
            stretches = list(compress(stretches, takewhile(bool, held)))
        views = mapped.bytes.at_hand(stretches)
        if views:
            self._given[file_number] = mapped
        return views

    def check(self) -> None:
        """Raise `CorruptData` if a file has changed since bytes of it were given."""
        for given in self._given.values():
            if given.file.version() != given.version:
                path = str(given.kept.path)
                raise CorruptData(f"{path} was changed while it was sent", path=path)

    def _fill(self, begin: int, into: memoryview, *, may_wait: bool) -> bool:
        if begin == 0:  # so that a file that was cut is an error before the first byte of it is sent
            ends: dict[int, int] = {}
            for place in self._places:
                ends[place.file] = max(ends.get(place.file, 0), place.offset + place.length)
            for file_number, needed_bytes in ends.items():
                self._provider.check_length(file_number, needed_bytes, may_open=may_wait)
        number, filled = bisect_right(self._ends, begin), 0
        while filled < len(into):
            file_number = self._places[number].file
            stretches: list[_Stretch] = []
            while filled < len(into) and self._places[number].file == file_number:
                place = self._places[number]
                left = self._ends[number] - begin - filled
                count = min(left, len(into) - filled)
                stretches.append(_Stretch(place.offset + place.length - left, into[filled : filled + count]))
                filled, number = filled + count, number + 1
            if not self._provider.fill(file_number, stretches, may_wait=may_wait):
                return False
        return True


def _read_into(view: memoryview, fd: int, offset: int, flags: int, path: Path) -> bool:
    """Fill the view from the file and return True; with flags, return False if it cannot be filled at once."""
    if flags:
        return os.preadv(fd, [view], offset, flags) == len(view)
    read_whole(fd, offset, view, path)
    return True


def _versions(paths: Mapping[str, Path]) -> dict[str, FileVersion]:
    return {name: FileVersion.of(path.stat()) for name, path in paths.items()}


def _discovered(paths: Mapping[str, Path], versions: Mapping[str, FileVersion], spec: DatasetSpec) -> list[TokenFile]:
    files = [SourceFile(name, versions[name].size_bytes, str(path)) for name, path in paths.items()]
    asking = discovery(files, spec)
    try:
        wanted = next(asking)
        while True:
            wanted = asking.send([_read_part(paths[part.name], part) for part in wanted])
    except StopIteration as finished:
        found: list[TokenFile] = finished.value
        return found


def _read_part(path: Path, part: Part) -> bytes:
    with path.open("rb") as file:
        file.seek(part.start)
        return file.read(part.stop - part.start)
