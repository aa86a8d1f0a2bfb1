"""Files on this machine that must stay what they are while a run reads them.

Local files are not hashed as they are read: that would take longer than reading them. But the system says when a file
was changed (`FileVersion`), and from then on each block of a file that a manifest lists is compared with its hash
before a byte of it is used. So a file that was put back to its true content is read again, a block with any other
content is an error, and each block is compared once after each change. Of a file that no manifest lists, only name and
size belong to the data's fingerprint, so nobody knows whether the new bytes are right: they are read, with a warning.
"""

import logging
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from epochal.data_providers.protocol import CorruptData, SourceUnavailable
from epochal.data_providers.sources.manifest import ListedFile, block_hash

log = logging.getLogger(__name__)

SETTLED_NS = 2 * 10**9
"""A younger change may be followed by another one at the same time, as file systems count it: FAT counts 2 s."""
MAX_ATTEMPTS = 4
"""Maximum number of times that bytes are read of a file that changes meanwhile."""
MAX_WARNINGS = 8
"""Maximum number of warnings for one file, however often it changes."""


class FileVersion(NamedTuple):
    """The version of a file as the system reports it: equal for a file that was not written between."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> Self:
        """Return the version of what `stat` or `fstat` found."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def is_settled(self) -> bool:
        """Return whether a later change is sure to have another version."""
        return time.time_ns() - self.changed_ns > SETTLED_NS


class KeptFile:
    """One file, and which of its bytes are known to be what the manifest says. Its methods may be called in threads.

    Args:
        path: of the file.
        version: as it was before the file was compared with the manifest.
        listed: its entry in the manifest; None without one.
    """

    def __init__(self, path: Path, version: FileVersion, listed: ListedFile | None = None) -> None:
        self.path = path
        self._listed = listed
        self._version = version
        self._compared: set[int] | None = None if listed is None or version.is_settled() else set()
        """The blocks that were compared in this version; None: none needs to be."""
        self._warnings = 0
        self._lock = threading.Lock()

    def holds(self, found: FileVersion, offset: int, length: int) -> bool:
        """Return whether bytes that were read before the file was found in this version need no further check."""
        with self._lock:
            if found != self._version:
                return False
            return self._compared is None or self._compared.issuperset(self._blocks(offset, length))

    def read(self, fd: int, offset: int, into: memoryview) -> None:
        """Fill `into` with the file's bytes from `offset` on, compared with the manifest. Blocks.

        Raises:
            CorruptData: they are not what the manifest says, or the file ends before; the fault of who changed it.
            SourceUnavailable: the file changes again and again; retry.
            OSError: it cannot be read.
        """
        for _ in range(MAX_ATTEMPTS):
            found = FileVersion.of(os.fstat(fd))
            self._notice(found)
            if self._listed is not None:
                self._read_compared(fd, offset, into, found, self._listed)
                return
            read_whole(fd, offset, into, self.path)
            if FileVersion.of(os.fstat(fd)) == found:
                return
        raise SourceUnavailable(f"{self.path} changed {MAX_ATTEMPTS} times while it was read", path=str(self.path))

    def _notice(self, found: FileVersion) -> None:
        with self._lock:
            if found == self._version:
                return
            self._version = found
            self._compared = None if self._listed is None else set()
            self._warnings += 1
            if self._warnings > MAX_WARNINGS:
                return
        if self._listed is not None:
            note = "each block is compared with the manifest before it is used"
        else:
            note = (
                "no manifest says what it holds: it is read as it is now; `epochal data manifest` writes one, "
                "by which changed data are refused"
            )
        log.warning("data_file_changed", extra={"path": str(self.path), "note": note})

    def _read_compared(self, fd: int, offset: int, into: memoryview, found: FileVersion, listed: ListedFile) -> None:
        blocks = self._blocks(offset, len(into))
        block = np.empty(listed.block_bytes, np.uint8).data
        for number in blocks:
            begin = number * listed.block_bytes
            body = block[: min(listed.block_bytes, listed.size_bytes - begin)]
            read_whole(fd, begin, body, self.path)
            check_block(self.path, listed, number, body)
            first, last = max(offset, begin), min(offset + len(into), begin + len(body))
            into[first - offset : last - offset] = body[first - begin : last - begin]
        with self._lock:
            if self._compared is not None and self._version == found and found.is_settled():
                self._compared.update(blocks)

    def _blocks(self, offset: int, length: int) -> range:
        """Return the numbers of the blocks that hold a range of a listed file."""
        size = self._listed.block_bytes if self._listed is not None else 1
        return range(offset // size, -(-(offset + length) // size))


def check_block(path: Path, listed: ListedFile, number: int, body: bytes | memoryview) -> None:
    """Raise `CorruptData` unless a block of a file has the hash in the manifest."""
    held, wanted = block_hash(body), listed.hash_of(number)
    if held != wanted:
        raise CorruptData(
            f"{path}: block {number} of {listed.block_bytes} bytes differs from the manifest: its hash is "
            f"{held.hex()}, and the manifest says {wanted.hex()}; put the file back as it was, or, if it is meant to "
            "be another one now, write the manifest again: `epochal data manifest`",
            path=str(path),
        )


def read_whole(fd: int, offset: int, into: memoryview, path: Path) -> None:
    """Fill `into` with a file's bytes from `offset` on; `CorruptData` if the file ends before. Blocks."""
    begin = 0
    while begin < len(into):
        count = os.preadv(fd, [into[begin:]], offset + begin)
        if not count:
            raise CorruptData(f"{path} ends at byte {os.fstat(fd).st_size}; it was longer", path=str(path))
        begin += count
