"""Files on this machine as a `ByteSource`: one file, or a folder with those below it.

Files are read with `preadv` straight into the answer: if a mapped file is truncated, whoever reads it ends (SIGBUS),
while a read returns less and is reported. Bytes in the page cache are read at once; only a read that would wait for
the disk goes to a thread, so that the event loop never waits. After each read the system is asked whether the file is
still the one that it was (`KeptFile`); if not, it is read again, compared with its manifest.
"""

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from epochal.data_providers.formats.megatron import INDEX_SUFFIX, TOKENS_SUFFIX
from epochal.data_providers.protocol import CorruptData, SourceUnavailable
from epochal.data_providers.providers.local_manifest import listed_beside, listed_in_folder
from epochal.data_providers.providers.local_places import cannot_open, files_below
from epochal.data_providers.providers.unchanged_file import FileVersion, KeptFile, read_whole
from epochal.data_providers.sources.byte_source import SourceFile, Wanted
from epochal.data_providers.sources.manifest import MANIFEST_NAME, ListedFile

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


class LocalSource:
    """A `ByteSource` over files by their paths. Make one with `open`."""

    def __init__(self, location: str, files: Sequence[SourceFile], kept: Mapping[str, KeptFile]) -> None:
        self.location = location
        self.files = files
        self._kept = kept
        self._sizes = {file.name: file.size_bytes for file in files}
        self._open_files: OrderedDict[str, _OpenFile] = OrderedDict()
        self._lock = threading.Lock()
        self._nowait = _NOWAIT
        self._closed = False

    @classmethod
    def open(cls, path: Path) -> Self:
        """List one file, or the files of a folder and of those below it, hidden ones left out. Blocks.

        Manifests name their contents, and some blocks are compared with them. Of the files beside a single one, only
        Megatron's index of it belongs to the source.

        Raises:
            SourceUnavailable: the files cannot be listed now; retry.
            Rejected: there is no such path, this user may not read it, or it holds too many files.
            CorruptData: a manifest is damaged, or a file differs from it; the fault of the data's owner.
        """
        try:
            if path.is_dir():
                found = dict(files_below(path))
                versions = {name: FileVersion.of(file.stat()) for name, file in found.items()}
                manifest = listed_in_folder(path, found)
            else:
                index = path.with_suffix(INDEX_SUFFIX)
                beside = [index] if path.suffix == TOKENS_SUFFIX and index.is_file() else []
                found = {file.name: file for file in (path, *beside)}
                versions = {name: FileVersion.of(file.stat()) for name, file in found.items()}
                manifest = listed_beside(path.with_name(MANIFEST_NAME), path)
            files = [_source_file(name, file, versions[name], manifest.get(name)) for name, file in found.items()]
        except OSError as error:
            raise cannot_open(path, error) from error
        kept = {name: KeptFile(file, versions[name], manifest.get(name)) for name, file in found.items()}
        return cls(str(path), files, kept)

    @classmethod
    def of_paths(cls, location: str, files: Sequence[SourceFile], paths: Mapping[str, Path]) -> Self:
        """Return a source of files that no manifest lists, by their paths; `OSError` if one does not exist. Blocks."""
        kept = {name: KeptFile(path, FileVersion.of(path.stat())) for name, path in paths.items()}
        return cls(location, files, kept)

    async def read_into(self, name: str, start: int, into: memoryview) -> None:
        """Fill `into` with the file's bytes, as `ByteSource.read_into`."""
        await self.read_many_into((Wanted(name, start, into),))

    async def read_many_into(self, wanted: Sequence[Wanted]) -> None:
        """Read several ranges, as `BatchedSource.read_many_into`."""
        is_short = sum(len(one.into) for one in wanted) <= MAX_INLINE_BYTES
        if not is_short or not self.read(wanted, may_wait=False):
            await asyncio.to_thread(self.read, wanted)

    def read(self, wanted: Sequence[Wanted], *, may_wait: bool = True) -> bool:
        """Read several ranges and return True.

        Unless it may wait, return False instead of opening a file, waiting for the disk, or comparing what changed.

        Raises:
            CorruptData: a file is not what it was; the fault of who changed it.
            SourceUnavailable: it cannot be read now; retry.
            Rejected: this user may not read it any more.
        """
        by_file: dict[str, list[Wanted]] = {}
        for one in wanted:
            by_file.setdefault(one.name, []).append(one)
        return all(self._read_file(name, ranges, may_wait) for name, ranges in by_file.items())

    async def aclose(self) -> None:
        self._closed = True
        with self._lock:
            self._open_files.clear()

    def _read_file(self, name: str, ranges: Sequence[Wanted], may_wait: bool) -> bool:
        """Read ranges of one file, as `read`."""
        if not may_wait and self._nowait is None:
            return False
        kept = self._kept[name]
        try:
            file = self._opened(name, may_open=may_wait)
            if file is None:
                return False
            for _, start, into in ranges:
                if may_wait:
                    read_whole(file.fd, start, into, kept.path)
                elif os.preadv(file.fd, [into], start, self._nowait or 0) != len(into):
                    return False
            found = FileVersion.of(os.fstat(file.fd))
            for _, start, into in ranges:
                if not kept.holds(found, start, len(into)):
                    if not may_wait:
                        return False
                    file = self._present(name, file)
                    kept.read(file.fd, start, into)
            return True
        except BlockingIOError:
            return False
        except OSError as error:
            if not may_wait:
                self._nowait = None  # the file system does not support the flag
                return False
            if isinstance(error, PermissionError):
                raise cannot_open(kept.path, error) from error
            raise SourceUnavailable(f"{kept.path} cannot be read: {error}", path=str(kept.path)) from error

    def _present(self, name: str, file: _OpenFile) -> _OpenFile:
        """Return the file that the path leads to now, if there is one: another one may have been put in its place."""
        found, held = self._kept[name].path.stat(), os.fstat(file.fd)
        if (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino):
            return file
        with self._lock:
            self._open_files.pop(name, None)
        present = self._opened(name, may_open=True)
        assert present is not None
        return present

    def _opened(self, name: str, *, may_open: bool) -> _OpenFile | None:
        """Return an open file, or None if it is not open and may not be opened."""
        with self._lock:
            file = self._open_files.get(name)
            if file is not None:
                self._open_files.move_to_end(name)
                return file
        if not may_open:
            return None
        file = _OpenFile(self._kept[name].path, self._sizes[name])
        with self._lock:
            if not self._closed:
                self._open_files[name] = file
                if len(self._open_files) > MAX_OPEN_FILES:
                    self._open_files.popitem(last=False)
        return file


def _source_file(name: str, path: Path, version: FileVersion, listed: ListedFile | None) -> SourceFile:
    return SourceFile(
        name,
        version.size_bytes,
        str(path.absolute()),
        str(version.modified_ns),
        content="" if listed is None else listed.content,
        encoding=None if listed is None else listed.encoding,
    )
