"""Files on this machine as a `ByteSource`: one file, or a folder with those below it.

A file is read and not mapped, so that a truncated one is an error and does not end the process. It must keep its size.
"""

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Self

from data_providers.local_manifest import contents_in, encodings_in, listed_beside, listed_in_folder
from data_providers.local_places import cannot_open, files_below
from data_providers.protocol import CorruptData, SourceUnavailable
from data_providers.sources.manifest import MANIFEST_NAME
from data_providers.sources.protocol import SourceFile


class LocalSource:
    """A `ByteSource` over files by their paths. Make one with `open`."""

    def __init__(self, location: str, paths: Mapping[str, Path], files: Sequence[SourceFile]) -> None:
        self.location = location
        self.files = files
        self._paths = paths
        self._sizes = {file.name: file.size_bytes for file in files}

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
            files = []
            for name, file in found.items():
                about = file.stat()
                version, content, encoding = str(about.st_mtime_ns), contents.get(name, ""), encodings.get(name)
                place = str(file.absolute())
                files.append(SourceFile(name, about.st_size, place, version, content=content, encoding=encoding))
        except OSError as error:
            raise cannot_open(path, error) from error
        return cls(str(path), found, files)

    def only(self, names: Collection[str]) -> Self:
        """Return a source of these files alone."""
        kept = set(names)
        return type(self)(self.location, self._paths, [file for file in self.files if file.name in kept])

    def path_of(self, name: str) -> Path:
        """Return the path of a file."""
        return self._paths[name]

    async def read_into(self, name: str, start: int, into: memoryview) -> None:
        """Fill `into` with the file's bytes, as `ByteSource.read_into`."""
        await asyncio.to_thread(self._read, name, start, into)

    def _read(self, name: str, start: int, into: memoryview) -> None:
        path = self._paths[name]
        try:
            with path.open("rb", buffering=0) as file:
                size_bytes = os.fstat(file.fileno()).st_size
                if size_bytes != self._sizes[name]:
                    raise CorruptData(f"{path} had {self._sizes[name]} bytes and now has {size_bytes}", path=str(path))
                file.seek(start)
                filled = 0
                while filled < len(into):
                    count = file.readinto(into[filled:])
                    if not count:
                        raise CorruptData(f"{path} ends at byte {start + filled}; it was longer", path=str(path))
                    filled += count
        except OSError as error:
            raise SourceUnavailable(f"{path} cannot be read: {error}", path=str(path)) from error

    async def aclose(self) -> None:
        """Do nothing: no file is kept open."""
