"""Compressed files: which compression a name means, and a reader of the bytes within.

`gz` is Python's own; `zstd` needs zstandard (`pip install 'epochal[compression]'`).
Every reader gives at most as many bytes as it is asked for, so that a file that unpacks to a thousand times its size
costs its reader nothing but the refusal.
"""

import gzip
import io
import zlib
from collections.abc import Callable
from typing import TypeAlias

from epochal.data_providers.protocol import CorruptData
from epochal.data_providers.waits import decoding
from epochal.state.errors import ExtraMissing
from epochal.state.reader_limits import MAX_ZSTD_WINDOW_BYTES

SUFFIXES = {".zst": "zstd", ".gz": "gz"}
"""The compression by a file's name."""
_ZSTD_PART_BYTES = 256
"""Packed bytes that are unpacked at a time: 8 MiB at most, as a block of 128 KiB may take four bytes."""
ZSTD_EXTRA = "pip install 'epochal[compression]'"

Opened: TypeAlias = tuple[tuple[type[BaseException], ...], Callable[[int], bytes]]
"""The errors of a decompressor, and its `read`."""


def compression_of(name: str) -> str | None:
    """Return the compression by a file's name, None for a plain file."""
    return next((kind for suffix, kind in SUFFIXES.items() if name.endswith(suffix)), None)


def stem_of(name: str) -> str:
    """Return a file's name without its compression's suffix."""
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


class Unpacked:
    """The content of a compressed file, in order. Errors of the decompressor are raised as `CorruptData`.

    Args:
        file: the compressed bytes, read from its beginning; closed with the reader.
        kind: from `compression_of`.
        place: of the file, for messages.
    """

    def __init__(self, file: io.BufferedReader, kind: str, place: str) -> None:
        self._file = file
        self._kind = kind
        self._place = place
        self._opened: Opened | None = None

    def read(self, size_bytes: int) -> bytes:
        """Return up to `size_bytes` further bytes; b"" at the end.

        Raises:
            InvalidInput: at the first read; a package that it needs is not installed.
            CorruptData: the file is damaged or cut off; the fault of the data's owner.
            DataError: what reading the compressed file raises.
        """
        failures: tuple[type[BaseException], ...] = (EOFError,)
        try:
            if self._opened is None:
                self._opened = _READERS[self._kind](self._file)
            failures, read = self._opened
            with decoding():
                return read(size_bytes)
        except failures as error:
            reason = str(error).partition("\n")[0]
            raise CorruptData(
                f"{self._place} cannot be unpacked as {self._kind}: {reason}", place=self._place
            ) from error
        except MemoryError as error:
            raise CorruptData(f"{self._place} needs too much memory to be unpacked", place=self._place) from error

    def close(self) -> None:
        self._file.close()


def _gz(packed: io.BufferedReader) -> Opened:
    if not packed.peek(1):
        raise EOFError("the file is empty")
    return (EOFError, zlib.error, gzip.BadGzipFile), gzip.GzipFile(fileobj=packed, mode="rb").read


def _zstd(packed: io.BufferedReader) -> Opened:
    try:
        import zstandard
    except ImportError as error:
        raise ExtraMissing(f"zstd files need zstandard: {ZSTD_EXTRA}") from error
    context = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES)
    frame, held = context.decompressobj(), memoryview(b"")

    def read(size_bytes: int) -> bytes:
        nonlocal frame, held
        while not held:
            # zstandard's own file reader takes a file that is cut off for a whole one.
            rest = frame.unused_data if frame.eof else b""
            more = rest or packed.read(_ZSTD_PART_BYTES)
            if not more:
                if not frame.eof:
                    raise EOFError("the file ends within a frame")
                return b""
            if frame.eof:
                frame = context.decompressobj()
            held = memoryview(frame.decompress(more))
        found, held = bytes(held[:size_bytes]), held[size_bytes:]
        return found

    return (zstandard.ZstdError, EOFError), read


_READERS: dict[str, Callable[[io.BufferedReader], Opened]] = {"gz": _gz, "zstd": _zstd}
