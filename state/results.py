"""Results: the one file that a client publishes for its whole assignment, and the check of its bytes.

A result is a safetensors file with one float32 tensor per parameter, holding the **difference** `start − end`: the
parameters at the start of the round, minus those after the client's local steps. It has the sign of a
gradient, so that the outer step subtracts it, as in DiLoCo (https://arxiv.org/abs/2311.08105, algorithm 1).

Its metadata names its client and round, so that a result copied from another client, round or attempt is refused.
The rule kept here: the check is a pure function of the bytes and of what was assigned, so that every member that
repeats it gets the same answer.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from state.errors import InvalidResult
from state.tensors import (
    Buffer,
    Float32Array,
    InvalidTensorFile,
    Readable,
    TensorHeader,
    TensorLayout,
    Tensors,
    TensorStream,
    check_values,
    file_size_bound,
    parse_tensor_file,
    read_tensor_header,
    stream_of,
    value_pieces,
)

RESULT_FORMAT = "epochal/result/v1"
METADATA_BOUND_BYTES = 2048
"""Room for a header's text: six values, of which the longest (a run ID) has at most 32 bytes, and two hashes."""

_HASH_CHARACTERS = 64
_CHECKED = ("run_id", "step", "attempt", "client_id", "work_sha256")


@dataclass(frozen=True, slots=True)
class ResultHeader:
    """The client and the round of a result.

    Attributes:
        step, attempt: the round.
        client_id: who trained, 32 hex characters.
        work_sha256: digest of the round's work list, 64 hex characters.
        replica_digest: of the replica from which the client trained, 64 hex characters.
    """

    run_id: str
    step: int
    attempt: int
    client_id: str
    work_sha256: str
    replica_digest: str


def encode_result(header: ResultHeader, difference: Mapping[str, Float32Array]) -> bytes:
    """Return the bytes of `result_of`."""
    return result_of(header, difference).to_bytes()


def result_of(header: ResultHeader, difference: Mapping[str, Float32Array]) -> TensorStream:
    """Return a result's file, the same for the same content.

    Args:
        header: the client and the round.
        difference: `start − end` of every parameter, float32; another type is an `InternalError`.
    """
    metadata = {key: str(value) for key, value in asdict(header).items()}
    return stream_of(difference, metadata | {"format": RESULT_FORMAT})


def result_size_bound(layout: TensorLayout) -> int:
    """Return the maximum size in bytes of a result, and so of its upload, for a model of this layout."""
    return file_size_bound(layout, METADATA_BOUND_BYTES)


def check_result(data: Readable, expected: ResultHeader, layout: TensorLayout, max_abs: float) -> ResultHeader:
    """Check a result's bytes against every rule, and return its header. Takes constant memory besides the header.

    Args:
        data: the result's bytes, read a piece at a time.
        expected: the assigned round and client. Its `replica_digest` is not compared: the outcome compares the
            returned one with the digest that the quorum attested.
        layout: names and shapes of the model's parameters.
        max_abs: the largest magnitude that a value may have.

    Raises:
        InvalidResult: the client's fault, do not retry the same bytes. `rule` is `size`, `header`, `dtype`, `layout`,
            `format`, `run_id`, `step`, `attempt`, `client_id`, `work_sha256`, `replica_digest`, `finite` or `max_abs`.
    """
    bound = result_size_bound(layout)
    if len(data) > bound:
        raise InvalidResult("size", f"a result of {len(data)} bytes; at most {bound} are allowed")
    file = _read_header(data)
    header = _parse_header(file.metadata)
    for name in _CHECKED:
        found, wanted = getattr(header, name), getattr(expected, name)
        if found != wanted:
            raise InvalidResult(name, f"a result for {name} {str(found)[:80]!a}; expected {wanted!a}")
    if file.layout != layout:
        raise InvalidResult("layout", f"a result whose {_first_difference(file.layout, layout)}")
    for values in value_pieces(data, file.size_bytes, len(data)):
        broken = check_values(values, max_abs)
        if broken is not None:
            message = f"a result with a value that is not finite or beyond ±{max_abs}"
            raise InvalidResult(broken, message, max_abs=max_abs)
    return header


def decode_result(data: Buffer) -> tuple[ResultHeader, Tensors]:
    """Return header and difference of a result that `check_result` accepted; the arrays are read-only views of `data`.

    Raises:
        InvalidResult: the bytes are not a result (`size`, `header`, `dtype`, `layout`, `format` and the header's
            fields); the content of the header and the values are not checked.
    """
    try:
        file = parse_tensor_file(data)
    except InvalidTensorFile as error:
        raise _not_a_result(error) from error
    return _parse_header(file.metadata), file.tensors()


def _read_header(data: Readable) -> TensorHeader:
    try:
        return read_tensor_header(data)
    except InvalidTensorFile as error:
        raise _not_a_result(error) from error


def _not_a_result(error: InvalidTensorFile) -> InvalidResult:
    return InvalidResult(error.rule, f"not a result: {error.message}")


def _parse_header(metadata: Mapping[str, str]) -> ResultHeader:
    found = dict(metadata)
    if found.pop("format", "") != RESULT_FORMAT:
        raise InvalidResult("format", f"not a result of format {RESULT_FORMAT}")
    if set(found) != {field.name for field in fields(ResultHeader)}:
        raise InvalidResult("header", "a result whose metadata has missing or unknown keys")
    for name in ("work_sha256", "replica_digest"):
        if len(found[name]) != _HASH_CHARACTERS or set(found[name]) - set("0123456789abcdef"):
            raise InvalidResult(name, f"a result whose {name} is not {_HASH_CHARACTERS} lowercase hex characters")
    return ResultHeader(
        found["run_id"],
        _natural(found, "step"),
        _natural(found, "attempt"),
        found["client_id"],
        found["work_sha256"],
        found["replica_digest"],
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
