"""Chunking: examples are grouped into requests of a bounded number and size.

Two policies estimate the size of a datum before it is encoded, and limit a request:

* `BYTES`, the default: **ten bytes for each token and for each element of a loss's array** (about the size of a number
  in JSON), an image's own bytes, the characters of a pointer's location; at most **1,024 items and 5,000,000 bytes**.
* `NUMBERS`, the older one: each token and each element counts one, images and pointers as before; at most **128 items
  and 500,000 numbers**.

The rules kept here: order is kept; a chunk is never empty; exactly the limit fits; a datum larger than the limit is a
chunk by itself; one pass, in memory that does not grow. `chunk_data` (objects) and `column_chunks.py` cut
at the same places.

A run takes its limits from here: for a training service it cuts columns, and where samples hold images, datums
(`batching/micro_batches.py`). `NUMBERS` and `exact` are for your own programs.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from epochal.batching.chunking.datums import (
    Datum,
    EncodedTextChunk,
    ImageAssetPointerChunk,
    ImageChunk,
    ModelInputChunk,
)
from epochal.state.errors import InvalidInput

BYTES_PER_NUMBER = 10
MAX_CHUNK_ITEMS = 1024
MAX_CHUNK_BYTES = 5_000_000
MAX_COUNTED_ITEMS = 128
MAX_COUNTED_NUMBERS = 500_000

T = TypeVar("T")


class ChunkEnd(StrEnum):
    """The reason for which a chunk ended."""

    ITEMS = "items"
    """It has the maximum number of items."""
    SIZE = "size"
    """With the next item it would have been too large."""
    END = "end"
    """The items have ended."""


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """Maximum number of items of one request, and maximum size in the policy's units; `InvalidInput` below 1."""

    items: int = MAX_CHUNK_ITEMS
    size: int = MAX_CHUNK_BYTES

    def __post_init__(self) -> None:
        for name, value in (("items", self.items), ("size", self.size)):
            if value < 1:
                raise InvalidInput(f"a limit of {value} {name} for a chunk; allowed: 1 or more")


class Chunk(NamedTuple, Generic[T]):
    """The items of one request, in order, their estimated size, and why the chunk ended."""

    items: list[T]
    size: int
    end: ChunkEnd


@dataclass(frozen=True, slots=True)
class ChunkPolicy:
    """An estimate of the size of an example, and the limits of a request.

    Attributes:
        estimate: returns the size of one datum.
        limits: used unless a service states its own.
        number_size: size of one token, or of one element of a loss's array, for data in columns.
    """

    name: str
    estimate: Callable[[Datum], int]
    limits: ChunkLimits
    number_size: int


def estimate_bytes(datum: Datum) -> int:
    """Return about how many bytes a datum takes on the wire: ten for each number, and an image's own bytes."""
    return _estimate(datum, BYTES_PER_NUMBER)


def estimate_numbers(datum: Datum) -> int:
    """Return the size of a datum under the older rule, one for each number. Raises what `estimate_bytes` raises."""
    return _estimate(datum, 1)


def _estimate(datum: Datum, number_size: int) -> int:
    size = 0
    for chunk in datum.model_input.chunks:
        if type(chunk) is EncodedTextChunk:
            size += number_size * len(chunk.tokens)
        else:
            size += _size_without_tokens(chunk)
    for value in datum.loss_fn_inputs.values():
        size += number_size * len(value.data)
    return size


def exact(encode: Callable[[Datum], bytes]) -> Callable[[Datum], int]:
    """Return an estimator that encodes a datum and returns its true size."""
    return lambda datum: len(encode(datum))


BYTES = ChunkPolicy("bytes", estimate_bytes, ChunkLimits(), BYTES_PER_NUMBER)
NUMBERS = ChunkPolicy("numbers", estimate_numbers, ChunkLimits(MAX_COUNTED_ITEMS, MAX_COUNTED_NUMBERS), 1)


def chunk_data(
    data: Iterable[Datum], policy: ChunkPolicy = BYTES, limits: ChunkLimits | None = None
) -> Iterator[Chunk[Datum]]:
    """Yield the data in chunks, in order, in one pass and in memory that does not grow.

    A chunk is never empty; exactly the limit fits; a datum larger than the limit is a chunk by itself.

    Args:
        policy: estimates the size of a datum: ten bytes for each number, by default.
        limits: of the service; the policy's by default.

    Raises:
        InvalidInput: a model input has a chunk of an unknown kind.
    """
    return chunked(data, policy.estimate, limits or policy.limits)


def chunked(items: Iterable[T], estimate: Callable[[T], int], limits: ChunkLimits) -> Iterator[Chunk[T]]:
    """Yield any items in chunks; `estimate` returns an item's size."""
    most_items, most = limits.items, limits.size
    held: list[T] = []
    size = 0
    for item in items:
        item_size = estimate(item)
        if held and (size + item_size > most or len(held) == most_items):
            yield Chunk(held, size, ChunkEnd.ITEMS if len(held) == most_items else ChunkEnd.SIZE)
            held, size = [], 0
        held.append(item)
        size += item_size
    if held:
        yield Chunk(held, size, ChunkEnd.END)


def _size_without_tokens(chunk: ModelInputChunk) -> int:
    if isinstance(chunk, ImageChunk):
        return len(chunk.data)
    if isinstance(chunk, ImageAssetPointerChunk):
        return len(chunk.location)
    raise InvalidInput(
        f"a model input with a chunk of type {type(chunk).__name__}; allowed: EncodedTextChunk, ImageChunk, "
        "ImageAssetPointerChunk"
    )
