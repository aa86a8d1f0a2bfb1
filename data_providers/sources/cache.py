"""A folder of blocks of files, which several processes share.

Files are kept in aligned blocks, each a file of its own: the SHA-256 of every `CHUNK_BYTES` of it, then its bytes. Such
a file is written beside the others and renamed once it is whole, so that a process that is killed leaves no part of a
block. A block's bytes are used only if the hashes of their chunks are right; otherwise it is fetched again. Only the
chunks that are needed are read and hashed. At the limit the least recently used blocks are deleted.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from epochal.state.errors import InvalidInput

BLOCK_BYTES = 256 * 1024
"""A miss fetches whole blocks: at most the sample's own bytes and two blocks."""
CHUNK_BYTES = 16 * 1024
"""Length of what one hash covers: a read of less hashes this much."""
DEFAULT_CACHE_BYTES = 16 * 1024**3
MIN_CACHE_BYTES = 64 * BLOCK_BYTES
EVICT_TO_PERCENT = 80
UNCOUNTED_PERCENT = 10
"""Part of the limit that a process writes before it counts the folder again: others write there too."""
USED_AGAIN_S = 60.0
"""A block's time of last use is not renewed before it is this old."""
FORMAT = "4"
"""Version of the layout; a part of every key."""
_DIGEST_BYTES = 32


class BlockCache:
    """A folder of blocks with a limit in bytes, shared by any number of processes. Its methods block, and may overlap.

    Raises:
        InvalidInput: the folder cannot be used, or the limit is below `MIN_CACHE_BYTES`; the user's fault.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        if max_bytes < MIN_CACHE_BYTES:
            raise InvalidInput(f"a data cache of {max_bytes} bytes; allowed: {MIN_CACHE_BYTES} or more")
        self.folder = folder
        self.max_bytes = max_bytes
        self._root = str(folder)
        self._uncounted_bytes = 0
        self._numbers = count()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._make_room()
        except OSError as error:
            raise InvalidInput(f"data cache {folder}: {error.strerror or error}", path=str(folder)) from error

    def read_into(self, key: str, size_bytes: int, start: int, into: memoryview) -> bool:
        """Fill the destination with a block's bytes from `start` on, and return whether it is held, and intact.

        Args:
            key: of the block.
            size_bytes: of the whole block.
            start: place in the block.
            into: where the bytes go; it may hold wrong ones if they are not intact.
        """
        path = self._path(key)
        try:
            held = os.open(path, os.O_RDONLY)
        except OSError:
            return False
        try:
            if _read_chunks(held, size_bytes, start, into):
                if time.time() - os.fstat(held).st_mtime > USED_AGAIN_S:
                    os.utime(held)
                return True
            os.unlink(path)
        except OSError:
            pass
        finally:
            os.close(held)
        return False

    def get(self, key: str) -> bytes | None:
        """Return the whole of what was `put` under a key; None if it is not held, or damaged."""
        try:
            file_bytes = os.stat(self._path(key)).st_size
        except OSError:
            return None
        found = bytearray(file_bytes - -(-file_bytes // (CHUNK_BYTES + _DIGEST_BYTES)) * _DIGEST_BYTES)
        return bytes(found) if self.read_into(key, len(found), 0, memoryview(found)) else None

    def put(self, key: str, data: memoryview) -> None:
        """Keep a block. Errors of the disk are ignored: they cost only the caching."""
        with contextlib.suppress(OSError):
            self._uncounted_bytes += len(data)
            if self._uncounted_bytes * 100 > self.max_bytes * UNCOUNTED_PERCENT:
                self._make_room()
            path = self._path(key)
            name = f"{path}-{os.getpid()}-{next(self._numbers)}"
            try:
                incoming = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                incoming = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                os.writev(incoming, [_digests_of(data), data])
                os.rename(name, path)
            except OSError:
                os.unlink(name)
                raise
            finally:
                os.close(incoming)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key[:2]}/{key}"

    def _entries(self) -> Iterator[tuple[float, int, str]]:
        """Yield time of last use, size, and path of every block, and of what killed processes have left."""
        with os.scandir(self._root) as folders:
            names = [folder.path for folder in folders if len(folder.name) == 2 and folder.is_dir()]
        for name in names:
            with os.scandir(name) as files:
                for file in files:
                    with contextlib.suppress(FileNotFoundError):  # another process has just deleted it
                        found = file.stat()
                        yield found.st_mtime, found.st_size, file.path

    def _make_room(self) -> None:
        """Delete the least recently used blocks until there is room for those that are not counted."""
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        if total * 100 > self.max_bytes * EVICT_TO_PERCENT:
            for _, size, path in entries:
                if total * 100 <= self.max_bytes * EVICT_TO_PERCENT:
                    break
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                total -= size
        self._uncounted_bytes = 0


def _read_chunks(held: int, size_bytes: int, start: int, into: memoryview) -> bool:
    """Fill `into` with bytes of an open block, and return whether their hashes are right."""
    first, last = start // CHUNK_BYTES, -(-(start + len(into)) // CHUNK_BYTES)
    begin, end = first * CHUNK_BYTES, min(last * CHUNK_BYTES, size_bytes)
    is_whole = (begin, end) == (start, start + len(into))
    body = into if is_whole else memoryview(bytearray(end - begin))
    head_bytes = -(-size_bytes // CHUNK_BYTES) * _DIGEST_BYTES
    if os.preadv(held, [body], head_bytes + begin) != len(body):
        return False
    if _digests_of(body) != os.pread(held, (last - first) * _DIGEST_BYTES, first * _DIGEST_BYTES):
        return False
    if not is_whole:
        into[:] = body[start - begin : start - begin + len(into)]
    return True


def _digests_of(body: memoryview) -> bytes:
    """Return the SHA-256 of each chunk, one after the other."""
    chunks = range(0, len(body), CHUNK_BYTES)
    return b"".join(hashlib.sha256(body[at : at + CHUNK_BYTES]).digest() for at in chunks)
