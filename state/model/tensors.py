"""Named float32 tensors, and the one file format in which they travel: a strict subset of safetensors.

Everything that a run agrees on numerically is a `Tensors`: parameters, outer momentum, differences; an encoded
difference has tensors of bytes instead (`state/codecs/`). A file holds an 8-byte little-endian header length, a JSON
header padded with spaces to a multiple of 8, and the tensors' bytes:
https://huggingface.co/docs/safetensors/index#format. The rule kept here: the safetensors library reads our files, and
we read its files of float32 tensors. But the library writes metadata in no fixed order and accepts files that two
readers could read differently. So the bytes are written here, always the same for the same content, and a gap, an
overlap, a trailing byte, a second key of the same name and any type but the expected one are refused.
"""

import hashlib
import json
import math
import struct
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from epochal.state.errors import EpochalError, InternalError
from epochal.state.reader_limits import MAX_TENSOR_HEADER_BYTES
from epochal.state.wire import Sha256, check_json_values, unique_keys

Float32Array = npt.NDArray[np.float32]
Tensors = dict[str, Float32Array]
"""Named float32 arrays, ordered by name."""

Buffer = bytes | bytearray | memoryview


class Readable(Protocol):
    """Bytes of which a part is read at a time: `bytes`, a `memoryview`, or a file that is not in memory."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Buffer: ...


CHECK_CHUNK_ELEMENTS = 1 << 18
"""Values that are checked at a time, so that a check takes constant memory (1 MiB)."""
MAX_DIMENSIONS = 32
PIECE_BYTES = 256 * 1024
"""A file that is written piece by piece has pieces of at most this size."""

LENGTH_BYTES = 8
"""Size of the length with which a tensor file begins."""

_LENGTH = struct.Struct("<Q")
_METADATA_KEY = "__metadata__"
FLOAT32_TYPE, BYTES_TYPE = "F32", "U8"
"""The types of tensors, as safetensors names them. All tensors of a file have the same."""
_WIRE_DTYPES: dict[str, np.dtype[Any]] = {FLOAT32_TYPE: np.dtype("<f4"), BYTES_TYPE: np.dtype("u1")}
_ALIGNMENT_BYTES = 8
_REMEMBERED = 8
"""Number of headers whose tensors are remembered, of at most `_MOST_REMEMBERED_BYTES` each."""
_MOST_REMEMBERED_BYTES = 64 * 1024


class InvalidTensorFile(EpochalError):
    """Bytes are not a tensor file. Mapped by each reader to its own error; `rule` names what is broken."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message, rule=rule)
        self.rule = rule


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """The names and shapes of a model's tensors, in name order: those of every result and replica.

    Attributes:
        entries: name and shape of each tensor.
        dtype: type of all of them, `FLOAT32_TYPE` or `BYTES_TYPE`.

    Raises:
        InternalError: names out of order or doubled, or a dimension below 1; the caller's bug.
    """

    entries: tuple[tuple[str, tuple[int, ...]], ...]
    dtype: str = FLOAT32_TYPE

    def __post_init__(self) -> None:
        names = [name for name, _ in self.entries]
        if sorted(set(names)) != names or _METADATA_KEY in names:
            raise InternalError("a layout's names are unique, in order, and not `__metadata__`", names=names)
        if any(extent < 1 for _, shape in self.entries for extent in shape):
            raise InternalError("a layout's dimensions are at least 1", entries=self.entries)

    @property
    def size_bytes(self) -> int:
        """Size of all values, without any header."""
        return sum(count for _, count in self.counts()) * self.item_bytes

    @property
    def item_bytes(self) -> int:
        """Size of one value."""
        return _WIRE_DTYPES[self.dtype].itemsize

    def counts(self) -> Iterator[tuple[str, int]]:
        """Yield the name of each tensor, and the number of its values."""
        for name, shape in self.entries:
            yield name, math.prod(shape)

    def starts(self) -> dict[str, int]:
        """Return how many values are before those of each tensor."""
        starts, start = {}, 0
        for name, count in self.counts():
            starts[name] = start
            start += count
        return starts


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """The header of a tensor file; `size_bytes` is its size with its length, after which the values follow."""

    metadata: dict[str, str]
    layout: TensorLayout
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TensorFile:
    """The content of a tensor file. `values` and the tensors are read-only views of the file's own bytes."""

    metadata: dict[str, str]
    layout: TensorLayout
    values: npt.NDArray[Any]

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """Return the tensors by name, without a copy."""
        tensors: dict[str, npt.NDArray[Any]] = {}
        offset = 0
        for name, shape in self.layout.entries:
            count = math.prod(shape)
            tensors[name] = self.values[offset : offset + count].reshape(shape)
            offset += count
        return tensors


@dataclass(frozen=True, slots=True)
class TensorStream:
    """A tensor file that is written piece by piece, so that its bytes are never in memory together.

    Attributes:
        header: its first bytes.
        layout: the names and shapes that the header says.
        values: returns the tensors in name order, each as a whole or in flat parts, one after the other; each is made
            when it is asked for, and every call returns them again.
    """

    header: bytes
    layout: TensorLayout
    values: Callable[[], Iterable[npt.NDArray[Any]]]

    @property
    def size_bytes(self) -> int:
        """Size of the whole file."""
        return len(self.header) + self.layout.size_bytes

    def pieces(self) -> Iterator[bytes]:
        """Yield the file's bytes in pieces of at most `PIECE_BYTES`."""
        return map(bytes, self.views())

    def views(self) -> Iterator[memoryview]:
        """Yield the pieces without copying them: each is valid until the next one is requested."""
        header = memoryview(self.header)
        for start in range(0, len(header), PIECE_BYTES):
            yield header[start : start + PIECE_BYTES]
        for _, part in self._parts():
            data = wire_bytes(part, self.layout.dtype)
            for start in range(0, len(data), PIECE_BYTES):
                yield data[start : start + PIECE_BYTES]

    def _parts(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yield the name of each tensor with the tensor or its parts. Raise `InternalError` if others are made."""
        made = iter(self.values())
        for name, shape in self.layout.entries:
            missing = math.prod(shape)
            while missing:
                array = next(made, None)
                if array is None:
                    raise InternalError("a tensor file with fewer tensors than its header says")
                if array.shape != shape and (array.ndim != 1 or array.size > missing):
                    raise InternalError(f"tensor {name!a} has shape {array.shape}; its file's header says {shape}")
                missing -= array.size
                yield name, array
        if next(made, None) is not None:
            raise InternalError("a tensor file with more tensors than its header says")

    def to_bytes(self) -> bytes:
        """Return the whole file."""
        return b"".join(self.pieces())

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """Return the tensors by name."""
        parts: dict[str, list[npt.NDArray[Any]]] = {}
        for name, part in self._parts():
            parts.setdefault(name, []).append(part.reshape(-1))
        return {name: np.concatenate(parts[name]).reshape(shape) for name, shape in self.layout.entries}

    def sha256(self) -> Sha256:
        """Return the SHA-256 of the file, of which only a piece is in memory."""
        digest = hashlib.sha256()
        for piece in self.pieces():
            digest.update(piece)
        return Sha256(digest.hexdigest())


FileBody: TypeAlias = Buffer | TensorStream
"""A tensor file as it is sent: its bytes, or the tensors of which it is made on the way."""


def layout_of(tensors: Mapping[str, npt.NDArray[Any]]) -> TensorLayout:
    """Return the layout of named arrays of any type, in name order."""
    return TensorLayout(tuple((name, tuple(map(int, tensors[name].shape))) for name in sorted(tensors)))


def frozen_tensors(tensors: Mapping[str, Float32Array]) -> Tensors:
    """Return the values as read-only C-contiguous arrays in name order; only arrays of another layout are copied."""
    frozen: Tensors = {}
    for name in sorted(tensors):
        if tensors[name].dtype != np.float32:
            raise InternalError(f"tensor {name!a} is {tensors[name].dtype}, not float32")
        view = np.asarray(tensors[name], dtype=np.float32, order="C").view()
        view.flags.writeable = False
        frozen[name] = view
    return frozen


def wire_bytes(array: npt.NDArray[Any], dtype: str = FLOAT32_TYPE) -> memoryview:
    """Return the array's values as little-endian bytes in C order; no copy where memory already holds them so."""
    values = np.ascontiguousarray(array, dtype=_WIRE_DTYPES[dtype]).reshape(-1)
    return values.view(np.uint8).data


def file_size_bound(layout: TensorLayout, metadata_bytes: int) -> int:
    """Return an upper bound in bytes for tensor files of this layout whose metadata takes `metadata_bytes` as JSON.

    It leaves room for the headers of other writers (blanks after separators, every character escaped).
    """
    size = 2 * _LENGTH.size + 64 + metadata_bytes + layout.size_bytes
    for name, shape in layout.entries:
        size += 3 * len(name.encode("utf-16-le")) + 128 + 24 * len(shape)
    return size


def encode_tensor_file(tensors: Mapping[str, Float32Array], metadata: Mapping[str, str]) -> bytes:
    """Return a tensor file's bytes, the same for the same content whatever the arguments' order or memory layout."""
    return stream_of(tensors, metadata).to_bytes()


def stream_of(tensors: Mapping[str, Float32Array], metadata: Mapping[str, str]) -> TensorStream:
    """Return the tensor file of arrays that are in memory, and do not change while it is read."""
    frozen = frozen_tensors(tensors)
    return tensor_stream(layout_of(frozen), metadata, frozen.values)


def tensor_stream(
    layout: TensorLayout, metadata: Mapping[str, str], values: Callable[[], Iterable[npt.NDArray[Any]]]
) -> TensorStream:
    """Return a tensor file whose arrays are made one at a time; its bytes are those of `encode_tensor_file`."""
    header: dict[str, Any] = {_METADATA_KEY: {key: metadata[key] for key in sorted(metadata)}}
    offset = 0
    for name, shape in layout.entries:
        end = offset + math.prod(shape) * layout.item_bytes
        header[name] = {"dtype": layout.dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    return TensorStream(_LENGTH.pack(len(text)) + text, layout, values)


def parse_tensor_file(data: Buffer, dtypes: Collection[str] = (FLOAT32_TYPE,)) -> TensorFile:
    """Parse a tensor file. The arrays are views of `data`, which must not change while they are used.

    Values are not checked: see `state/model/value_checks.py`.

    Args:
        data: the file.
        dtypes: types of which the tensors may have one.

    Raises:
        InvalidTensorFile: the sender's fault; `rule` is `header` (length, JSON, keys), `dtype`, `layout` (shapes and
            offsets) or `size` (missing or trailing bytes).
    """
    view = memoryview(data).cast("B").toreadonly()
    header = parse_tensor_header(view, len(view), dtypes)
    return TensorFile(header.metadata, header.layout, values_in(view[header.size_bytes :], header.layout))


def values_in(data: Buffer, layout: TensorLayout) -> npt.NDArray[Any]:
    """Return the values of tensors whose bytes follow one another, without a header, as a view of `data`."""
    values: npt.NDArray[Any] = np.frombuffer(data, dtype=_WIRE_DTYPES[layout.dtype])
    return values.astype(values.dtype.newbyteorder("=")) if sys.byteorder == "big" else values


def read_tensor_header(data: Readable, dtypes: Collection[str] = (FLOAT32_TYPE,)) -> TensorHeader:
    """Return the header of a tensor file, of which nothing else is read.

    Raises:
        InvalidTensorFile: as `parse_tensor_file`.
    """
    size_bytes = len(data)
    return parse_tensor_header(data[: tensor_header_bytes(data[:LENGTH_BYTES], size_bytes)], size_bytes, dtypes)


def value_pieces(data: Readable, start: int, stop: int) -> Iterator[Float32Array]:
    """Yield the float32 values in the bytes `[start, stop)` of a tensor file, `CHECK_CHUNK_ELEMENTS` at a time."""
    dtype = _WIRE_DTYPES[FLOAT32_TYPE]
    size_bytes = CHECK_CHUNK_ELEMENTS * dtype.itemsize
    for offset in range(start, stop, size_bytes):
        piece = np.frombuffer(data[offset : min(offset + size_bytes, stop)], dtype=dtype)
        yield piece.astype(np.float32, copy=False)


def parse_tensor_header(beginning: Buffer, size_bytes: int, dtypes: Collection[str] = (FLOAT32_TYPE,)) -> TensorHeader:
    """Parse the header of a tensor file of which only the beginning has arrived.

    Args:
        beginning: the file's first bytes, at least as many as `tensor_header_bytes` says.
        size_bytes: size of the whole file.
        dtypes: as in `parse_tensor_file`.

    Raises:
        InvalidTensorFile: as `parse_tensor_file`.
    """
    view = memoryview(beginning).cast("B")
    body = tensor_header_bytes(view, size_bytes)
    text = bytes(view[_LENGTH.size : body])
    metadata, layout = _parse_known(text, tuple(dtypes)) or _parse_whole(text, dtypes)
    if size_bytes - body != layout.size_bytes:
        _refuse("size", f"{size_bytes - body} bytes of values where the header describes {layout.size_bytes}")
    return TensorHeader(metadata, layout, body)


def tensor_header_bytes(beginning: Buffer, size_bytes: int) -> int:
    """Return the size of a tensor file's header with its length, from the first `LENGTH_BYTES` bytes or more.

    Raises:
        InvalidTensorFile: the length is not valid, or the file of `size_bytes` bytes ends before the header does.
    """
    if len(beginning) < LENGTH_BYTES:
        _refuse("size", f"{len(beginning)} bytes are too few for a tensor file")
    header_bytes = int(_LENGTH.unpack_from(beginning)[0])
    if header_bytes > MAX_TENSOR_HEADER_BYTES or header_bytes % _ALIGNMENT_BYTES:
        _refuse("header", f"a header of {header_bytes} bytes; allowed: a multiple of 8 up to {MAX_TENSOR_HEADER_BYTES}")
    if LENGTH_BYTES + header_bytes > size_bytes:
        _refuse("size", f"{size_bytes} bytes end inside a header of {header_bytes} bytes")
    return LENGTH_BYTES + header_bytes


def _refuse(rule: str, message: str) -> NoReturn:
    raise InvalidTensorFile(rule, message)


def _parse_whole(text: bytes, dtypes: Collection[str]) -> tuple[dict[str, str], TensorLayout]:
    header = _parse_json(text)
    metadata = _parse_metadata(header.pop(_METADATA_KEY, {}))
    return metadata, _parse_layout(header, dtypes)


def _parse_known(text: bytes, dtypes: tuple[str, ...]) -> tuple[dict[str, str], TensorLayout] | None:
    """Return what `_parse_whole` does of a header that begins with its metadata; None if that must read it.

    The descriptions of the tensors are the same bytes in all results of a model, and are read once.
    """
    own, comma, tensors = text.partition(b"},")
    if not comma or len(text) > _MOST_REMEMBERED_BYTES:
        return None
    try:
        header = _parse_json(own + b"}}")
        layout = _layout_of(b"{" + tensors, dtypes)
    except InvalidTensorFile:
        return None
    if layout is None or header.keys() != {_METADATA_KEY}:
        return None
    return _parse_metadata(header[_METADATA_KEY]), layout


@lru_cache(maxsize=_REMEMBERED)
def _layout_of(text: bytes, dtypes: tuple[str, ...]) -> TensorLayout | None:
    """Return the layout in a header without metadata; None if it has some, or no tensor."""
    header = _parse_json(text)
    return None if not header or _METADATA_KEY in header else _parse_layout(header, dtypes)


def _parse_json(text: bytes) -> dict[str, Any]:
    try:
        check_json_values(text)
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise InvalidTensorFile("header", f"the header is not JSON: {error!a}") from error
    if not isinstance(header, dict):
        _refuse("header", "the header is not an object")
    return header


def _parse_metadata(found: object) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        _refuse("header", "`__metadata__` is not an object of strings")
    return found


def _parse_layout(header: dict[str, Any], dtypes: Collection[str]) -> TensorLayout:
    """Return the layout; refuse the header unless all tensors have one of the types and follow one another by name."""
    entries: list[tuple[str, tuple[int, ...]]] = []
    offset, dtype = 0, ""
    for name in sorted(header):
        entry = header[name]
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            _refuse("header", f"tensor {name!a} is not described by dtype, shape and data_offsets")
        allowed = (dtype,) if dtype else dtypes
        if entry["dtype"] not in allowed:
            _refuse("dtype", f"tensor {name!a} is {ascii(entry['dtype'])[:32]}, not {' or '.join(allowed)}")
        dtype = entry["dtype"]
        shape = _parse_naturals(name, entry["shape"], least=1)
        end = offset + math.prod(shape) * _WIRE_DTYPES[dtype].itemsize
        if _parse_naturals(name, entry["data_offsets"], least=0) != (offset, end):
            _refuse("layout", f"tensor {name!a} does not lie at [{offset}, {end}), in name order without a gap")
        entries.append((name, shape))
        offset = end
    return TensorLayout(tuple(entries), dtype or next(iter(dtypes)))


def _parse_naturals(name: str, found: object, least: int) -> tuple[int, ...]:
    if not isinstance(found, list) or len(found) > MAX_DIMENSIONS:
        _refuse("layout", f"tensor {name!a} has a shape or offsets that are not a list of at most {MAX_DIMENSIONS}")
    if not all(type(value) is int and least <= value < 2**63 for value in found):
        _refuse("layout", f"tensor {name!a} has a shape or offsets that are not integers from {least}")
    return tuple(found)
