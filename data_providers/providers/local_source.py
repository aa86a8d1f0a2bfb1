"""Files on this machine as a `ByteSource`: one file, or a folder with those below it.

A file is read and not mapped, so that a truncated one is an error and does not end the process. It must keep its size,
and, where a manifest lists it, its content (`KeptFile`).
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from epochal.data_providers.formats.megatron import INDEX_SUFFIX, TOKENS_SUFFIX
from epochal.data_providers.protocol import CorruptData, SourceUnavailable
from epochal.data_providers.providers.local_manifest import listed_beside, listed_in_folder
from epochal.data_providers.providers.local_places import cannot_open, files_below
from epochal.data_providers.providers.unchanged_file import FileVersion, KeptFile, read_whole
from epochal.data_providers.sources.byte_source import SourceFile
from epochal.data_providers.sources.manifest import MANIFEST_NAME, ListedFile


class LocalSource:
    """A `ByteSource` over files by their paths. Make one with `open`."""

    def __init__(self, location: str, files: Sequence[SourceFile], kept: Mapping[str, KeptFile]) -> None:
        self.location = location
        self.files = files
        self.kept = kept
        self._sizes = {file.name: file.size_bytes for file in files}

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
        await asyncio.to_thread(self.read, name, start, into)

    def read(self, name: str, start: int, into: memoryview) -> None:
        """Fill `into` with the file's bytes, as `ByteSource.read_into`. Blocks."""
        kept = self.kept[name]
        path = kept.path
        try:
            with path.open("rb", buffering=0) as file:
                size_bytes = os.fstat(file.fileno()).st_size
                if size_bytes != self._sizes[name]:
                    raise CorruptData(f"{path} had {self._sizes[name]} bytes and now has {size_bytes}", path=str(path))
                read_whole(file.fileno(), start, into, path)
                if not kept.holds(FileVersion.of(os.fstat(file.fileno())), start, len(into)):
                    kept.read(file.fileno(), start, into)
        except PermissionError as error:
            raise cannot_open(path, error) from error
        except OSError as error:
            raise SourceUnavailable(f"{path} cannot be read: {error}", path=str(path)) from error

    async def aclose(self) -> None:
        """Do nothing: no file is kept open."""


def _source_file(name: str, path: Path, version: FileVersion, listed: ListedFile | None) -> SourceFile:
    return SourceFile(
        name,
        version.size_bytes,
        str(path.absolute()),
        str(version.modified_ns),
        content="" if listed is None else listed.content,
        encoding=None if listed is None else listed.encoding,
    )
