"""A manifest of content hashes, by which a dataset's bytes are checked as they arrive.

`epochal data manifest FOLDER` writes `epochal-manifest.json` beside the files: for every file its size, its SHA-256,
and the first 16 bytes of the SHA-256 of each block. A source with such a file is read block by block, each compared
before it is used; so a truncated, damaged or replaced file is an error and never a wrong sample.
"""

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from epochal.data_providers.encoding import TokenEncoding
from epochal.data_providers.file_names import TOKEN_SUFFIXES
from epochal.data_providers.protocol import CorruptData
from epochal.data_providers.sources.byte_source import (
    ByteSource,
    SourceFile,
    Wanted,
    closed_on_failure,
    read,
    read_many,
    stretches,
)
from epochal.runtime.long_work import BYTES, LongWork, long_work
from epochal.state.errors import InvalidInput
from epochal.state.reader_limits import MAX_MANIFEST_BYTES
from epochal.state.wire import strict_json

MANIFEST_NAME = "epochal-manifest.json"
MAX_MANIFESTS = 64
"""Maximum number of manifests of one dataset, one for each folder."""
DEFAULT_BLOCK_BYTES = 256 * 1024
MIN_BLOCK_BYTES, MAX_BLOCK_BYTES = 4096, 64 * 1024**2
_FORMAT = "epochal/manifest/v1"
HEAD_BYTES = 256
MAX_STRETCH_BYTES = 16 * 1024**2
"""Maximum size of neighbouring blocks that are read as one range, unless one block is larger."""
MAX_COMPARED_IN_LOOP_BYTES = 256 * 1024
"""More bytes are hashed in a thread, so that others need not wait for it."""
_HASH_BYTES = 16
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file in a manifest.

    Attributes:
        hashes: `_HASH_BYTES` for each block of `block_bytes`.
        sha256: of the whole file, in hex.
        encoding: how the file's tokens were made, if it is known.
    """

    size_bytes: int
    hashes: bytes
    block_bytes: int
    sha256: str
    encoding: TokenEncoding | None = None

    @property
    def content(self) -> str:
        """The name of the file's content: equal for equal bytes."""
        return f"sha256:{self.sha256}"

    @property
    def block_count(self) -> int:
        return len(self.hashes) // _HASH_BYTES

    def hash_of(self, number: int) -> bytes:
        """Return the hash of the block with this number."""
        return self.hashes[number * _HASH_BYTES : (number + 1) * _HASH_BYTES]


Manifest: TypeAlias = Mapping[str, ListedFile]
"""A parsed manifest: the files by name."""


def block_hash(block: bytes | memoryview) -> bytes:
    """Return the hash of one block: the first 16 bytes of its SHA-256."""
    return hashlib.sha256(block).digest()[:_HASH_BYTES]


def parse_manifest(text: bytes, place: str) -> Manifest:
    """Parse a manifest; `CorruptData` if the text is something else. `place` is its path or URL, for messages."""
    try:
        found = strict_json(text)
        if found["format"] != _FORMAT:
            raise CorruptData(f"{place} is a manifest of format {found['format']!r}; allowed: {_FORMAT}")
        block_bytes = found["block_bytes"]
        if type(block_bytes) is not int or not MIN_BLOCK_BYTES <= block_bytes <= MAX_BLOCK_BYTES:
            raise CorruptData(f"{place}: block_bytes {block_bytes!r}; allowed: {MIN_BLOCK_BYTES} to {MAX_BLOCK_BYTES}")
        return {str(name): _listed(place, name, entry, block_bytes) for name, entry in found["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptData(f"{place} is not a manifest: {type(error).__name__} {error}", place=place) from error


async def read_manifest(source: ByteSource, file: SourceFile) -> Manifest:
    """Read a manifest from a source; `CorruptData` if it has more than `MAX_MANIFEST_BYTES`."""
    if file.size_bytes > MAX_MANIFEST_BYTES:
        raise CorruptData(f"{file.place} has {file.size_bytes} bytes; at most {MAX_MANIFEST_BYTES}")
    return parse_manifest(await read(source, file.name, 0, file.size_bytes), file.place)


def looks_like_one(head: bytes) -> bool:
    """Return whether a file with these first bytes is a manifest, not the page that many servers send for any path."""
    return head.startswith(b"{") and _FORMAT.rpartition("/")[0].encode() in head[:HEAD_BYTES]


def _listed(place: str, name: str, entry: Any, block_bytes: int) -> ListedFile:
    size_bytes, hashes = entry["size_bytes"], base64.b64decode(entry["hashes"], validate=True)
    if type(size_bytes) is not int or size_bytes < 0 or len(hashes) != _HASH_BYTES * -(-size_bytes // block_bytes):
        raise CorruptData(f"{place}: {name} has {size_bytes!r} bytes and {len(hashes) // _HASH_BYTES} hashes")
    sha256 = entry["sha256"]
    if type(sha256) is not str or not _SHA256.fullmatch(sha256):
        raise CorruptData(f"{place}: {name} has the sha256 {sha256!r}; allowed: 64 hex digits in lower case")
    encoding = None if entry.get("encoding") is None else TokenEncoding.parse(entry["encoding"])
    return ListedFile(size_bytes, hashes, block_bytes, sha256, encoding)


def hashed_file(path: Path, block_bytes: int = DEFAULT_BLOCK_BYTES, work: LongWork | None = None) -> dict[str, Any]:
    """Return a manifest's entry for a file: its size, the SHA-256 of all of it, and the hash of each block. Blocks.

    Args:
        path: of the file.
        block_bytes: size of a block.
        work: counts the bytes that are read.
    """
    hashes, size_bytes, whole = bytearray(), 0, hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(block_bytes):
            hashes += block_hash(block)
            whole.update(block)
            size_bytes += len(block)
            if work is not None:
                work.advance(len(block))
    return {"size_bytes": size_bytes, "sha256": whole.hexdigest(), "hashes": base64.b64encode(hashes).decode()}


def manifest_text(
    files: Mapping[str, Mapping[str, Any]],
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Return the text of a manifest.

    Args:
        files: the entries of `hashed_file` by name; they may have further fields, which a reader ignores.
        block_bytes: size of the blocks of the entries.
        more: further fields of the manifest itself, which a reader ignores unless it knows them.
    """
    # the format comes first: `looks_like_one`
    document = {"format": _FORMAT, "block_bytes": block_bytes, **more, "files": files}
    return json.dumps(document, indent=1) + "\n"


def verify_folder(folder: Path, names: Sequence[str] = (), *, with_hashes: bool = True) -> int:
    """Compare every byte of a folder with its manifest, and return the number of files compared. Blocks.

    Args:
        names: files of the folder that the manifest must list, because they would be read as data.
        with_hashes: whether to read the files; False compares names and sizes only.

    Raises:
        CorruptData: a file is missing, is not listed, has another size, or differs; the message names the first one,
            with the block.
        InvalidInput: there is no manifest, or a file cannot be read.
    """
    try:
        manifest = parse_manifest((folder / MANIFEST_NAME).read_bytes(), str(folder / MANIFEST_NAME))
        for name in sorted(names):
            if name not in manifest:
                raise CorruptData(f"{folder}: the manifest does not list {name}", name=name)
        with long_work("comparing with the manifest", sum(one.size_bytes for one in manifest.values()), BYTES) as work:
            for name, listed in manifest.items():
                path = folder / name
                if not path.is_file():
                    raise CorruptData(f"{folder}: the manifest lists {name}, which does not exist", name=name)
                if path.stat().st_size != listed.size_bytes:
                    raise CorruptData(f"{path} has {path.stat().st_size} bytes; the manifest says {listed.size_bytes}")
                if not with_hashes:
                    continue
                _verify_file(path, listed, work)
    except OSError as error:
        raise InvalidInput(f"{error.filename or folder}: {error.strerror or error}") from error
    return len(manifest)


def _verify_file(path: Path, listed: ListedFile, work: LongWork) -> None:
    whole = hashlib.sha256()
    with path.open("rb") as file:
        for number in range(listed.block_count):
            size = listed.block_bytes
            block = file.read(size)
            whole.update(block)
            work.advance(len(block))
            if block_hash(block) != listed.hash_of(number):
                raise CorruptData(f"{path}: block {number} of {size} bytes differs from the manifest")
    if whole.hexdigest() != listed.sha256:
        raise CorruptData(f"{path}: the manifest contradicts itself: the blocks match, and the SHA-256 does not")


def is_manifest(name: str) -> bool:
    """Return whether a file of this name is a manifest, of its folder and those below."""
    return name.rpartition("/")[2] == MANIFEST_NAME


def manifests_among(names: Iterable[str]) -> list[str]:
    """Return the names of the manifests among a dataset's files, those of outer folders first.

    Raises:
        CorruptData: there are more than `MAX_MANIFESTS`; the fault of the data's owner.
    """
    held = sorted(filter(is_manifest, names), key=lambda name: (name.count("/"), name))
    if len(held) > MAX_MANIFESTS:
        raise CorruptData(
            f"{len(held)} manifests; at most {MAX_MANIFESTS}: write one for the folder above", name=held[0]
        )
    return held


def combined(manifests: Mapping[str, Manifest]) -> Manifest:
    """Return one manifest of the whole dataset, in which the nearest of several that list a file counts.

    Args:
        manifests: by their own names, in the order of `manifests_among`.
    """
    found: dict[str, ListedFile] = {}
    for held, manifest in manifests.items():
        folder = held.removesuffix(MANIFEST_NAME)
        found |= {folder + name: listed for name, listed in manifest.items()}
    return found


def check_lists_all(location: str, names: Collection[str], held: Sequence[str], manifest: Manifest) -> None:
    """Raise `CorruptData` if a token file in or below the folder of a manifest is not listed.

    Args:
        location: the dataset's place, for messages.
        names: of all of its files.
        held: the names of its manifests.
        manifest: all of them together.
    """
    folders = tuple(name.removesuffix(MANIFEST_NAME) for name in held)
    for name in sorted(names):
        if name.endswith(TOKEN_SUFFIXES) and name.startswith(folders) and name not in manifest:
            raise CorruptData(f"{location}: the manifest does not list {name}, which would be read as data", name=name)


def check_sizes(location: str, files: Mapping[str, SourceFile], manifest: Manifest) -> None:
    """Raise `CorruptData` unless every file that the manifest lists exists and has its size."""
    for name, listed in manifest.items():
        file = files.get(name)
        if file is None:
            raise CorruptData(f"{location}: the manifest lists {name}, which does not exist", name=name)
        if file.size_bytes != listed.size_bytes:
            sizes = f"{file.size_bytes} bytes; the manifest says {listed.size_bytes}"
            raise CorruptData(f"{file.place} has {sizes}", name=name)


class VerifiedSource:
    """A `ByteSource` that compares every byte of another one with a manifest. It closes the other one."""

    def __init__(self, source: ByteSource, manifest: Manifest) -> None:
        self.location = source.location
        found = [file for file in source.files if not is_manifest(file.name)]
        check_sizes(source.location, {file.name: file for file in found}, manifest)
        self.files: Sequence[SourceFile] = [
            replace(file, content=listed.content, encoding=listed.encoding) if listed else file
            for file in found
            for listed in [manifest.get(file.name)]
        ]
        self._source = source
        self._manifest = manifest

    @classmethod
    async def where_listed(cls, source: ByteSource) -> ByteSource:
        """Return a verified source if this one, which lists all its files, has a manifest; otherwise the source itself.

        Raises:
            CorruptData: the manifest is damaged, or does not list exactly the source's token files.
            SourceUnavailable, Rejected: as `ByteSource.read_into`.
        """
        held = manifests_among(file.name for file in source.files)
        if not held:
            return source
        async with closed_on_failure(source):
            by_name = {file.name: file for file in source.files}
            manifest = combined({name: await read_manifest(source, by_name[name]) for name in held})
            check_lists_all(source.location, by_name, held, manifest)
            return cls(source, manifest)

    async def read_into(self, name: str, start: int, into: memoryview) -> None:
        """Fill `into`, as `ByteSource.read_into`; whole blocks of the files that are listed are read and compared."""
        await self.read_many_into((Wanted(name, start, into),))

    async def read_many_into(self, wanted: Sequence[Wanted]) -> None:
        """Fill every destination, as `BatchedSource.read_many_into`, from blocks that are read once and compared."""
        plain = [one for one in wanted if one.name not in self._manifest]
        listed = [one for one in wanted if one.name in self._manifest]
        blocks: dict[str, set[int]] = {}
        for one in listed:
            size = self._manifest[one.name].block_bytes
            blocks.setdefault(one.name, set()).update(range(one.start // size, -(-(one.start + len(one.into)) // size)))
        found = {name: self._stretches_of(name, numbers) for name, numbers in blocks.items()}
        compared = [stretch for held in found.values() for stretch in held]
        await read_many(self._source, [*plain, *compared])
        if sum(len(stretch.into) for stretch in compared) > MAX_COMPARED_IN_LOOP_BYTES:
            await asyncio.to_thread(self._compare, compared)
        else:
            self._compare(compared)
        for one in listed:
            for stretch in found[one.name]:
                begin = max(one.start, stretch.start)
                end = min(one.start + len(one.into), stretch.start + len(stretch.into))
                if begin < end:
                    one.into[begin - one.start : end - one.start] = stretch.into[
                        begin - stretch.start : end - stretch.start
                    ]

    def _stretches_of(self, name: str, numbers: Iterable[int]) -> list[Wanted]:
        """Return what to read for blocks of a file."""
        listed = self._manifest[name]
        size, found = listed.block_bytes, list[Wanted]()
        for stretch in stretches(numbers, max(1, MAX_STRETCH_BYTES // size)):
            begin, end = stretch.start * size, min(stretch.stop * size, listed.size_bytes)
            found.append(Wanted(name, begin, np.empty(end - begin, np.uint8).data))
        return found

    def _compare(self, read: Sequence[Wanted]) -> None:
        """Raise `CorruptData` at the first block that differs from the manifest."""
        for stretch in read:
            listed = self._manifest[stretch.name]
            for at in range(0, len(stretch.into), listed.block_bytes):
                number = (stretch.start + at) // listed.block_bytes
                if block_hash(stretch.into[at : at + listed.block_bytes]) != listed.hash_of(number):
                    place = next(file.place for file in self.files if file.name == stretch.name)
                    raise CorruptData(
                        f"{place}: block {number} of {listed.block_bytes} bytes differs from the manifest",
                        name=stretch.name,
                    )

    async def aclose(self) -> None:
        await self._source.aclose()
