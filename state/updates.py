"""The update of a step: the weighted mean of an outcome's results, encoded. Everybody applies it, and nothing else.

`docs/merging.md` writes it out. The sum begins with zero, and one result is added after the other, in the outcome's
order: so it can be made while results arrive. The rule kept here is that of `state/merging.py`: elementwise float32
operations, each rounded once; and the update's encoder is normative, so that whoever has the results makes the same
bytes.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from epochal.state.codecs.codec import Block, EncodedTensor, PartMap, parts_of
from epochal.state.codecs.codecs_by_name import FLOAT32, codec_named
from epochal.state.codecs.record_codec import RecordCodec
from epochal.state.codecs.sparse import SparseCodec
from epochal.state.config.state_file import MergeConfig
from epochal.state.documents import Outcome, OutcomeEntry
from epochal.state.errors import InternalError, InvalidDocument
from epochal.state.intervals import total_batches
from epochal.state.merging import CHUNK_ELEMENTS, Diverged, Stretch, pieces_of
from epochal.state.model.tensors import (
    BYTES_TYPE,
    FLOAT32_TYPE,
    Buffer,
    Float32Array,
    InvalidTensorFile,
    TensorLayout,
    TensorStream,
    file_size_bound,
    parse_tensor_file,
    tensor_stream,
)
from epochal.state.model.value_checks import check_values
from epochal.state.results import Difference
from epochal.state.weights import number_of
from epochal.state.wire import document_digest

UPDATE_FORMAT = "epochal/update/v1"

_METADATA_BOUND_BYTES = 1024
_QUOTIENT_BITS = 40
_MAX_TOTAL = 2**63

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """How a run's updates are made.

    Attributes:
        codec: name of the codec with which the mean is encoded (`merge.update`).
        mean: over all results, or for each element over those that sent it (`sparse` sends not all).
    """

    codec: str
    mean: Literal["all", "senders"] = "all"

    @classmethod
    def of(cls, merge: MergeConfig) -> Self:
        """Return the rule of a run."""
        return cls(merge.update_codec, merge.mean)


@dataclass(frozen=True, slots=True)
class UpdateHeader:
    """The header of an update's file: whose it is, and how it is encoded.

    Attributes:
        step: the step that it takes.
        outcome_sha256: digest of the outcome of which it is the mean.
        codec: name of the codec (`state/codecs/codecs_by_name.py`).
    """

    run_id: str
    step: int
    outcome_sha256: str
    codec: str

    @classmethod
    def of(cls, outcome: Outcome, rule: UpdateRule) -> Self:
        """Return the header of an outcome's update."""
        return cls(outcome.run_id, outcome.step, document_digest(outcome), rule.codec)


@dataclass(frozen=True, slots=True)
class Weight:
    """The weight of one result among all.

    Attributes:
        batch_count: the batches of its assignment, ≥ 1; never a client's claim.
        factor: with which its weight is multiplied, above 0 and at most 1; a float32.
    """

    batch_count: int
    factor: float = 1.0

    @classmethod
    def of(cls, entry: OutcomeEntry) -> Self:
        """Return the weight of an outcome's entry."""
        return cls(total_batches(entry.assignment), number_of(entry.factor))


class UpdateSum:
    """The weighted sum of results, to which one is added after the other.

    Args:
        layout: names and shapes of the model's parameters.
        mean: as in `UpdateRule`.
        sums: float32 zeros, as many as the model has parameters; the sum is kept there.
        counts: int64 zeros, as many, for a mean over senders; else None.

    Attributes:
        layout: as given.
    """

    def __init__(
        self, layout: TensorLayout, mean: Literal["all", "senders"], sums: Float32Array, counts: Counts | None
    ) -> None:
        if (counts is not None) != (mean == "senders"):
            raise InternalError("a mean over senders counts them, and no other does")
        self.layout = layout
        self._starts = layout.starts()
        self._sums = sums
        self._counts = counts
        self._total = 0

    def add(
        self, weight: Weight, difference: Difference, read: Callable[[], None] = lambda: None, over: PartMap = map
    ) -> None:
        """Add a result: S ← S + w·d, with w the float32 of its batches times its factor, rounded once more.

        Args:
            weight: of the result.
            difference: `start − end` of every parameter, as the result holds it; decoded a part at a time.
            read: called after each part.
            over: adds the parts; each value is added once, so that their order says nothing.

        Raises:
            InternalError: names or shapes that are not the model's, a weight that is none, a mean over senders of a
                result that is not `sparse`, or 2⁶³ batches or more; the caller's bug.
        """
        if _shapes(difference) != self.layout.entries:
            raise InternalError("a contribution's names or shapes are not the replica's")
        if weight.batch_count < 1 or not 0 < weight.factor <= 1 or self._total + weight.batch_count >= _MAX_TOTAL:
            raise InternalError(f"a contribution of {weight.batch_count} batches, with factor {weight.factor}")
        factor = np.float32(ratio_as_float32(weight.batch_count, 1) * np.float32(weight.factor))
        self._total += weight.batch_count

        def add(piece: tuple[Stretch, ...]) -> None:
            with np.errstate(all="ignore"):  # overflow is found in the mean; underflow to a denormal is intended
                for stretch in piece:
                    self._add_stretch(stretch, weight.batch_count, factor, difference[stretch.name], read)

        for _ in over(add, pieces_of(self.layout)):
            pass

    def encoded(self, codec_name: str) -> Iterator[Block]:
        """Yield the mean Δ ← S ÷ float32(b), encoded, in name order and part by part.

        Raises:
            Diverged: it is not finite. The same for whoever has the results.
            InternalError: nothing was added.
        """
        for name, count in self.layout.counts():
            yield from self.encoded_stretch(codec_name, Stretch(name, 0, count))

    def encoded_stretch(self, codec_name: str, stretch: Stretch) -> Iterator[Block]:
        """Yield a stretch of the mean, encoded part by part. Raise as `encoded`."""
        if not self._total:
            raise InternalError("the mean of no results")
        codec, whole, name = codec_named(codec_name), ratio_as_float32(self._total, 1), stretch.name
        first = self._starts[name] + stretch.start
        place = slice(first, first + stretch.size)
        sums, counts = self._sums[place], None if self._counts is None else self._counts[place]
        for part in parts_of(codec, sums.size):
            with np.errstate(all="ignore"):
                if counts is None:
                    mean = np.divide(sums[part], whole)
                else:
                    mean = np.divide(sums[part], np.maximum(counts[part], 1).astype(np.float32))
            if check_values(mean, math.inf) is not None:
                raise Diverged(f"the mean of the results of {name!a} is infinite", tensor=name)
            yield codec.encode(mean)

    def _add_stretch(
        self,
        stretch: Stretch,
        batch_count: int,
        weight: np.float32,
        tensor: Float32Array | EncodedTensor,
        read: Callable[[], None],
    ) -> None:
        first = self._starts[stretch.name]
        scratch = np.empty(min(CHUNK_ELEMENTS, stretch.size), np.float32)
        for start in range(stretch.start, stretch.stop, CHUNK_ELEMENTS):
            place = slice(first + start, first + min(start + CHUNK_ELEMENTS, stretch.stop))
            part, counts = self._sums[place], None if self._counts is None else self._counts[place]
            if isinstance(tensor, EncodedTensor) and isinstance(tensor.codec, SparseCodec):
                indices, products = tensor.codec.sent(tensor.block, tensor.size, start, start + part.size)
                np.multiply(products, weight, out=products)
                part[indices] += products
                if counts is not None:
                    counts[indices] += batch_count
            elif counts is not None:
                raise InternalError("a mean over senders of a contribution that sends every element")
            elif isinstance(tensor, EncodedTensor) and isinstance(tensor.codec, RecordCodec):
                tensor.codec.add(tensor.block, tensor.size, start, part, weight, scratch[: part.size])
            else:
                room = scratch[: part.size]
                np.multiply(_read(tensor, start, room), weight, out=room)
                np.add(part, room, out=part)
            read()


def update_of(header: UpdateHeader, layout: TensorLayout, blocks: Callable[[], Iterable[Block]]) -> TensorStream:
    """Return an update's file: of one content there is one.

    Args:
        header: says whose it is.
        layout: names and shapes of the model's parameters.
        blocks: returns the mean as `UpdateSum.encoded` does.
    """
    metadata = {key: str(value) for key, value in asdict(header).items()} | {"format": UPDATE_FORMAT}
    return tensor_stream(codec_named(header.codec).encoded(layout), metadata, blocks)


class UpdatePlaces:
    """Where in the file of an update its values are: as of one content there is one file, that is known before them.

    Args:
        header: says whose it is.
        layout: names and shapes of the model's parameters.

    Attributes:
        beginning: the file's first bytes, after which the values follow.
        size_bytes: size of the file.
        dtype: type of its tensors.
    """

    def __init__(self, header: UpdateHeader, layout: TensorLayout) -> None:
        blank = update_of(header, layout, lambda: iter(()))
        self.beginning = blank.header
        self.size_bytes = blank.size_bytes
        self._codec = codec_named(header.codec)
        self._starts = blank.layout.starts()
        self.dtype = blank.layout.dtype
        self._item_bytes = blank.layout.item_bytes

    def of(self, stretch: Stretch) -> slice:
        """Return the place of a stretch in the file, in bytes; it begins and ends at groups, or at the tensor's end."""
        start = len(self.beginning) + self._starts[stretch.name] * self._item_bytes
        return slice(start + self._size(stretch.start), start + self._size(stretch.stop))

    def _size(self, count: int) -> int:
        return self._codec.encoded(TensorLayout((("", (count,)),))).size_bytes if count else 0


def update_bytes(
    header: UpdateHeader, rule: UpdateRule, layout: TensorLayout, results: Iterable[tuple[Weight, Difference]]
) -> bytes:
    """Return the file of the update that these results make, in the outcome's order; sum and file are in memory.

    Raises:
        Diverged: the mean is not finite.
        InternalError: as `UpdateSum.add`, or there is no result.
    """
    count = sum(size for _, size in layout.counts())
    counts = np.zeros(count, np.int64) if rule.mean == "senders" else None
    total = UpdateSum(layout, rule.mean, np.zeros(count, np.float32), counts)
    for weight, difference in results:
        total.add(weight, difference)
    return update_of(header, layout, lambda: total.encoded(header.codec)).to_bytes()


def update_size_bound(layout: TensorLayout, rule: UpdateRule) -> int:
    """Return the maximum size in bytes of an update for a model of this layout."""
    return file_size_bound(codec_named(rule.codec).encoded(layout), _METADATA_BOUND_BYTES)


def decode_update(data: Buffer, expected: UpdateHeader, layout: TensorLayout) -> Difference:
    """Return the mean that an update holds; its arrays are views of `data`.

    Args:
        data: the update's bytes.
        expected: what its header must say.
        layout: names and shapes of the model's parameters.

    Raises:
        InvalidDocument: it is no update, or another one; `rule` is `header`, `dtype`, `layout`, `size`, `format`,
            or the field of the header that differs.
    """
    try:
        file = parse_tensor_file(data, (FLOAT32_TYPE, BYTES_TYPE))
    except InvalidTensorFile as error:
        raise InvalidDocument(f"not an update: {error.message}", rule=error.rule) from error
    if file.metadata.get("format") != UPDATE_FORMAT:
        raise InvalidDocument(f"not an update of format {UPDATE_FORMAT}", rule="format")
    for field in fields(UpdateHeader):
        found, wanted = file.metadata.get(field.name, ""), str(getattr(expected, field.name))
        if found != wanted:
            raise InvalidDocument(f"an update for {field.name} {found[:80]!a}; expected {wanted!a}", rule=field.name)
    codec = codec_named(expected.codec)
    if file.layout != codec.encoded(layout):
        raise InvalidDocument("an update whose tensors are not the model's", rule="layout")
    blocks: Mapping[str, npt.NDArray[Any]] = file.tensors()
    if expected.codec == FLOAT32.name:
        return blocks
    return {name: EncodedTensor(codec, shape, blocks[name]) for name, shape in layout.entries}


def ratio_as_float32(numerator: int, denominator: int) -> np.float32:
    """Return the float32 nearest to the exact ratio of two positive integers below 2⁶⁴, ties to even, rounded once.

    The quotient is taken to 40 bits or more with the rest folded into its last bit (round to odd), which a float64
    holds exactly; so its conversion to float32 is the only rounding. (Dividing as floats would round twice.)
    """
    if not (0 < numerator < 2**64 and 0 < denominator < 2**64):
        raise InternalError(f"a weight of {numerator}/{denominator}")
    shift = _QUOTIENT_BITS + denominator.bit_length() - numerator.bit_length()
    quotient, rest = divmod(numerator << max(shift, 0), denominator << max(-shift, 0))
    return np.float32(math.ldexp(quotient | (rest > 0), -shift))


def _read(tensor: Float32Array | EncodedTensor, start: int, scratch: Float32Array) -> Float32Array:
    if isinstance(tensor, EncodedTensor):
        return tensor.read(start, scratch)
    return tensor.reshape(-1)[start : start + scratch.size]


def _shapes(difference: Difference) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, difference[name].shape) for name in sorted(difference))
