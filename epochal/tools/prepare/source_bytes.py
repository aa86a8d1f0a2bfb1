"""The bytes of a source file from its beginning to its end, decompressed, with bounded memory.

The rules kept here: what a compressed file expands to is delivered in pieces of the asked size, however small the file
is; an archive that ends in the middle, or whose checksum is wrong, is an error and never a shorter text.
"""

import contextlib
import gzip
import io
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from epochal.runtime.os_errors import reason_of
from epochal.state.errors import EpochalError, ExtraMissing, InvalidInput

ZSTD_INPUT_BYTES = 1024
"""Number of compressed bytes given to zstandard at a time: at most 32 MiB come out of them."""
GZIP_OUTPUT_BYTES = 32 * 1024
"""Maximum number of bytes decompressed at a time: what comes out before damage is delivered, but for so many."""
MAX_SPOOLED_BYTES = 64 * 1024**3
"""Maximum size of a compressed parquet file after decompression."""
SPOOLED_PART_BYTES = 1024**2
EXTRA = "pip install 'epochal[prepare]'"
Buffer = bytes | bytearray | memoryview


class RangeReader(Protocol):
    """A file that can be read by ranges. `size_bytes` is that of the whole file."""

    size_bytes: int

    def read(self, start: int, stop: int) -> bytes:
        """Return exactly the bytes `[start, stop)`. Raises `InvalidInput` or a `DataError`."""
        ...

    def close(self) -> None: ...


class BadFile(InvalidInput):
    """A source file does not match its name, or is truncated. The fault of its author."""


class RawFile(io.RawIOBase):
    """A range reader as a file object, for the libraries that decompress or parse. `at` bytes of it were read."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader
        self.at = 0
        self.furthest = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = max(0, offset + (0, self.at, self._reader.size_bytes)[whence])
        return self.at

    def tell(self) -> int:
        return self.at

    def read(self, size: int | None = -1) -> bytes:
        stop = self._reader.size_bytes if size is None or size < 0 else min(self.at + size, self._reader.size_bytes)
        found = self._reader.read(self.at, stop) if stop > self.at else b""
        self.at += len(found)
        self.furthest = max(self.furthest, self.at)
        return found

    def readinto(self, into: Any) -> int:
        view = memoryview(into).cast("B")
        found = self.read(len(view))
        view[: len(found)] = found
        return len(found)

    def close(self) -> None:
        """Close only this view: the reader stays open."""
        super().close()


class TextStream:
    """A source file's bytes in order, decompressed.

    Args:
        name: the file's name, for messages.
        reader: its bytes as they are stored.
        compression: `gz`, `zst` or "" for none.

    Raises:
        BadFile: the file is empty, and so no archive.
        InvalidInput: the package that decompresses it is not installed.
    """

    def __init__(self, name: str, reader: RangeReader, compression: str) -> None:
        self._name = name
        self._raw = RawFile(reader)
        self._size_bytes = reader.size_bytes
        self._is_compressed = bool(compression)
        if compression and not reader.size_bytes:
            raise BadFile(f"{name} is truncated: it is empty, and no archive", file=name)
        self._read: Callable[[int], bytes] = self._raw.read
        if compression == "gz":
            stream = gzip.GzipFile(fileobj=self._raw, mode="rb")
            self._read = lambda size: stream.read1(min(size, GZIP_OUTPUT_BYTES))
        elif compression == "zst":
            self._read = _Zstd(self._raw).read

    @property
    def stored_bytes(self) -> int:
        """The number of bytes that were read of the file as it is stored."""
        return self._raw.furthest

    def read(self, size: int) -> bytes:
        """Return the next bytes: at most `size`, and none at the end.

        Raises:
            BadFile: the file is not an archive of its kind, or is truncated or damaged; the earlier calls have
                returned what came before.
        """
        try:
            return self._read(size)
        except EOFError as error:
            reason = f"it ends in the middle of the archive ({self._size_bytes} bytes)"
            raise BadFile(f"{self._name} is truncated: {reason}", file=self._name) from error
        except (gzip.BadGzipFile, zlib.error, _ZstdDamaged) as error:
            raise BadFile(f"{self._name} cannot be decompressed: {error}", file=self._name) from error

    def skip(self, count: int) -> None:
        """Go on `count` bytes further: at once if the file is not compressed, else by decompressing them."""
        if not self._is_compressed:
            self._raw.seek(count, io.SEEK_CUR)
            return
        while count:
            found = self.read(min(count, 1024**2))
            if not found:
                raise BadFile(f"{self._name} is shorter than when the preparation began", file=self._name)
            count -= len(found)


class DecompressedReader:
    """The ranges of a compressed file, which is decompressed into a file without a name.

    Args:
        name: the file's name, for messages.
        stream: its bytes, decompressed, from the beginning.
        folder: on whose disk the decompressed file lies until `close`, or until this process ends.

    Raises:
        BadFile: it is damaged, or expands to more than `MAX_SPOOLED_BYTES`.
        EpochalError: the disk is full or fails; the same call continues later.
    """

    def __init__(self, name: str, stream: TextStream, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self.size_bytes = 0
        try:
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (`close` closes it)
        except OSError as error:
            raise self._failed(error) from error
        try:
            self._fill(stream)
        except BaseException:
            self.close()
            raise

    def read(self, start: int, stop: int) -> bytes:
        """Return exactly the bytes `[start, stop)`."""
        try:
            self._file.seek(start)
            return self._file.read(stop - start)
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the decompressed file, which is then gone."""
        with contextlib.suppress(OSError):  # what was not written yet is not needed
            self._file.close()

    def _fill(self, stream: TextStream) -> None:
        while found := stream.read(SPOOLED_PART_BYTES):
            self.size_bytes += len(found)
            if self.size_bytes > MAX_SPOOLED_BYTES:
                most = f"at most {MAX_SPOOLED_BYTES}; decompress it before"
                raise BadFile(f"{self._name} expands to more bytes than are decompressed: {most}", file=self._name)
            self._write(found)
        self._write(b"")

    def _write(self, found: bytes) -> None:
        try:
            self._file.write(found)
            if not found:
                self._file.flush()
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> EpochalError:
        message = f"{self._name} cannot be decompressed into {self._folder}: {reason_of(error)}"
        return EpochalError(f"{message}; the same command resumes where this one stopped", path=str(self._folder))


class _ZstdDamaged(Exception):
    """zstandard's error, whose class is only there with the package."""


class _Zstd:
    """Frames of Zstandard, one after the other."""

    def __init__(self, raw: RawFile) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise ExtraMissing(f"files in .zst need the zstandard package: {EXTRA}") from error
        self._zstandard = zstandard
        self._raw = raw
        self._input: Any = io.BufferedReader(raw, 256 * 1024)
        self._frame: Any = None
        self._began = False
        self._left = b""
        self._out = memoryview(b"")

    def read(self, size: int) -> bytes:
        while not self._out:
            found = self._left or self._input.read(ZSTD_INPUT_BYTES)
            self._left = b""
            if not found:
                if self._frame is not None or not self._began:
                    raise EOFError
                return b""
            self._began = True
            self._out = memoryview(self._decompressed(found))
        taken = bytes(self._out[:size])
        self._out = self._out[size:]
        return taken

    def _decompressed(self, found: bytes) -> bytes:
        if self._frame is None:
            self._frame = self._zstandard.ZstdDecompressor().decompressobj()
        try:
            out: bytes = self._frame.decompress(found)
        except self._zstandard.ZstdError as error:
            raise _ZstdDamaged(str(error)) from error
        if self._frame.eof:
            self._left, self._frame = self._frame.unused_data, None
        return out
