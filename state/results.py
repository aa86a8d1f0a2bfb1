"""Results: the one file that a client publishes for its whole assignment, and the check that refuses wrong bytes.

A result is a safetensors file with one tensor per parameter, holding the **difference** `start − end`: the
parameters at the start of the round, minus those after the client's local steps. It has the sign of a
gradient, so that the outer step subtracts it, as in DiLoCo (https://arxiv.org/abs/2311.08105, algorithm 1).
The run's codec (`state/codecs/`) says how a parameter's values lie in its tensor: as they are, or as bytes.

Its metadata names its client and round, so that a result copied from another client, round or attempt is refused.
The rule kept here: the check is a pure function of the bytes and of what was assigned, so that every member that
repeats it gets the same answer.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache

import numpy as np

from epochal.state.codecs.clipping import encoded_parts
from epochal.state.codecs.codec import Block, Codec, EncodedTensor, PartMap, parts_of
from epochal.state.codecs.codecs_by_name import FLOAT32, codec_named, find_codec
from epochal.state.errors import InvalidResult
from epochal.state.model.computed_class import UNKNOWN_CLASS, is_computed_class
from epochal.state.model.tensors import (
    BYTES_TYPE,
    FLOAT32_TYPE,
    Buffer,
    Float32Array,
    InvalidTensorFile,
    Readable,
    TensorLayout,
    TensorStream,
    file_size_bound,
    frozen_tensors,
    layout_of,
    parse_tensor_file,
    read_tensor_header,
    tensor_stream,
)
from epochal.state.model.value_checks import sum_of_squares

RESULT_FORMAT = "epochal/result/v1"
METADATA_BOUND_BYTES = 2048
"""Room for a header's text: nine values, none with more than 49 bytes but three hashes."""

_HASH_CHARACTERS = 64
_CHECKED = ("run_id", "step", "attempt", "client_id", "work_sha256", "codec")
_CODEC = "codec"
_START = "start"
_TYPES = (FLOAT32_TYPE, BYTES_TYPE)


@dataclass(frozen=True, slots=True)
class ResultHeader:
    """The client and the round of a result.

    Attributes:
        step, attempt: the round.
        client_id: who trained, 32 hex characters.
        work_sha256: digest of the round's work list, 64 hex characters.
        replica_digest: of the replica from which the client trained, 64 hex characters.
        codec: name of the codec (`state/codecs/codecs_by_name.py`).
        start: digest of the client's own result of the step before, 64 hex characters, if it trained from the outer
            step that this result alone makes of the replica (`merge.delay`); "" if it trained from the replica itself.
        computed: how the client says that it was computed (`state/model/computed_class.py`).
    """

    run_id: str
    step: int
    attempt: int
    client_id: str
    work_sha256: str
    replica_digest: str
    codec: str = FLOAT32.name
    start: str = ""
    computed: str = UNKNOWN_CLASS


Difference = Mapping[str, Float32Array | EncodedTensor]
"""A difference as its result holds it: float32 tensors, or encoded ones, by name."""


def encode_result(header: ResultHeader, difference: Mapping[str, Float32Array]) -> bytes:
    """Return the bytes of `result_of`."""
    return result_of(header, difference).to_bytes()


def result_of(
    header: ResultHeader, difference: Mapping[str, Float32Array], max_abs: float = math.inf, over: PartMap = map
) -> TensorStream:
    """Return a result's file, the same for the same content. It is encoded part by part, whenever it is read.

    Args:
        header: the client and the round, and the codec with which the difference is encoded.
        difference: `start − end` of every parameter, float32; another type is an `InternalError`.
        max_abs: `merge.max_abs`, within which what the codec rounds stays (`state/codecs/clipping.py`).
        over: encodes the parts.
    """
    codec, frozen = codec_named(header.codec), frozen_tensors(difference)
    return result_of_blocks(
        header,
        layout_of(frozen),
        lambda: (block for values in frozen.values() for block in encoded_parts(codec, values, max_abs, over)),
    )


def result_of_blocks(header: ResultHeader, layout: TensorLayout, blocks: Callable[[], Iterable[Block]]) -> TensorStream:
    """Return the file of a result that is encoded with the header's codec.

    Args:
        header: the client and the round.
        layout: names and shapes of the model's parameters.
        blocks: returns the parameters' bytes in name order, each as a whole or in parts.
    """
    metadata = {key: str(value) for key, value in asdict(header).items()}
    if header.codec == FLOAT32.name:  # results were so before there were codecs
        del metadata[_CODEC]
    if not header.start:
        del metadata[_START]
    encoded = codec_named(header.codec).encoded(layout)
    return tensor_stream(encoded, metadata | {"format": RESULT_FORMAT}, blocks)


@lru_cache(maxsize=16)
def result_size_bound(layout: TensorLayout, codec: str = FLOAT32.name) -> int:
    """Return the maximum size in bytes of a result, and so of its upload, for a model of this layout."""
    return file_size_bound(codec_named(codec).encoded(layout), METADATA_BOUND_BYTES)


def check_result(
    data: Readable, expected: ResultHeader, layout: TensorLayout, max_abs: float
) -> tuple[ResultHeader, float]:
    """Return the header and the length of a result that keeps every rule; its bytes are read in one pass.

    The length is √Σx² over all decoded values, computed in float64. Takes constant memory besides the header.

    Args:
        data: the result's bytes, read a piece at a time.
        expected: the assigned round and client, and the run's codec. A result with a `start` must have this one and
            this `replica_digest`; one of that replica must have the `start`, if there is one. Otherwise the digest is
            not compared: the outcome compares the returned one with the digest that the quorum attested.
        layout: names and shapes of the model's parameters.
        max_abs: the largest magnitude that a value may have.

    Raises:
        InvalidResult: the client's fault, do not retry the same bytes. `rule` is `size`, `header`, `dtype`, `layout`,
            `format`, `run_id`, `step`, `attempt`, `client_id`, `work_sha256`, `replica_digest`, `codec`, `start`,
            `computed`, `finite`, `max_abs`, or a rule of the codec: `scale`, `scale_use`, `code`, `code_use`,
            `padding`, `level`, `level_use`, `index`.
    """
    codec = codec_named(expected.codec)
    bound = result_size_bound(layout, expected.codec)
    if len(data) > bound:
        raise InvalidResult("size", f"a result of {len(data)} bytes; at most {bound} are allowed")
    try:
        file = read_tensor_header(data, _TYPES)
    except InvalidTensorFile as error:
        raise _not_a_result(error) from error
    header = _parse_header(file.metadata)
    for name in _CHECKED:
        named, wanted = getattr(header, name), getattr(expected, name)
        if named != wanted:
            raise InvalidResult(name, f"a result for {name} {str(named)[:80]!a}; expected {wanted!a}")
    _check_start(header, expected)
    _check_layout(file.layout, layout, codec)
    start, squares = file.size_bytes, 0.0
    for (name, count), (_, encoded) in zip(layout.counts(), file.layout.counts(), strict=True):
        found = codec.check(data, start, count, max_abs)
        start += encoded * file.layout.item_bytes
        if isinstance(found, str):
            raise InvalidResult(found, f"a result whose tensor {name!a} {_BROKEN[found]}", max_abs=max_abs)
        squares += found
    return header, math.sqrt(squares)


def _check_start(header: ResultHeader, expected: ResultHeader) -> None:
    """Raise `InvalidResult` (`start`) unless a result began from the round's replica, or as its client might."""
    is_of_start = header.replica_digest == expected.replica_digest
    if header.start and not (header.start == expected.start and is_of_start):
        found = f"{header.start} and replica {header.replica_digest}"
        allowed = f", or {expected.start} and replica {expected.replica_digest}" if expected.start else ""
        raise InvalidResult(_START, f"a result whose start is {found}; allowed: none{allowed}")
    if expected.start and is_of_start and not header.start:
        raise InvalidResult(_START, f"a result of replica {header.replica_digest} without the start {expected.start}")


_BROKEN = {
    "finite": "has a value that is not finite",
    "max_abs": "has a value beyond merge.max_abs",
    "scale": "has a scale that is not a positive normal float32",
    "scale_use": "has a block whose scale is not the larger of 2^-126 and its largest value by the largest code",
    "code": "has a code outside its range",
    "code_use": "has a block of two-bit codes of which none is -1 or 0",
    "padding": "has padding that is not zero",
    "level": "has levels that are not positive normal float32 numbers in ascending order",
    "level_use": "has a chunk with two levels of which one is not used, or with two that are equal",
    "index": "has indices that are not strictly ascending within their chunk",
}
"""Every rule that a codec may find broken, in words."""


def norm_of(difference: Difference) -> float:
    """Return the length of a difference, √Σx² computed in float64, as `check_result` does; takes constant memory."""
    squares = 0.0
    for values in difference.values():
        codec = values.codec if isinstance(values, EncodedTensor) else codec_named(FLOAT32.name)
        for part in parts_of(codec, values.size):
            if isinstance(values, EncodedTensor):
                squares += sum_of_squares(values.read(part.start, np.empty(part.stop - part.start, np.float32)))
            else:
                squares += sum_of_squares(values.reshape(-1)[part])
    return math.sqrt(squares)


def decode_result(data: Buffer, layout: TensorLayout) -> tuple[ResultHeader, Difference]:
    """Return header and difference of a result that `check_result` accepted. Its arrays are views of `data`.

    Args:
        data: the result's bytes.
        layout: names and shapes of the model's parameters.

    Raises:
        InvalidResult: the bytes are not a result for this layout (`size`, `header`, `dtype`, `layout`, `format`,
            `codec` and the header's fields); the content of the header and the values are not checked.
    """
    try:
        file = parse_tensor_file(data, _TYPES)
    except InvalidTensorFile as error:
        raise _not_a_result(error) from error
    blocks = file.tensors()
    header = _parse_header(file.metadata)
    codec = codec_named(header.codec)
    _check_layout(file.layout, layout, codec)
    if header.codec == FLOAT32.name:
        return header, blocks
    return header, {name: EncodedTensor(codec, shape, blocks[name]) for name, shape in layout.entries}


def _check_layout(found: TensorLayout, layout: TensorLayout, codec: Codec) -> None:
    expected = codec.encoded(layout)
    if found.dtype != expected.dtype:
        raise InvalidResult("dtype", f"a result of {found.dtype} tensors; codec {codec.name} has {expected.dtype}")
    if found != expected:
        raise InvalidResult("layout", f"a result whose {_first_difference(found, expected)}")


def _not_a_result(error: InvalidTensorFile) -> InvalidResult:
    return InvalidResult(error.rule, f"not a result: {error.message}")


def _parse_header(metadata: Mapping[str, str]) -> ResultHeader:
    found = dict(metadata)
    if found.pop("format", "") != RESULT_FORMAT:
        raise InvalidResult("format", f"not a result of format {RESULT_FORMAT}")
    found.setdefault(_CODEC, FLOAT32.name)
    is_eager = _START in found
    found.setdefault(_START, "")
    if set(found) != {field.name for field in fields(ResultHeader)}:
        raise InvalidResult("header", "a result whose metadata has missing or unknown keys")
    for name in ("work_sha256", "replica_digest", *((_START,) if is_eager else ())):
        if len(found[name]) != _HASH_CHARACTERS or set(found[name]) - set("0123456789abcdef"):
            raise InvalidResult(name, f"a result whose {name} is not {_HASH_CHARACTERS} lowercase hex characters")
    if find_codec(found[_CODEC]) is None or (found[_CODEC] == FLOAT32.name and _CODEC in metadata):
        raise InvalidResult(_CODEC, f"a result whose codec is {found[_CODEC][:32]!a}")
    if not is_computed_class(found["computed"]):
        raise InvalidResult("computed", f"a result whose computed is {found['computed'][:64]!a}, not precision/device")
    return ResultHeader(
        found["run_id"],
        _natural(found, "step"),
        _natural(found, "attempt"),
        found["client_id"],
        found["work_sha256"],
        found["replica_digest"],
        found[_CODEC],
        found[_START],
        found["computed"],
    )


def _natural(found: dict[str, str], name: str) -> int:
    text = found[name]
    if not (text.isascii() and text.isdigit() and len(text) < 20 and str(int(text)) == text):
        raise InvalidResult(name, f"a result whose {name} is {text[:32]!a}, not a natural number")
    return int(text)


def _first_difference(found: TensorLayout, wanted: TensorLayout) -> str:
    shapes, allowed = dict(found.entries), dict(wanted.entries)
    for name in sorted(shapes.keys() | allowed.keys()):
        if shapes.get(name) != allowed.get(name):
            return f"tensor {name!a} has shape {shapes.get(name)}; the model's is {allowed.get(name)}"
    return "tensors differ from the model's"
