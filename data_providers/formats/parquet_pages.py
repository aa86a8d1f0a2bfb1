"""The sizes that a parquet file claims, checked before pyarrow takes memory for them.

A page of a few bytes may expand to any number of values (run lengths, dictionaries, prefixes), and pyarrow makes room
for what a page claims. So the footer and the heads of the pages that are about to be decoded are parsed here, with
bounds: pyarrow shows no heads of pages, and ends the process over some damaged footers when it is asked for a column's
(github.com/apache/arrow/issues/45283). Source: parquet.apache.org, "File Format"; Thrift's compact protocol.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from epochal.data_providers.formats import columns as row_columns
from epochal.data_providers.formats.columns import INPUTS, too_large
from epochal.data_providers.protocol import CorruptData
from epochal.data_providers.sources.range_file import SeekableFile
from epochal.state.reader_limits import MAX_COLUMN_CHUNKS, MAX_COLUMN_DEPTH, MAX_PARQUET_FOOTER_BYTES, MAX_THRIFT_DEPTH

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAGIC = b"PAR1"
_TAIL_BYTES = 64 * 1024
"""Number of last bytes that are read first, as pyarrow does: they hold most footers."""
_MAX_GAP_BYTES = 64 * 1024
"""Columns that are this near to each other are read as one range."""
_PADDING_BYTES = 100
"""pyarrow reads so many bytes more of columns that early versions of another library wrote (PARQUET-816)."""
_BYTE_ARRAY, _FIXED_BYTES = 6, 7
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8, _BYTE_ARRAY: 4}
"""Bytes of a value in memory, by its physical type; of texts those of a place in a dictionary."""
_LEVEL_BYTES = 4
"""Bytes in memory of the two levels of a value in a list: however short values are, they are counted as so many."""
_DICTIONARY_PAGE = 2
_DELTA_BYTE_ARRAY = 7

_I32, _I64, _BYTES, _LIST, _STRUCT = 5, 6, 8, 9, 12
"""Thrift's kinds of values that are kept."""
_BITS = {4: 16, _I32: 32, _I64: 64}
"""Bits of the kinds of whole numbers."""
Wanted: TypeAlias = Mapping[int, Any]
"""The fields to keep of a Thrift struct, by number: each with its kind, those of a struct, or a list of one of them."""
_CHUNK: Wanted = {5: _I64, 7: _I64, 9: _I64, 11: _I64}
_FOOTER: Wanted = {2: [{1: _I32, 2: _I32, 4: _BYTES, 5: _I32}], 4: [{1: [{3: _CHUNK}]}]}
_PAGE: Wanted = {1: _I32, 2: _I32, 3: _I32, 5: {1: _I32, 2: _I32}, 8: {1: _I32, 4: _I32}}
_HEADS = {0: (5, 2), 3: (8, 4)}
"""The field that is the head of a page of data, and in it the one of its encoding, by the page's type."""


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """One column of a row group.

    Attributes:
        path: the column's name, and those of the fields within.
        width_bytes: of a value in memory.
        start, stop: its bytes in the file.
        value_count: number of values that the footer claims, nulls and empty lists among them.
    """

    path: tuple[str, ...]
    width_bytes: int
    is_text: bool
    start: int
    stop: int
    value_count: int


class _Thrift:
    """A reader of Thrift's compact protocol. It keeps only what is wanted; beyond the end it raises `IndexError`.

    The rule kept here: it reads nothing in another way than pyarrow does. Where pyarrow's reader skips a value of
    another kind, takes the last one of several, or cuts a number off, this one raises `ValueError`.
    """

    def __init__(self, data: bytes | memoryview, at: int = 0) -> None:
        self._data = data
        self.at = at

    def struct(self, wanted: Wanted, depth: int = 0) -> dict[int, Any]:
        """Return the wanted fields of a struct."""
        if depth > MAX_THRIFT_DEPTH:
            raise ValueError(f"more than {MAX_THRIFT_DEPTH} levels")
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._whole(16)
            if number >> 15 or number in found:
                raise ValueError(f"the field {number} twice, or a number that no field has")
            kind = head & 0x0F
            if number in wanted:
                found[number] = self._kept(kind, wanted[number], depth)
            else:
                self._pass(kind, depth)
        return found

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _varint(self, bits: int) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 0x7F) << shift
            if found >> bits:
                raise ValueError(f"a number of more than {bits} bits")
            if byte < 0x80:
                return found
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 10 bytes")

    def _whole(self, bits: int) -> int:
        number = self._varint(bits)
        return (number >> 1) ^ -(number & 1)

    def _skip(self, count: int) -> int:
        self.at += count
        if self.at > len(self._data):
            raise IndexError("beyond the end")
        return self.at - count

    def _kept(self, kind: int, wanted: Any, depth: int) -> Any:
        expected = _STRUCT if isinstance(wanted, Mapping) else _LIST if isinstance(wanted, list) else wanted
        if kind != expected:
            raise ValueError(f"a value of kind {kind} in the place of one of kind {expected}")
        if kind == _STRUCT:
            return self.struct(wanted, depth + 1)
        if kind == _BYTES:
            start = self._skip(self._varint(32))
            return bytes(self._data[start : self.at])
        if kind != _LIST:
            return self._whole(_BITS[kind])
        count, kind = self._list_head(depth)
        if count > MAX_COLUMN_CHUNKS:
            raise ValueError(f"a list of {count} parts; at most {MAX_COLUMN_CHUNKS}")
        return [self._kept(kind, wanted[0], depth + 1) for _ in range(count)]

    def _list_head(self, depth: int) -> tuple[int, int]:
        """Return the number of a list's values, and their kind."""
        if depth > MAX_THRIFT_DEPTH:
            raise ValueError(f"more than {MAX_THRIFT_DEPTH} levels")
        head = self._byte()
        return (self._varint(32) if head >> 4 == 15 else head >> 4), head & 0x0F

    def _pass(self, kind: int, depth: int, *, is_listed: bool = False) -> None:
        """Pass over a value."""
        if kind in (1, 2):  # true or false, without a byte of its own outside of lists
            self._skip(int(is_listed))
        elif kind == 3:
            self._skip(1)
        elif kind in _BITS:
            self._varint(64)
        elif kind == 7:
            self._skip(8)
        elif kind == _BYTES:
            self._skip(self._varint(32))
        elif kind in (_LIST, 10):
            count, within = self._list_head(depth)
            for _ in range(count):
                self._pass(within, depth + 1, is_listed=True)
        elif kind == _STRUCT:
            self.struct({}, depth + 1)
        else:
            raise ValueError(f"a value of kind {kind}")  # maps, too: parquet has none


def tail_of(file: SeekableFile, place: str) -> bytes:
    """Return the end of a parquet file, with its whole footer: all that pyarrow reads to open it.

    Raises:
        CorruptData: the file does not end like one, or has a larger footer than allowed.
        DataError, OSError: what reading the file raises.
    """
    tail = _bytes_of(file, max(0, file.size() - _TAIL_BYTES), file.size())
    length = _footer_bytes(tail)
    if len(tail) < 12 or tail[-4:] != MAGIC or length > file.size() - 12:
        raise CorruptData(f"{place} is not a parquet file: it does not end like one", path=place)
    if length > MAX_PARQUET_FOOTER_BYTES:
        raise CorruptData(
            f"{place} has a footer of {length} bytes; at most {MAX_PARQUET_FOOTER_BYTES}: write larger row groups",
            path=place,
        )
    if length + 8 > len(tail):
        tail = _bytes_of(file, file.size() - 8 - length, file.size() - len(tail)) + tail
    return tail


def _footer_bytes(tail: bytes) -> int:
    return int.from_bytes(tail[-8:-4], "little")


def chunks_of(tail: bytes, file_bytes: int, place: str) -> list[list[StoredColumn]]:
    """Return the column chunks of each row group of a parquet file.

    Args:
        tail: from `tail_of`.
        file_bytes: size of the file.
        place: of the file, for messages.

    Raises:
        CorruptData: the file has no readable footer, or a chunk that is beyond its end.
    """
    try:
        footer = _Thrift(tail[-8 - _footer_bytes(tail) : -8]).struct(_FOOTER)
        leaves = list(_leaves_of(footer.get(2, ())))
        groups = [
            [_chunk(column[3], leaf, file_bytes) for column, leaf in zip(group.get(1, ()), leaves, strict=True)]
            for group in footer.get(4, ())
        ]
    except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptData(f"{place} is not a parquet file: its footer: {error}", path=place) from error
    if sum(map(len, groups)) > MAX_COLUMN_CHUNKS:
        raise CorruptData(f"{place} has more than {MAX_COLUMN_CHUNKS} columns in all its row groups", path=place)
    return groups


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column of the schema, by which pyarrow decodes it, whatever a row group declares."""

    path: tuple[str, ...]
    kind: int
    length: int


def _leaves_of(schema: Sequence[dict[int, Any]]) -> Iterator[_Leaf]:
    """Yield the columns of a schema, which lists each group before its fields."""
    above: list[list[Any]] = []  # the groups that the next element is in, each with the number of fields to come
    for element in schema:
        name, fields = element[4].decode(), element.get(5, 0)
        while above and not above[-1][1]:
            above.pop()
        if above:
            above[-1][1] -= 1
        if fields or 1 not in element:
            above.append([name, fields])
            if len(above) > MAX_COLUMN_DEPTH:
                raise ValueError(f"columns of more than {MAX_COLUMN_DEPTH} levels")
        else:
            path = (*(group for group, _ in above[1:]), name)
            yield _Leaf(path, element[1], element.get(2, 0))


def _bytes_of(file: SeekableFile, start: int, stop: int) -> bytes:
    file.seek(start)
    found = bytearray()
    while len(found) < stop - start and (part := file.read(stop - start - len(found))):
        found += part
    return bytes(found)


def _chunk(metadata: dict[int, Any], leaf: _Leaf, file_bytes: int) -> StoredColumn:
    start, count = metadata[9], metadata[5]
    if 0 < metadata.get(11, 0) < start:
        start = metadata[11]
    stop = start + metadata[7]
    if not 0 <= start <= stop <= file_bytes or count < 0:
        raise ValueError(f"a column of {count} values at bytes {start} to {stop} of {file_bytes}")
    width = max(_LEVEL_BYTES, leaf.length if leaf.kind == _FIXED_BYTES else _WIDTHS[leaf.kind])
    return StoredColumn(leaf.path, width, leaf.kind == _BYTE_ARRAY, start, stop, count)


class CheckedColumns(SeekableFile):
    """The wanted columns of one row group of a parquet file, in memory as they are stored, and checked.

    The file itself is not read again: a server may answer the second time with other bytes.

    Args:
        file: the file.
        tail: from `tail_of`.
        chunks: the row group's columns.
        wanted: names of the columns that are decoded.
        at: the place of the file and the number of the row group, for messages.
        max_values: maximum number of values of a column of token samples.

    Attributes:
        with_dictionary: the columns of texts that have a dictionary, for pyarrow's `read_dictionary`: expanded, they
            may be any number of times larger.

    Raises:
        CorruptData: decoded, the columns would be larger than `MAX_ROW_GROUP_BYTES`, or have more values than that.
        DataError, OSError: what reading the file raises.
    """

    def __init__(
        self,
        file: SeekableFile,
        tail: bytes,
        chunks: Sequence[StoredColumn],
        wanted: Collection[str],
        max_values: int,
        at: tuple[str, int],
    ) -> None:
        super().__init__(file.size())
        place, group = at
        chosen = sorted((chunk for chunk in chunks if chunk.path[0] in wanted), key=lambda chunk: chunk.start)
        stored_bytes = sum(chunk.stop - chunk.start for chunk in chosen)
        if stored_bytes > row_columns.MAX_ROW_GROUP_BYTES:
            raise too_large(place, group, stored_bytes)
        last = file.size()
        self._parts = [
            *((start, _bytes_of(file, start, min(stop + _PADDING_BYTES, last))) for start, stop in _ranges(chosen)),
            (last - len(tail), tail),
        ]
        self.with_dictionary: list[str] = []
        taken_bytes = 0
        for chunk in chosen:
            try:
                values, unpacked_bytes, has_dictionary = _pages(chunk, self._stored(chunk))
            except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
                name = ".".join(chunk.path)
                raise CorruptData(f"{place}: row group {group}, column {name!a}: {error}", path=place) from error
            if chunk.is_text and has_dictionary:
                self.with_dictionary.append(".".join(chunk.path))
            taken_bytes += max(values * chunk.width_bytes, unpacked_bytes)
            if taken_bytes > row_columns.MAX_ROW_GROUP_BYTES:
                raise too_large(place, group, taken_bytes)
            if INPUTS in wanted and values > max_values:
                raise CorruptData(
                    f"{place}: row group {group} has {values} values in {'.'.join(chunk.path)!a}; its samples, each of "
                    f"the run's max_seq_len, have at most {max_values}",
                    path=place,
                )

    def _stored(self, chunk: StoredColumn) -> memoryview:
        start, data = next((at, data) for at, data in reversed(self._parts[:-1]) if at <= chunk.start)
        return memoryview(data)[chunk.start - start : chunk.stop - start]

    def readinto(self, into: "WriteableBuffer", /) -> int:
        """Fill `into`. Raise `ValueError` for bytes that are not in memory."""
        view = memoryview(into).cast("B")
        for start, data in self._parts:
            if start <= self._at and self._at + len(view) <= start + len(data):
                view[:] = data[self._at - start : self._at - start + len(view)]
                self._at += len(view)
                return len(view)
        raise ValueError(f"{len(view)} bytes at {self._at}, which are not the row group's")


def _ranges(chunks: Sequence[StoredColumn]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for chunk in chunks:
        if found and chunk.start <= found[-1][1] + _MAX_GAP_BYTES:
            found[-1] = found[-1][0], max(found[-1][1], chunk.stop)
        else:
            found.append((chunk.start, chunk.stop))
    return found


def _pages(chunk: StoredColumn, stored: memoryview) -> tuple[int, int, bool]:
    """Return how many values a chunk's pages claim, their unpacked size, and whether there is a dictionary."""
    values = unpacked_bytes = at = 0
    has_dictionary = False
    while values < chunk.value_count and at < len(stored):
        reader = _Thrift(stored, at)
        page = reader.struct(_PAGE)
        at = reader.at + page[3]
        if page[2] < 0 or page[3] < 0 or at > len(stored):
            raise ValueError(f"a page of {page[3]} bytes, unpacked {page[2]}")
        unpacked_bytes += page[2]
        has_dictionary |= page[1] == _DICTIONARY_PAGE
        if page[1] not in _HEADS:
            continue  # nor does pyarrow count what other pages say
        number, encoding = _HEADS[page[1]]
        head = page[number]
        if head[1] < 0:
            raise ValueError(f"a page of {head[1]} values")
        values += head[1]
        if chunk.is_text and head.get(encoding) == _DELTA_BYTE_ARRAY:
            raise ValueError(
                "texts that are encoded by their prefixes (DELTA_BYTE_ARRAY); write them in another encoding"
            )
    if values < chunk.value_count:
        raise ValueError(f"pages of {values} values; the footer says {chunk.value_count}")
    return values, unpacked_bytes, has_dictionary
