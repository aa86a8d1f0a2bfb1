"""The payload of `SAMPLES` where samples have any length, as runs that pack them read them (`docs/data-protocol.md`).

A server sends as many of the samples that were asked for as fit into a frame, one at least; the client asks for the
rest. The rule kept here: the arrays that arrive are those of the server's provider, of the same types.
"""

import struct
from dataclasses import dataclass
from enum import IntFlag
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from epochal.data_providers.next_round_samples import joined
from epochal.data_providers.protocol import (
    MAX_REQUEST_BYTES,
    CorruptData,
    DataProvider,
    DatasetSpec,
    Rejected,
    TokenBatch,
    TooManyBytes,
    check_answer_bytes,
)
from epochal.data_providers.tcp.frames import MAX_SAMPLES_BYTES, Welcome
from epochal.state.documents import HexSha256
from epochal.state.errors import InvalidDocument
from epochal.state.intervals import DataIds

_HEAD = struct.Struct("<IIBBH")
"""Number of samples, and of documents; bytes of a token, columns, and zero."""
_TOKENS: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}
"""The type of tokens by their size; those of one byte are the text of records."""
_LENGTH: np.dtype[Any] = np.dtype("<u4")
_COLUMN: np.dtype[Any] = np.dtype("<i8")


class Columns(IntFlag):
    """The columns that may follow the tokens, in this order."""

    LABELS = 1
    POSITION_IDS = 2
    SEQUENCE_LENGTHS = 4


@dataclass(frozen=True, slots=True)
class AnyLength:
    """The shape of samples of any length, of which one has about `mean_bytes` bytes."""

    mean_bytes: int


Shape: TypeAlias = DatasetSpec | AnyLength
"""The shape of a dataset's samples."""


def welcome_of(shape: Shape, fingerprint: str, sequence_count: int | None) -> Welcome:
    """Return the `WELCOME` of a server of this dataset."""
    if isinstance(shape, AnyLength):
        return Welcome(HexSha256(fingerprint), None, None, sequence_count, shape.mean_bytes)
    return Welcome(HexSha256(fingerprint), shape.token_size_bytes, shape.sequence_length, sequence_count)


def shape_of(welcome: Welcome) -> Shape:
    """Return the shape of a server's samples; `CorruptData` if its `WELCOME` describes none, which is its own fault."""
    size, length, mean_bytes = welcome.token_size_bytes, welcome.sequence_length, welcome.mean_bytes
    if size is not None and length is not None and mean_bytes is None:
        return DatasetSpec(size, length)
    if size is None and length is None and mean_bytes is not None:
        return AnyLength(mean_bytes)
    raise CorruptData(
        f"a data server's samples have {length} tokens of {size} bytes, and {mean_bytes} bytes on average; allowed: "
        "both of the former, or the latter alone"
    )


class BoundedProvider(DataProvider, Protocol):
    """A provider that reads no more than it is allowed to."""

    async def get_samples(self, data_ids: DataIds, most_bytes: int = MAX_REQUEST_BYTES) -> TokenBatch:
        """Return the samples, as `DataProvider.get_samples`; `TooManyBytes` if they take more than `most_bytes`."""
        ...


def payload_of(batch: TokenBatch) -> bytes:
    """Return samples as the payload of a frame, however long it becomes."""
    tokens = batch.input_ids.astype("<u1") if batch.is_text else batch.input_ids
    lengths = batch.sequence_lengths
    flags, parts = Columns(0), [np.diff(batch.offsets).astype(_LENGTH).tobytes()]
    if lengths is not None:
        flags |= Columns.SEQUENCE_LENGTHS
        parts.append(lengths.astype(_LENGTH).tobytes())
    parts.append(tokens.tobytes())
    for flag, column in ((Columns.LABELS, batch.labels), (Columns.POSITION_IDS, batch.position_ids)):
        if column is not None:
            flags |= flag
            parts.append(column.astype(_COLUMN).tobytes())
    head = _HEAD.pack(batch.sample_count, 0 if lengths is None else len(lengths), tokens.itemsize, flags, 0)
    return b"".join([head, *parts])


def parse_payload(payload: memoryview) -> TokenBatch:
    """Return the samples of a payload. Raise `InvalidDocument` if it does not hold any; the server's fault."""
    if len(payload) < _HEAD.size:
        raise InvalidDocument(f"samples of {len(payload)} bytes; at least {_HEAD.size}")
    count, documents, token_bytes, flags, zero = _HEAD.unpack_from(payload)
    if not count or token_bytes not in _TOKENS or flags >= 2 * Columns.SEQUENCE_LENGTHS or zero:
        raise InvalidDocument(f"samples with the head {payload[: _HEAD.size].hex()}")
    columns = [flag for flag in (Columns.LABELS, Columns.POSITION_IDS) if flags & flag]
    before_bytes = _HEAD.size + _LENGTH.itemsize * (count + documents)
    if before_bytes > len(payload) or (documents and not flags & Columns.SEQUENCE_LENGTHS):
        raise InvalidDocument(f"{len(payload)} bytes of {count} samples and {documents} documents")
    at = _HEAD.size

    def taken(dtype: np.dtype[Any], items: int) -> NDArray[Any]:
        nonlocal at
        start, at = at, at + dtype.itemsize * items
        return np.frombuffer(payload, dtype, items, start)

    offsets = np.concatenate(([0], np.cumsum(taken(_LENGTH, count), dtype=np.int64)))
    lengths, total = taken(_LENGTH, documents).astype(np.int64), int(offsets[-1])
    expected_bytes = before_bytes + total * (token_bytes + _COLUMN.itemsize * len(columns))
    if expected_bytes != len(payload):
        raise InvalidDocument(f"{len(payload)} bytes of samples where their lengths give {expected_bytes}")
    tokens = taken(_TOKENS[token_bytes], total)
    found = {flag: taken(_COLUMN, total) for flag in columns}
    try:
        return TokenBatch(
            tokens.astype("<u2") if token_bytes == 1 else tokens,
            offsets,
            found.get(Columns.LABELS),
            found.get(Columns.POSITION_IDS),
            lengths if flags & Columns.SEQUENCE_LENGTHS else None,
            is_text=token_bytes == 1,
        )
    except CorruptData as error:
        raise InvalidDocument(error.message) from error


def most_answer_bytes(shape: Shape, data_ids: DataIds) -> int:
    """Return the maximum memory of an answer. Raise `Rejected` where so many samples have no room in a frame."""
    if isinstance(shape, AnyLength):
        return 2 * MAX_SAMPLES_BYTES  # the provider's arrays, and the payload
    size_bytes = data_ids.count * shape.sequence_bytes
    if size_bytes > MAX_SAMPLES_BYTES:
        raise Rejected(f"data indices {data_ids} are {size_bytes} bytes; at most {MAX_SAMPLES_BYTES} a request")
    return size_bytes


async def answer_of(provider: DataProvider, shape: Shape, data_ids: DataIds) -> tuple[memoryview, int]:
    """Return a payload with these samples or the first of them, and their number. Raises as `DataProvider`."""
    if isinstance(shape, AnyLength):
        return await _fitting(cast("BoundedProvider", provider), data_ids)
    batch = await provider.get_samples(data_ids)
    return batch.input_ids.view(np.uint8).data, data_ids.count


async def _fitting(provider: BoundedProvider, data_ids: DataIds) -> tuple[memoryview, int]:
    """Return the payload of the first samples that fit into a frame, and their number. Raise `CorruptData` if none."""
    count = data_ids.count
    while True:
        try:
            most_bytes = MAX_SAMPLES_BYTES if count > 1 else MAX_REQUEST_BYTES
            payload = payload_of(
                await provider.get_samples(DataIds(data_ids.start, data_ids.start + count - 1), most_bytes)
            )
            if len(payload) <= MAX_SAMPLES_BYTES:
                return memoryview(payload), count
        except TooManyBytes:
            if count == 1:
                raise
        if count == 1:
            raise CorruptData(
                f"data index {data_ids.start} has {len(payload)} bytes; a data server sends at most "
                f"{MAX_SAMPLES_BYTES} of a sample, its labels and lengths included",
                data_index=data_ids.start,
            )
        count //= 2


class ArrivingSamples:
    """The samples of one call as they arrive, a piece at a time and in any order."""

    def __init__(self) -> None:
        self._parts: list[tuple[DataIds, TokenBatch]] = []
        self._held_bytes = 0

    def take(self, data_ids: DataIds, payload: memoryview) -> DataIds | None:
        """Take in an answer to a request for these data indices. Return those that are missing from it, the last ones.

        Raises:
            InvalidDocument: it does not hold the first of them; the server's fault.
            TooManyBytes: the call's samples are more than a provider returns at a time; its caller's fault.
        """
        batch = parse_payload(payload)
        if batch.sample_count > data_ids.count:
            raise InvalidDocument(f"{batch.sample_count} samples where {data_ids.count} were asked for")
        self._held_bytes += len(payload) * (2 if batch.is_text else 1)
        check_answer_bytes(self._held_bytes)
        next_index = data_ids.start + batch.sample_count
        self._parts.append((DataIds(data_ids.start, next_index - 1), batch))
        return DataIds(next_index, data_ids.end) if next_index <= data_ids.end else None

    def batch(self) -> TokenBatch:
        """Return the samples in the order of their data indices. Raise `CorruptData` if they do not go together."""
        return self._parts[0][1] if len(self._parts) == 1 else joined(self._parts)
