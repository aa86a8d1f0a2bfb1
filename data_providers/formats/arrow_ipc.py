"""Arrow's IPC files (Feather version 2) and streams: the places of their record batches, without reading them.

A file is `ARROW1`, a stream, and a footer that is not needed; a stream is the schema and record batches, each with a
small head that says how many rows and bytes it has (arrow.apache.org, "Arrow Columnar Format"). The heads are read
here, byte by byte with bounds, because pyarrow gives row counts only with the data; pyarrow reads the batches.
"""

import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

from epochal.data_providers.formats import columns
from epochal.data_providers.formats.columns import as_ours, pyarrow, too_large
from epochal.data_providers.protocol import CorruptData
from epochal.state.reader_limits import MAX_ARROW_BATCHES, MAX_ARROW_HEAD_BYTES

FILE_MAGIC = b"ARROW1\0\0"
FEATHER_V1_MAGIC = b"FEA1"
_CONTINUES = b"\xff\xff\xff\xff"
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_BUFFER = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class ArrowBatch:
    """A record batch: its first byte in the file, and its rows."""

    offset: int
    rows: int


class _Flat:
    """A table of a flatbuffer; reading beyond the buffer raises `struct.error`, which callers turn into ours."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - self._number("<i", at)
        self._size = self._number("<H", self._fields)

    def _number(self, kind: str, at: int) -> int:
        if at < 0:
            raise struct.error("a place before the beginning")
        found: int = struct.unpack_from(kind, self._data, at)[0]
        return found

    def _place(self, field: int) -> int | None:
        at = 4 + 2 * field
        offset = self._number("<H", self._fields + at) if at + 2 <= self._size else 0
        return self._at + offset if offset else None

    def number(self, field: int, kind: str) -> int:
        place = self._place(field)
        return 0 if place is None else self._number(kind, place)

    def table(self, field: int) -> "_Flat | None":
        place = self._place(field)
        return None if place is None else _Flat(self._data, place + self._number("<I", place))

    def buffers(self, field: int) -> list[tuple[int, int]]:
        place = self._place(field)
        if place is None:
            return []
        begin = place + self._number("<I", place)
        count = self._number("<I", begin)
        if begin + 4 + count * _BUFFER.size > len(self._data):
            raise struct.error("a list beyond the end")
        return [_BUFFER.unpack_from(self._data, begin + 4 + number * _BUFFER.size) for number in range(count)]


def batches_of(file: BinaryIO, size_bytes: int, place: str) -> tuple[Any, list[ArrowBatch]]:
    """Return a file's schema, and the places of its record batches.

    Raises:
        CorruptData: it is no Arrow file, is cut off, or has columns that are encoded by dictionaries.
        DataError: what reading the file raises.
    """
    arrow = pyarrow()
    begin = file.read(len(FILE_MAGIC))
    if begin.startswith(FEATHER_V1_MAGIC):
        raise CorruptData(f"{place} is Feather version 1; write it again as version 2", path=place)
    is_file = begin == FILE_MAGIC
    at = len(FILE_MAGIC) if is_file else 0
    schema: Any = None
    found: list[ArrowBatch] = []
    try:
        while True:
            head, body_at = _head(file, at, size_bytes, place, is_file=is_file)
            if not head:
                break
            message = _Flat(head, struct.unpack_from("<I", head)[0])
            kind, body_bytes = message.number(1, "<B"), message.number(3, "<q")
            if not 0 <= body_bytes <= size_bytes - body_at:
                raise CorruptData(f"{place} is cut off: the part at byte {at} has {body_bytes} bytes", path=place)
            if kind == _SCHEMA and schema is None:
                file.seek(at)
                schema = arrow.ipc.read_schema(arrow.ipc.read_message(file))
            elif kind == _BATCH and schema is not None:
                batch = message.table(2)
                rows = -1 if batch is None else batch.number(0, "<q")
                if not 0 <= rows <= columns.MAX_ROW_GROUP_BYTES:
                    raise CorruptData(f"{place}: record batch {len(found)} has {rows} rows", path=place)
                found.append(ArrowBatch(at, rows))
            else:
                what = "columns that are encoded by a dictionary" if kind == _DICTIONARY else f"a part of kind {kind}"
                raise CorruptData(f"{place} has {what}; not supported", path=place)
            if len(found) > MAX_ARROW_BATCHES:
                raise CorruptData(f"{place} has more than {MAX_ARROW_BATCHES} record batches", path=place)
            at = body_at + body_bytes
    except (arrow.ArrowException, struct.error, ValueError, OSError) as error:
        raise as_ours(error, place, "is not an Arrow file") from error
    if schema is None:
        raise CorruptData(f"{place} is not an Arrow file", path=place)
    return schema, found


def _head(file: BinaryIO, at: int, size_bytes: int, place: str, *, is_file: bool) -> tuple[bytes, int]:
    """Return the head of the part at this byte, and where its body begins; nothing at the end."""
    if at == size_bytes and not is_file:
        return b"", at  # a stream may end without an end mark
    file.seek(at)
    start = file.read(8)
    if len(start) < 8 or start[:4] != _CONTINUES:
        raise CorruptData(f"{place} is not an Arrow file, or is cut off, at byte {at}", path=place)
    length = int.from_bytes(start[4:], "little", signed=True)
    if not 0 <= length <= min(MAX_ARROW_HEAD_BYTES, size_bytes - at - 8):
        raise CorruptData(
            f"{place} has a head of {length} bytes at byte {at}; at most {MAX_ARROW_HEAD_BYTES}", path=place
        )
    head = file.read(length)
    if len(head) != length:
        raise CorruptData(f"{place} is cut off at byte {at}", path=place)
    return head, at + 8 + length


def read_batch(file: Any, batch: ArrowBatch, schema: Any, number: int, place: str) -> Any:
    """Return a record batch, with its sizes checked before they are decompressed.

    Raises:
        CorruptData: it has another number of rows than when the file was opened, or takes too much memory.
        ArrowException, ValueError, OSError: what pyarrow raises, for `as_ours`.
    """
    arrow = pyarrow()
    file.seek(batch.offset)
    message = arrow.ipc.read_message(file)
    head, body = message.metadata.to_pybytes(), message.body or b""
    try:
        _check_size(_Flat(head, struct.unpack_from("<I", head)[0]).table(2), memoryview(body), number, place)
    except struct.error as error:
        raise ValueError(f"record batch {number}: {error}") from error
    found = arrow.ipc.read_record_batch(message, schema)
    found.validate(full=True)  # pyarrow trusts the offsets otherwise
    if found.num_rows != batch.rows:
        raise CorruptData(f"{place} changed: a record batch had {batch.rows} rows", path=place)
    return found


def _check_size(batch: _Flat | None, body: memoryview, number: int, place: str) -> None:
    """Raise `CorruptData` if the buffers of a batch are larger than allowed, or beyond its end."""
    is_compressed = batch is not None and batch.table(3) is not None
    taken_bytes = 0
    for offset, length in () if batch is None else batch.buffers(2):
        if offset < 0 or length < 0 or offset + length > len(body):
            raise CorruptData(f"{place}: record batch {number} points beyond its end", path=place)
        if is_compressed and length >= 8:
            said = int.from_bytes(body[offset : offset + 8], "little", signed=True)
            length = said if said >= 0 else length  # -1: not compressed after all
        taken_bytes += length
    if taken_bytes > columns.MAX_ROW_GROUP_BYTES:
        raise too_large(place, number, taken_bytes)
