"""Files on this machine as a `ByteSource`: one file, or a folder with those below it.

A file is read and not mapped, so that a truncated one is an error and does not end the process. It must keep its size
and its time of modification, which are compared before and after each read.
"""

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Self

from data_providers.local_manifest import contents_in, encodings_in, listed_beside, listed_in_folder
from data_providers.local_places import FileVersion, cannot_open, files_below
from data_providers.protocol import CorruptData, SourceUnavailable
from data_providers.sources.manifest import MANIFEST_NAME
from data_providers.sources.protocol import SourceFile


class LocalSource:
    """A `ByteSource` over files by their paths. Make one with `open`."""

    def __init__(
        self,
        location: str,
        paths: Mapping[str, Path],
        files: Sequence[SourceFile],
        versions: Mapping[str, FileVersion],
    ) -> None:
        self.location = location
        self.files = files
        self._paths = paths
        self._versions = versions

    @classmethod
    def open(cls, path: Path) -> Self:
        """List one file, or the files of a folder and of those below it, hidden ones left out. Blocks.

        Manifests name their contents, and some blocks are compared with them.

        Raises:
            SourceUnavailable: the files cannot be listed now; retry.
            Rejected: there is no such path, this user may not read it, or it holds too many files.
            CorruptData: a manifest is damaged, or a file differs from it; the fault of the data's owner.
        """
        try:
            if path.is_dir():
                found = dict(files_below(path))
                manifest = listed_in_folder(path, found)
            else:
                found = {path.name: path}
                manifest = listed_beside(path.with_name(MANIFEST_NAME), path)
            contents, encodings = contents_in(manifest), encodings_in(manifest)
            versions = {name: FileVersion.of(file.stat()) for name, file in found.items()}
            files = [
                SourceFile(
                    name,
                    versions[name].size_bytes,
                    place=str(file.absolute()),
                    version=str(versions[name].modified_ns),
                    content=contents.get(name, ""),
                    encoding=encodings.get(name),
                )
                for name, file in found.items()
            ]
        except OSError as error:
            raise cannot_open(path, error) from error
        return cls(str(path), found, files, versions)

    def only(self, names: Collection[str]) -> Self:
        """Return a source of these files alone."""
        kept = set(names)
        files = [file for file in self.files if file.name in kept]
        return type(self)(self.location, self._paths, files, self._versions)

    def path_of(self, name: str) -> Path:
        """Return the path of a file. Raise `CorruptData` if it changed, and `OSError` if it cannot be found."""
        path = self._paths[name]
        self._versions[name].check(path, path.stat())
        return path

    async def read_into(self, name: str, start: int, into: memoryview) -> None:
        """Fill `into` with the file's bytes, as `ByteSource.read_into`."""
        await asyncio.to_thread(self._read, name, start, into)

    def _read(self, name: str, start: int, into: memoryview) -> None:
        path = self._paths[name]
        try:
            with path.open("rb", buffering=0) as file:
                self._versions[name].check(path, os.fstat(file.fileno()))
                file.seek(start)
                filled = 0
                while filled < len(into):
                    count = file.readinto(into[filled:])
                    if not count:
                        raise CorruptData(f"{path} ends at byte {start + filled}; it was longer", path=str(path))
                    filled += count
                self._versions[name].check(path, os.fstat(file.fileno()))
        except OSError as error:
            raise SourceUnavailable(f"{path} cannot be read: {error}", path=str(path)) from error

    async def aclose(self) -> None:
        """Do nothing: no file is kept open."""
