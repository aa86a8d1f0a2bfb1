"""The sources of a preparation: every file that is read, in order, wherever it lies.

A source is a file or folder on this machine, a URL of a file, a file or folder in a bucket, or a dataset of the Hugging
Face Hub. The files are in the order of the sources, and within a folder in that of their names.
"""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self, TypeVar

from epochal.data_providers.file_names import is_hidden
from epochal.data_providers.locations import parse_location
from epochal.data_providers.sources.byte_source import ByteSource, read
from epochal.data_providers.sources.http.source import HttpSource, without_secrets
from epochal.data_providers.sources.hub_dataset import HUB_SCHEME, downloaded, parse_hub_dataset
from epochal.data_providers.sources.manifest import MANIFEST_NAME
from epochal.data_providers.sources.object_store import ObjectStoreSource
from epochal.data_providers.splits import DEFAULT_SPLIT
from epochal.runtime.permissions import OWNERS
from epochal.state.config.data_location import S3, Azure, Gcp
from epochal.state.errors import InvalidInput
from epochal.tools.prepare.file_kinds import READ, FileKind, kind_of
from epochal.tools.prepare.source_bytes import BadFile, RangeReader

MAX_FILES = 1_000_000
WINDOW_BYTES = 4 * 1024**2
"""Size of the ranges in which a file on another machine is read."""
WINDOWS_AHEAD = 3
"""Number of ranges that are requested ahead."""
MAX_SKIPPED_NAMED = 1000
MAX_SKIPPED_SUFFIXES = 256
ALLOWED_PLACES = (
    "a file or folder on this machine, http(s)://… of a file, s3://, gs:// or az://… of a file or folder, "
    "hf://datasets/NAME"
)
"""The possible sources, for messages."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SourceText:
    """A file that is read.

    Attributes:
        name: its path as the user wrote it, or its URL without secrets.
        kind: what it holds.
        size_bytes: as it is stored.
        version: changes with its content: an ETag, or the time of its modification.
        source: holds it; None for a file on this machine, whose path is then `local`.
    """

    name: str
    kind: FileKind
    size_bytes: int
    version: str
    source: ByteSource | None = None
    remote_name: str = ""
    local: Path | None = None


class Sources:
    """All files of a preparation. Make one with `open`; leaving the context closes connections.

    Attributes:
        files: what is read, in this order.
        skipped: names of files that are not read because of their suffix, at most `MAX_SKIPPED_NAMED`.
        skipped_count: the number of all of them.
        skipped_suffixes: how many of them have which suffix, of at most `MAX_SKIPPED_SUFFIXES` suffixes.
    """

    def __init__(self, leave_out: Path | None = None) -> None:
        self.files: list[SourceText] = []
        self.skipped: list[str] = []
        self.skipped_count = 0
        self.skipped_suffixes: Counter[str] = Counter()
        self._stack = ExitStack()
        self._loop: _LoopThread | None = None
        self._leave_out = None if leave_out is None else leave_out.resolve()

    @classmethod
    def open(cls, places: Sequence[str], further_text: tuple[str, ...] = (), leave_out: Path | None = None) -> Self:
        """Open the sources: list folders and buckets, and ask servers for sizes. Blocks.

        Args:
            places: paths and addresses, as the user wrote them.
            further_text: further suffixes of text files.
            leave_out: a folder in which nothing is read, if it lies in one of the places.

        Raises:
            SourceUnavailable, Rejected: a server does not answer, or refuses.
            InvalidInput: a place does not exist or holds nothing that is read, or two name the same file.
        """
        found = cls(leave_out)
        try:
            for place in places:
                before = len(found.files)
                if place.startswith(HUB_SCHEME + "://"):
                    found._list_hub(place)
                elif "://" in place:
                    found._list_remote(place, further_text)
                else:
                    found._list_local(Path(place), further_text)
                if len(found.files) == before:
                    shown = without_secrets(place) if "://" in place else place
                    way_out = text_suffix_hint(found.skipped_suffixes.most_common(1))
                    raise InvalidInput(f"{shown} holds no file that is read; allowed: {READ}{way_out}", place=shown)
                if len(found.files) > MAX_FILES:
                    raise InvalidInput(f"more than {MAX_FILES} files; give fewer, larger ones", place=place)
            names = [file.name for file in found.files]
            if len(set(names)) < len(names):
                twice = next(name for name in sorted(names) if names.count(name) > 1)
                raise InvalidInput(f"{twice} is named twice by the sources; name it once", file=twice)
        except BaseException:
            found.close()
            raise
        return found

    @property
    def size_bytes(self) -> int:
        """The size of all files as they are stored."""
        return sum(file.size_bytes for file in self.files)

    def reader(self, file: SourceText) -> RangeReader:
        """Return a reader of one of the files; the caller closes it. Raises `BadFile` if it has changed."""
        if file.source is None:
            return _LocalReader(file)
        assert self._loop is not None
        return _RemoteReader(file, file.source, self._loop)

    def close(self) -> None:
        """Close connections. A second call does nothing."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _list_local(self, place: Path, further_text: tuple[str, ...]) -> None:
        try:
            if not place.is_dir():
                found = place.stat()
                if not place.is_file():
                    raise InvalidInput(f"{place} is neither a file nor a folder", place=str(place))
                kind = kind_of(place.name, further_text) or (None if place.suffix else FileKind("text"))
                if kind is None:
                    raise InvalidInput(
                        f"{place} is not read; allowed: {READ}; --text-suffix {place.suffix} reads such files as text",
                        place=str(place),
                    )
                self._add_local(place, kind, found)
                return
            for path in _walk(place, self._leave_out):
                kind = kind_of(path.name, further_text)
                if kind is None or not path.is_file():
                    self._skip(str(path))
                else:
                    self._add_local(path, kind, path.stat())
        except OSError as error:
            named = error.filename or place
            reason = f"{error.strerror or error}; allowed: {ALLOWED_PLACES}"
            raise InvalidInput(f"{named} cannot be read: {reason}", place=str(named)) from error

    def _add_local(self, path: Path, kind: FileKind, found: os.stat_result) -> None:
        self.files.append(SourceText(str(path), kind, found.st_size, str(found.st_mtime_ns), local=path))

    def _list_remote(self, place: str, further_text: tuple[str, ...]) -> None:
        if self._loop is None:
            self._loop = _LoopThread()
            self._stack.callback(self._loop.close)
        source, wanted = self._loop.run(open_remote(place, further_text))
        self._stack.callback(self._loop.run_quietly, source.aclose)
        for file in sorted(source.files, key=lambda file: file.name):
            if wanted is not None and file.name != wanted:
                continue
            kind = kind_of(file.name, further_text)
            if kind is None:
                self._skip(file.place)
            else:
                version = f"{file.version} {file.distinction}".strip()
                self.files.append(SourceText(file.place, kind, file.size_bytes, version, source, file.name))

    def _list_hub(self, place: str) -> None:
        """List a dataset of the Hugging Face Hub, which is downloaded into its cache first."""
        held = downloaded(parse_hub_dataset(place), DEFAULT_SPLIT)
        for file in sorted(held.files, key=lambda file: file.name):
            path = held.paths[file.name]
            version = str(path.stat().st_mtime_ns)
            self.files.append(SourceText(file.place, FileKind("parquet"), file.size_bytes, version, local=path))

    def _skip(self, name: str) -> None:
        if name.rpartition("/")[2] == MANIFEST_NAME:
            return
        self.skipped_count += 1
        suffix = PurePosixPath(name).suffix
        if suffix and (suffix in self.skipped_suffixes or len(self.skipped_suffixes) < MAX_SKIPPED_SUFFIXES):
            self.skipped_suffixes[suffix] += 1
        if len(self.skipped) < MAX_SKIPPED_NAMED:
            self.skipped.append(name)


def text_suffix_hint(most: Sequence[tuple[str, int]]) -> str:
    """Return how files that are not read would be; "" where none has a suffix.

    Args:
        most: the most frequent suffix of such files and its number, if there is any.
    """
    return "".join(f"; --text-suffix {suffix} reads {count:,} {suffix} files as text" for suffix, count in most)


async def open_remote(place: str, further_text: tuple[str, ...] = ()) -> tuple[ByteSource, str | None]:
    """Open an address. Return its files, and the name of the only one that is meant; None for all.

    Raises:
        SourceUnavailable, Rejected: as the source.
        InvalidInput: it is no address that can be read.
    """
    location = parse_location(place)
    if place.startswith(("http://", "https://")):
        return await HttpSource.open([place]), None
    if isinstance(location, S3 | Gcp | Azure):
        folder, _, last = location.filter_directory.rstrip("/").rpartition("/")
        if kind_of(last, further_text) is not None:
            parent = location.model_copy(update={"filter_directory": folder})
            return await ObjectStoreSource.open(parent, OWNERS), last
        return await ObjectStoreSource.open(location, OWNERS), None
    raise InvalidInput(f"source {place!r} cannot be read; allowed: {ALLOWED_PLACES}", place=place)


def _walk(folder: Path, leave_out: Path | None) -> Iterator[Path]:
    """Yield the files below a folder in the order of their paths; hidden ones, and folders behind links, are left."""
    found: list[tuple[str, Path]] = []

    def fail(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not is_hidden(name) and Path(parent, name).resolve() != leave_out]
        for name in names:
            if not is_hidden(name):
                path = Path(parent, name)
                found.append((path.relative_to(folder).as_posix(), path))
                if len(found) > MAX_FILES:
                    raise InvalidInput(f"{folder} holds more than {MAX_FILES} files", place=str(folder))
    yield from (path for _, path in sorted(found))


class _LocalReader:
    """Reads a file on this machine, which must not change meanwhile."""

    def __init__(self, file: SourceText) -> None:
        assert file.local is not None
        self._name = file.name
        self._version = file.version
        self.size_bytes = file.size_bytes
        try:
            self._file = file.local.open("rb", buffering=0)
        except OSError as error:
            raise BadFile(f"{file.name} cannot be read: {error.strerror or error}", file=file.name) from error

    def read(self, start: int, stop: int) -> bytes:
        try:
            now = os.fstat(self._file.fileno())
            if (now.st_size, str(now.st_mtime_ns)) != (self.size_bytes, self._version):
                raise BadFile(f"{self._name} changed while it was read", file=self._name)
            parts = []
            while start < stop:
                part = os.pread(self._file.fileno(), stop - start, start)
                if not part:
                    raise BadFile(f"{self._name} became shorter while it was read", file=self._name)
                parts.append(part)
                start += len(part)
        except OSError as error:
            raise BadFile(f"{self._name} cannot be read: {error.strerror or error}", file=self._name) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        self._file.close()


class _RemoteReader:
    """Reads a file of a `ByteSource` in windows, of which the next ones are requested ahead."""

    def __init__(self, file: SourceText, source: ByteSource, loop: "_LoopThread") -> None:
        self.size_bytes = file.size_bytes
        self._name = file.remote_name
        self._source = source
        self._loop = loop
        self._windows: dict[int, Future[bytes]] = {}

    def read(self, start: int, stop: int) -> bytes:
        parts = []
        while start < stop:
            number = start // WINDOW_BYTES
            window = self._window(number)
            begin = start - number * WINDOW_BYTES
            part = window[begin : begin + stop - start]
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _window(self, number: int) -> bytes:
        count = -(-self.size_bytes // WINDOW_BYTES)
        wanted = range(number, min(number + 1 + WINDOWS_AHEAD, count))
        for held in [held for held in self._windows if held not in wanted]:
            self._windows.pop(held).cancel()
        for window in wanted:
            if window not in self._windows:
                begin = window * WINDOW_BYTES
                end = min(begin + WINDOW_BYTES, self.size_bytes)
                self._windows[window] = self._loop.submit(read(self._source, self._name, begin, end))
        return self._windows[number].result()

    def close(self) -> None:
        for future in self._windows.values():
            future.cancel()


class _LoopThread:
    """An event loop in a separate thread, for the sources, which are asynchronous."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="epochal-prepare-sources", daemon=True)
        self._thread.start()

    def submit(self, work: Any) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Any) -> Any:
        return self.submit(work).result()

    def run_quietly(self, work: Any) -> None:
        try:
            self.run(work())
        except Exception:
            return

    def close(self) -> None:
        async def cancel_all() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.wait(others) if others else None

        self.submit(cancel_all()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
