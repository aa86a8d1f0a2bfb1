"""The sizes that a parquet file claims, checked before pyarrow takes memory for them.

A page of a few bytes may stand for any number of values (run lengths, dictionaries, prefixes), and pyarrow makes room
for what a page claims. So the footer and the heads of the pages that are about to be decoded are parsed here, with
bounds: pyarrow shows no heads of pages, and ends the process over some damaged footers when it is asked for a column's
(github.com/apache/arrow/issues/45283). Source: parquet.apache.org, "File Format"; Thrift's compact protocol.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from data_providers.formats import columns as row_columns
from data_providers.formats.columns import INPUTS, too_large
from data_providers.protocol import CorruptData
from data_providers.sources.range_file import SeekableFile
from state.limits import MAX_COLUMN_CHUNKS, MAX_PARQUET_FOOTER_BYTES, MAX_THRIFT_DEPTH

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAGIC = b"PAR1"
_TAIL_BYTES = 64 * 1024
"""Number of last bytes that are read first, as pyarrow does: they hold most footers."""
_MAX_GAP_BYTES = 64 * 1024
"""Columns that are this near to each other are read as one range."""
_BYTE_ARRAY, _FIXED_BYTES = 6, 7
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8, _BYTE_ARRAY: 4}
"""Bytes of a value in memory, by its physical type; of texts those of a place in a dictionary."""
_DICTIONARY_PAGE = 2
_DELTA_BYTE_ARRAY = 7

Wanted: TypeAlias = Mapping[int, "Wanted | None"]
"""The fields to keep of a Thrift struct, by number; those of structs within, or None for a plain value."""
_FOOTER: Wanted = {
    2: {1: None, 2: None},
    4: {1: {3: dict.fromkeys((1, 2, 3, 5, 7, 9, 11))}},
}
_PAGE: Wanted = {1: None, 2: None, 3: None, 5: {1: None, 2: None}, 8: {1: None, 4: None}}


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
    """A reader of Thrift's compact protocol. It keeps only what is wanted; beyond the end it raises `IndexError`."""

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
            number = number + (head >> 4) if head >> 4 else self._whole()
            kind = head & 0x0F
            if number in wanted:
                found[number] = self._value(kind, wanted[number] or {}, depth, is_kept=True)
            else:
                self._value(kind, {}, depth, is_kept=False)
        return found

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _whole(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def _skip(self, count: int) -> int:
        self.at += count
        if self.at > len(self._data):
            raise IndexError("beyond the end")
        return self.at - count

    def _value(self, kind: int, wanted: Wanted, depth: int, *, is_kept: bool) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._whole()
        if kind == 7:
            return self._skip(8)
        if kind == 8:
            start = self._skip(self._varint())
            return bytes(self._data[start : self.at]) if is_kept else None
        if kind in (9, 10):
            return self._list(wanted, depth, is_kept)
        if kind == 12:
            return self.struct(wanted, depth + 1)
        raise ValueError(f"a value of kind {kind}")  # maps, too: parquet has none

    def _list(self, wanted: Wanted, depth: int, is_kept: bool) -> list[Any]:
        head = self._byte()
        count = self._varint() if head >> 4 == 15 else head >> 4
        kind, found = head & 0x0F, list[Any]()
        if depth > MAX_THRIFT_DEPTH:
            raise ValueError(f"more than {MAX_THRIFT_DEPTH} levels")
        for _ in range(count):
            value = self._byte() if kind in (1, 2) else self._value(kind, wanted, depth + 1, is_kept=is_kept)
            if is_kept:
                found.append(value)
                if len(found) > MAX_COLUMN_CHUNKS:
                    raise ValueError(f"a list of {count} parts; at most {MAX_COLUMN_CHUNKS}")
        return found


def chunks_of(file: SeekableFile, place: str) -> list[list[StoredColumn]]:
    """Return the column chunks of each row group of a parquet file.

    Raises:
        CorruptData: the file has no readable footer, a larger one than allowed, or a chunk that is beyond its end.
        DataError, OSError: what reading the file raises.
    """
    try:
        footer = _Thrift(_footer_of(file, place)).struct(_FOOTER)
        leaves = [leaf for leaf in footer.get(2, ()) if 1 in leaf]
        groups = [
            [_chunk(column[3], leaf, file.size()) for column, leaf in zip(group.get(1, ()), leaves, strict=True)]
            for group in footer.get(4, ())
        ]
    except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptData(f"{place} is not a parquet file: its footer: {error}", path=place) from error
    if sum(map(len, groups)) > MAX_COLUMN_CHUNKS:
        raise CorruptData(f"{place} has more than {MAX_COLUMN_CHUNKS} columns in all its row groups", path=place)
    return groups


def _footer_of(file: SeekableFile, place: str) -> bytes:
    tail = _bytes_of(file, max(0, file.size() - _TAIL_BYTES), file.size())
    length = int.from_bytes(tail[-8:-4], "little")
    if len(tail) < 12 or tail[-4:] != MAGIC or length > file.size() - 12:
        raise CorruptData(f"{place} is not a parquet file: it does not end like one", path=place)
    if length > MAX_PARQUET_FOOTER_BYTES:
        raise CorruptData(
            f"{place} has a footer of {length} bytes; at most {MAX_PARQUET_FOOTER_BYTES}: write larger row groups",
            path=place,
        )
    if length + 8 > len(tail):
        tail = _bytes_of(file, file.size() - 8 - length, file.size())
    return tail[-8 - length : -8]


def _bytes_of(file: SeekableFile, start: int, stop: int) -> bytes:
    file.seek(start)
    found = bytearray()
    while len(found) < stop - start and (part := file.read(stop - start - len(found))):
        found += part
    return bytes(found)


def _chunk(metadata: dict[int, Any], leaf: dict[int, Any], file_bytes: int) -> StoredColumn:
    start, count = metadata[9], metadata[5]
    if 0 < metadata.get(11, 0) < start:
        start = metadata[11]
    stop = start + metadata[7]
    if not 0 <= start <= stop <= file_bytes or count < 0:
        raise ValueError(f"a column of {count} values at bytes {start} to {stop} of {file_bytes}")
    kind = metadata[1]
    width = max(leaf.get(2, 0), 0) if kind == _FIXED_BYTES else _WIDTHS[kind]
    path = tuple(part.decode() for part in metadata[3])
    return StoredColumn(path, width, kind == _BYTE_ARRAY, start, stop, count)


class CheckedColumns(SeekableFile):
    """A parquet file of which the wanted columns of one row group are in memory, as they are stored, and checked.

    Args:
        file: the file, read further where pyarrow asks for more.
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
        file: Any,
        chunks: Sequence[StoredColumn],
        wanted: Collection[str],
        max_values: int,
        at: tuple[str, int],
    ) -> None:
        super().__init__(file.size())
        self._file = file
        place, group = at
        chosen = sorted((chunk for chunk in chunks if chunk.path[0] in wanted), key=lambda chunk: chunk.start)
        stored_bytes = sum(chunk.stop - chunk.start for chunk in chosen)
        if stored_bytes > row_columns.MAX_ROW_GROUP_BYTES:
            raise too_large(place, group, stored_bytes)
        self._parts = [(start, _bytes_of(file, start, stop)) for start, stop in _ranges(chosen)]
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
        start, data = next((at, data) for at, data in reversed(self._parts) if at <= chunk.start)
        return memoryview(data)[chunk.start - start : chunk.stop - start]

    def readinto(self, into: "WriteableBuffer", /) -> int:
        """Fill as much of `into` as the file holds. Raises what reading the file raises."""
        view = memoryview(into).cast("B")
        for start, data in self._parts:
            if start <= self._at and self._at + len(view) <= start + len(data):
                view[:] = data[self._at - start : self._at - start + len(view)]
                count = len(view)
                break
        else:
            self._file.seek(self._at)
            count = self._file.readinto(view) or 0
        self._at += count
        return count


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
        if page[1] == _DICTIONARY_PAGE:
            has_dictionary = True
            continue
        for head, encoding in ((page.get(5), 2), (page.get(8), 4)):
            if head is not None:
                if head[1] < 0:
                    raise ValueError(f"a page of {head[1]} values")
                values += head[1]
                if chunk.is_text and head.get(encoding) == _DELTA_BYTE_ARRAY:
                    raise ValueError(
                        "texts that are encoded by their prefixes (DELTA_BYTE_ARRAY); write them in another encoding"
                    )
    return values, unpacked_bytes, has_dictionary
