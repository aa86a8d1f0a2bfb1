"""The sources of a preparation: every file that is read, in order, wherever it lies.

A source is a file or folder on this machine, a URL of a file, a file or folder in a bucket, or a dataset of the Hugging
Face Hub. The files are in the order of the sources, and within a folder in that of their names. What is elsewhere is
read through `fsspec`, buckets by `obstore` under it.
"""

import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

from epochal.data_providers.file_names import is_hidden
from epochal.data_providers.protocol import SourceUnavailable
from epochal.data_providers.sources.http.source import without_secrets
from epochal.data_providers.sources.hub_dataset import HUB_SCHEME, downloaded, parse_hub_dataset
from epochal.data_providers.sources.manifest import MANIFEST_NAME
from epochal.data_providers.splits import DEFAULT_SPLIT
from epochal.runtime.os_errors import reason_of
from epochal.state.errors import ExtraMissing, InvalidInput
from epochal.tools.prepare.prepare_options import EXTRA

Kind: TypeAlias = Literal["text", "records", "parquet"]
SUFFIXES: dict[Kind, tuple[str, ...]] = {
    "text": (".txt", ".text", ".md", ".markdown", ".rst"),
    "records": (".jsonl", ".ndjson"),
    "parquet": (".parquet",),
}
COMPRESSIONS = (".gz", ".zst")
READ = (
    "; ".join(f"{', '.join(suffixes)} ({kind})" for kind, suffixes in SUFFIXES.items())
    + "; also with .gz or .zst; others as text with --text-suffix"
)
"""The suffixes in words, for messages."""
BUCKETS = ("s3", "gs", "az")
WEB = ("http", "https")
ALLOWED_PLACES = (
    "a file or folder on this machine (also as file:///PATH), http(s)://… of a file, s3://, gs:// or az://… of a file "
    "or folder, hf://datasets/NAME"
)
"""The possible sources, for messages."""
MAX_FILES = 1_000_000


class BadFile(InvalidInput):
    """A source file does not match its name, or is truncated. The fault of its author."""


@dataclass(frozen=True, slots=True)
class SourceText:
    """A file that is read.

    Attributes:
        name: its path as the user wrote it, or its URL without secrets.
        kind: what it holds.
        size_bytes: as it is stored.
        version: changes with its content: an ETag, or the time of its modification.
        place: its path or URL.
    """

    name: str
    kind: Kind
    size_bytes: int
    version: str
    place: str

    @property
    def compression(self) -> str:
        """The suffix by which it is compressed; "" if it is not, as parquet files never are."""
        suffix = PurePosixPath(self.name).suffix.lower()
        return suffix if suffix in COMPRESSIONS else ""

    def open(self) -> io.BufferedIOBase:
        """Open the file's bytes as they are stored, or raise `BadFile` or `SourceUnavailable`."""
        try:
            if "://" not in self.place:
                return Path(self.place).open("rb")
            system, path = file_system(self.place)
            opened: io.BufferedIOBase = system.open(path, "rb")
            return opened
        except Exception as error:
            raise failure_of(self, error) from error

    def check_unchanged(self) -> None:
        """Raise `BadFile` if it is another one than when the sources were listed."""
        try:
            now = _described(self.place)
        except Exception as error:
            raise failure_of(self, error) from error
        if now != (self.size_bytes, self.version):
            raise BadFile(f"{self.name} changed while it was read", file=self.name)


@dataclass
class Sources:
    """All files of a preparation. Make one with `of`.

    Attributes:
        files: what is read, in this order.
        skipped_count: number of files that are not read because of their suffix.
    """

    files: list[SourceText] = field(default_factory=list)
    skipped_count: int = 0

    @classmethod
    def of(cls, places: Sequence[str], further_text: tuple[str, ...] = (), leave_out: Path | None = None) -> "Sources":
        """List the sources: folders and buckets, and servers for sizes. Blocks.

        Args:
            places: paths and addresses, as the user wrote them.
            further_text: further suffixes of text files.
            leave_out: a folder in which nothing is read, if it lies in one of the places.

        Raises:
            SourceUnavailable, Rejected: a server does not answer, or refuses.
            InvalidInput: a place does not exist or holds nothing that is read, or two name the same file.
        """
        found = cls()
        for place in places:
            before, shown = len(found.files), without_secrets(place) if "://" in place else place
            if place.startswith(HUB_SCHEME + "://"):
                found._list_hub(place)
            elif "://" in place:
                found._list_remote(place, shown, further_text)
            else:
                found._list_local(Path(place), further_text, leave_out)
            if len(found.files) == before:
                raise InvalidInput(f"{shown} holds no file that is read; allowed: {READ}", place=shown)
            if len(found.files) > MAX_FILES:
                raise InvalidInput(f"more than {MAX_FILES} files; give fewer, larger ones", place=shown)
        repeated = [name for name, count in Counter(file.name for file in found.files).items() if count > 1]
        if repeated:
            raise InvalidInput(f"{repeated[0]} is named twice by the sources; name it once", file=repeated[0])
        return found

    @property
    def size_bytes(self) -> int:
        """The size of all files as they are stored."""
        return sum(file.size_bytes for file in self.files)

    def _list_local(self, place: Path, further_text: tuple[str, ...], leave_out: Path | None) -> None:
        try:
            if place.is_dir():
                for path in _walk(place, leave_out and leave_out.resolve()):
                    self._add(str(path), str(path), further_text)
                return
            kind = kind_of(place.name, further_text) or (None if place.suffix else "text")
            if kind is None and place.exists():
                raise InvalidInput(f"{place} is not read; allowed: {READ}", place=str(place))
            size_bytes, version = _described(str(place))
            if not place.is_file():
                raise InvalidInput(f"{place} is neither a file nor a folder", place=str(place))
            self.files.append(SourceText(str(place), kind or "text", size_bytes, version, str(place)))
        except OSError as error:
            named = error.filename or place
            raise InvalidInput(
                f"{named} cannot be read: {reason_of(error)}; allowed: {ALLOWED_PLACES}", place=str(named)
            ) from error

    def _list_remote(self, place: str, shown: str, further_text: tuple[str, ...]) -> None:
        try:
            system, path = file_system(place)
            names = [place]
            if not place.startswith(WEB) and kind_of(path, further_text) is None:
                scheme = place.partition("://")[0]
                names = sorted(f"{scheme}://{name}" for name in system.find(path.rstrip("/") + "/"))
            for name in names:
                self._add(without_secrets(name), name, further_text)
        except InvalidInput:
            raise
        except Exception as error:
            raise _unavailable(shown, error) from error

    def _list_hub(self, place: str) -> None:
        """List a dataset of the Hugging Face Hub, which is downloaded into its cache first."""
        held = downloaded(parse_hub_dataset(place), DEFAULT_SPLIT)
        for file in sorted(held.files, key=lambda file: file.name):
            path = str(held.paths[file.name])
            self.files.append(SourceText(file.place, "parquet", *_described(path), path))

    def _add(self, name: str, place: str, further_text: tuple[str, ...]) -> None:
        """Add a file of a folder, or count it if it is not read."""
        bare = name.partition("?")[0] if place.startswith(WEB) else name
        kind = kind_of(bare, further_text)
        if kind is not None and ("://" in place or Path(place).is_file()):
            self.files.append(SourceText(bare if "://" in place else name, kind, *_described(place), place))
        elif not bare.endswith(MANIFEST_NAME):
            self.skipped_count += 1


def kind_of(name: str, further_text: tuple[str, ...] = ()) -> Kind | None:
    """Return what a file of this name holds, or None if such files are not read.

    Args:
        name: the file's name, with or without folders.
        further_text: further suffixes of text files.
    """
    base = name.lower()
    for suffix in COMPRESSIONS:
        base = base.removesuffix(suffix)
    if base.endswith(tuple(suffix.lower() for suffix in further_text)):
        return "text"
    found = next((kind for kind, suffixes in SUFFIXES.items() if base.endswith(suffixes)), None)
    return None if found == "parquet" and base != name.lower() else found


def change_since(before: Mapping[str, int], now: Sequence[SourceText]) -> str:
    """Return a sentence on the first change of the sources whose names and sizes a manifest has, or ""."""
    found = {file.name: file.size_bytes for file in now}
    for name in [*found, *before]:
        if name not in before:
            return f"{name} is new since then"
        if name not in found:
            return f"{name} is no longer among the sources"
        if found[name] != before[name]:
            return f"{name} had {before[name]} bytes and has {found[name]}"
    return ""


def file_system(place: str) -> tuple[Any, str]:
    """Return the `fsspec` file system of an address, and the path in it.

    Raises:
        InvalidInput: it is no address that can be read, or a package for it is missing.
    """
    scheme = place.partition("://")[0]
    if scheme not in (*BUCKETS, *WEB):
        raise InvalidInput(f"source {place!r} cannot be read; allowed: {ALLOWED_PLACES}", place=place)
    try:
        import fsspec
    except ImportError as error:
        raise ExtraMissing(f"{scheme}:// needs the fsspec package: {EXTRA}") from error
    if scheme in BUCKETS:
        try:
            from obstore.fsspec import register
        except ImportError as error:
            raise ExtraMissing(f"{scheme}:// needs: pip install 'epochal[object-stores]'") from error
        register(scheme)
    return fsspec.core.url_to_fs(place)  # type: ignore[no-any-return]


def failure_of(file: SourceText, error: Exception) -> Exception:
    """Return what a failure to read a file is: a server's, which may pass, or the file's own."""
    if isinstance(error, InvalidInput | SourceUnavailable):
        return error
    if "://" in file.place and not isinstance(error, EOFError):
        return _unavailable(file.name, error)
    reason = reason_of(error) if isinstance(error, OSError) and error.errno else str(error).partition("\n")[0]
    return BadFile(f"{file.name} cannot be read: {reason}", file=file.name)


def _unavailable(shown: str, error: Exception) -> Exception:
    cause = error.__cause__  # fsspec says of every failure over HTTP that there is no such file
    is_web = shown.startswith(WEB) and isinstance(cause, Exception) and not isinstance(cause, FileNotFoundError)
    if isinstance(error, FileNotFoundError) and not is_web:
        return InvalidInput(f"{shown} does not exist; allowed: {ALLOWED_PLACES}", place=shown)
    reason = str(cause if is_web else error).strip().partition("\n")[0] or type(error).__name__
    return SourceUnavailable(f"{shown} cannot be read now: {reason}; the same command continues later", place=shown)


def _described(place: str) -> tuple[int, str]:
    """Return the size and the version of a file."""
    if "://" not in place:
        found = Path(place).stat()
        return found.st_size, str(found.st_mtime_ns)
    system, path = file_system(place)
    system.invalidate_cache()
    facts = system.info(path)
    version = next((facts[name] for name in ("ETag", "e_tag", "etag", "Last-Modified", "mtime") if facts.get(name)), "")
    return facts.get("size") or 0, str(version)


def _walk(folder: Path, leave_out: Path | None) -> Iterator[Path]:
    """Yield the files below a folder in the order of their paths; hidden ones, and folders behind links, are left."""
    found: list[tuple[str, Path]] = []

    def fail(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not is_hidden(name) and Path(parent, name).resolve() != leave_out]
        found += [(Path(parent, name).relative_to(folder).as_posix(), Path(parent, name)) for name in names]
        if len(found) > MAX_FILES:
            raise InvalidInput(f"{folder} holds more than {MAX_FILES} files", place=str(folder))
    yield from (path for _, path in sorted(found) if not is_hidden(path.name))
