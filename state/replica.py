"""The replica: the model as every member holds it between two rounds, its digest, and the checkpoint file.

The rule kept here: two replicas are equal exactly when their digests are. The digest covers only the step, the
parameters and the outer momentum (`docs/concepts.md`); inner optimizer state is each client's own.
"""

import hashlib
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from state.errors import InternalError, InvalidDocument
from state.layout_difference import layout_difference
from state.tensors import (
    CHECK_CHUNK_ELEMENTS,
    Buffer,
    Float32Array,
    InvalidTensorFile,
    Readable,
    TensorFile,
    TensorHeader,
    TensorLayout,
    Tensors,
    TensorStream,
    check_values,
    file_size_bound,
    frozen_tensors,
    layout_of,
    parse_tensor_file,
    read_tensor_header,
    tensor_stream,
    value_pieces,
    wire_bytes,
)

CHECKPOINT_FORMAT = "epochal/checkpoint"
CHECKPOINT_VERSION = "1"
PARAMETERS_PREFIX = "parameters."
MOMENTUM_PREFIX = "momentum."
"""Beginnings of the names of a checkpoint's tensors."""

_DIGEST_DOMAIN = b"epochal/replica/v1\0"
_MODEL = "model"
_METADATA_BOUND_BYTES = 1024
_MAX_STEP = 2**63 - 1


@dataclass(frozen=True, eq=False)
class Replica:
    """The model after `step` outcomes.

    The arrays are kept as read-only C-contiguous float32 in name order, views of the caller's where those already are.

    Attributes:
        step: outcomes applied; 0 for the initial parameters.
        parameters: float32 arrays by name.
        momentum: outer momentum, the same names and shapes.

    Raises:
        InternalError: another type than float32, or names and shapes that differ between the two; the caller's bug.
    """

    step: int
    parameters: Tensors
    momentum: Tensors

    def __post_init__(self) -> None:
        if not 0 <= self.step <= _MAX_STEP:
            raise InternalError(f"a replica's step is {self.step}", step=self.step)
        object.__setattr__(self, "parameters", frozen_tensors(self.parameters))
        object.__setattr__(self, "momentum", frozen_tensors(self.momentum))
        if layout_of(self.parameters) != layout_of(self.momentum):
            raise InternalError("a replica's parameters and momentum differ in names or shapes")

    @property
    def layout(self) -> TensorLayout:
        """Names and shapes of the parameters."""
        return layout_of(self.parameters)


def replica_digest(replica: Replica, read: Callable[[], None] = lambda: None) -> str:
    """Return the SHA-256 of the replica as hex; the same on every machine, whatever its memory layout.

    It covers a domain tag, the step (u64), the number of tensors (u32), and for each in name order: the name's UTF-8
    length (u32) and bytes, the number of dimensions (u32) and each (u64), then the parameters' values and the
    momentum's, in C order. Integers and floats are little-endian; values are finite, so that no bits are ambiguous.

    Args:
        replica: the replica.
        read: called after each piece of its values.
    """
    digest = ReplicaDigest(replica.step, len(replica.parameters))
    for name, parameter in replica.parameters.items():
        digest.begin(name, parameter.shape)
        for values in (parameter.reshape(-1), replica.momentum[name].reshape(-1)):
            for start in range(0, values.size, CHECK_CHUNK_ELEMENTS):
                digest.add_values(values[start : start + CHECK_CHUNK_ELEMENTS])
                read()
    return digest.hexdigest()


class ReplicaDigest:
    """The digest of a replica whose tensors come one at a time.

    Args:
        step: of the replica.
        count: number of its parameters.
    """

    def __init__(self, step: int, count: int) -> None:
        self._digest = hashlib.sha256(_DIGEST_DOMAIN)
        self._digest.update(struct.pack("<QI", step, count))

    def add(self, name: str, parameter: Float32Array, momentum: Float32Array) -> None:
        """Add the next parameter, in name order, and its outer momentum."""
        self.begin(name, parameter.shape)
        self.add_values(parameter)
        self.add_values(momentum)

    def begin(self, name: str, shape: tuple[int, ...]) -> None:
        """Begin the next parameter, in name order: its values follow, and then those of its outer momentum."""
        text = name.encode()
        self._digest.update(struct.pack(f"<I{len(text)}sI{len(shape)}Q", len(text), text, len(shape), *shape))

    def add_values(self, values: Float32Array) -> None:
        """Add the next values of the parameter that was begun, of any number."""
        self._digest.update(wire_bytes(values))

    def hexdigest(self) -> str:
        """Return the digest of what was added."""
        return self._digest.hexdigest()


def checkpoint_bytes(replica: Replica, model: str | None = None) -> bytes:
    """Return the bytes of `checkpoint_of`."""
    return checkpoint_of(replica, model).to_bytes()


def checkpoint_of(replica: Replica, model: str | None = None) -> TensorStream:
    """Return the checkpoint file: safetensors of `parameters.NAME` and `momentum.NAME`, the same for equal replicas.

    Args:
        replica: what it holds.
        model: the run's model document as text, in the run's first checkpoint.
    """

    def values() -> Iterator[Float32Array]:
        yield from replica.momentum.values()
        yield from replica.parameters.values()

    return checkpoint_stream(replica.step, replica.layout, values, model)


def checkpoint_stream(
    step: int, layout: TensorLayout, values: Callable[[], Iterable[Float32Array]], model: str | None = None
) -> TensorStream:
    """Return the checkpoint file of a replica whose tensors are made one at a time.

    Args:
        step: of the replica.
        layout: of its parameters.
        values: returns the outer momentum of every parameter in name order, and then the parameters.
        model: as in `checkpoint_of`.
    """
    metadata = {"format": CHECKPOINT_FORMAT, "version": CHECKPOINT_VERSION, "step": str(step)}
    if model is not None:
        metadata[_MODEL] = model
    prefixes = (MOMENTUM_PREFIX, PARAMETERS_PREFIX)  # the order of a tensor file is that of the names
    entries = tuple((prefix + name, shape) for prefix in prefixes for name, shape in layout.entries)
    return tensor_stream(TensorLayout(entries), metadata, values)


def blank_checkpoint(step: int, layout: TensorLayout) -> TensorStream:
    """Return the checkpoint file of a replica whose values are not known yet: its header and its size."""
    return checkpoint_stream(step, layout, tuple)


def arrays_in(room: memoryview, layout: TensorLayout) -> tuple[Tensors, Tensors]:
    """Return the parameters and the outer momentum in a checkpoint that is being written, as arrays to write to.

    Args:
        room: the bytes after its header.
        layout: of its parameters.
    """
    values = np.frombuffer(room, np.dtype("<f4"))
    found: list[Tensors] = []
    offset = 0
    for _ in (MOMENTUM_PREFIX, PARAMETERS_PREFIX):
        tensors: Tensors = {}
        for name, shape in layout.entries:
            count = math.prod(shape)
            tensors[name] = values[offset : offset + count].reshape(shape)
            offset += count
        found.append(tensors)
    momentum, parameters = found
    return parameters, momentum


def checkpoint_size_bound(layout: TensorLayout, model_bytes: int = 0) -> int:
    """Return an upper bound in bytes for a checkpoint.

    Args:
        layout: of its parameters.
        model_bytes: size of the model document, in a run's first checkpoint; a quote in it takes two bytes there.
    """
    return 2 * model_bytes + sum(
        file_size_bound(TensorLayout(tuple((prefix + name, shape) for name, shape in layout.entries)), bound)
        for prefix, bound in ((PARAMETERS_PREFIX, _METADATA_BOUND_BYTES), (MOMENTUM_PREFIX, 0))
    )


def parse_checkpoint(data: Buffer) -> Replica:
    """Return the replica that a checkpoint holds; its arrays are read-only views of `data`.

    Raises:
        InvalidDocument: the sender's fault, do not retry the same bytes; `rule` in the context names what is broken:
            those of `parse_tensor_file`, `format`, `step`, `names`, `finite`.
    """
    file = _tensor_file(data)
    replica = _replica_in(file)
    if check_values(file.values, math.inf) is not None:
        raise InvalidDocument("a checkpoint with values that are not finite", rule="finite")
    return replica


def examined_replica(data: Buffer) -> Replica:
    """Return the replica in a checkpoint that `examine_checkpoint` accepted, whose values are not read once more."""
    return _replica_in(_tensor_file(data))


def _replica_in(file: TensorFile) -> Replica:
    step, _ = _parse_metadata(file.metadata)
    parameters: Tensors = {}
    momentum: Tensors = {}
    for name, array in file.tensors().items():
        if name.startswith(PARAMETERS_PREFIX):
            parameters[name.removeprefix(PARAMETERS_PREFIX)] = array
        elif name.startswith(MOMENTUM_PREFIX):
            momentum[name.removeprefix(MOMENTUM_PREFIX)] = array
        else:
            raise InvalidDocument(f"a checkpoint with a tensor {name!a}", rule="names")
    if not parameters or layout_of(parameters) != layout_of(momentum):
        raise InvalidDocument("a checkpoint whose parameters and momentum differ in names or shapes", rule="names")
    return Replica(step, parameters, momentum)


@dataclass(frozen=True, slots=True)
class CheckpointContent:
    """The content of a checkpoint without its values.

    Attributes:
        step: of its replica.
        layout: of its parameters.
        model: the model document, as text, in a run's first checkpoint.
        replica_digest: of its replica.
    """

    step: int
    layout: TensorLayout
    model: str | None
    replica_digest: str


def look_at_nothing(_name: str, _parameter: Float32Array | None, _momentum: Float32Array | None) -> None:
    """Do nothing."""


def examine_checkpoint(
    data: Readable, look: Callable[[str, Float32Array | None, Float32Array | None], None] = look_at_nothing
) -> CheckpointContent:
    """Check a checkpoint as `parse_checkpoint` does, and return what it holds, in constant memory besides its header.

    Args:
        data: the file, read a piece at a time.
        look: is shown all values in the order of the replica digest, a flat piece at a time: the parameter's name, and
            a piece of the parameter or of its outer momentum.

    Raises:
        InvalidDocument: as `parse_checkpoint`.
    """
    header = _tensor_header(data)
    step, layout = parse_checkpoint_header(header)
    digest = ReplicaDigest(step, len(layout.entries))
    momentum_start = header.size_bytes
    for name, shape in layout.entries:
        size_bytes = 4 * math.prod(shape)
        digest.begin(name, shape)
        parameter_start = momentum_start + layout.size_bytes
        for is_momentum, start in ((False, parameter_start), (True, momentum_start)):
            for values in value_pieces(data, start, start + size_bytes):
                if check_values(values, math.inf) is not None:
                    raise InvalidDocument("a checkpoint with values that are not finite", rule="finite")
                look(name, None if is_momentum else values, values if is_momentum else None)
                digest.add_values(values)
        momentum_start += size_bytes
    return CheckpointContent(step, layout, _parse_metadata(header.metadata)[1], digest.hexdigest())


def checkpoint_layout(data: Readable) -> TensorLayout:
    """Return the layout of a checkpoint's parameters, from its header alone. Raises as `parse_checkpoint_header`."""
    return parse_checkpoint_header(_tensor_header(data))[1]


def _tensor_file(data: Buffer) -> TensorFile:
    try:
        return parse_tensor_file(data)
    except InvalidTensorFile as error:
        raise _not_a_checkpoint(error) from error


def _tensor_header(data: Readable) -> TensorHeader:
    try:
        return read_tensor_header(data)
    except InvalidTensorFile as error:
        raise _not_a_checkpoint(error) from error


def _not_a_checkpoint(error: InvalidTensorFile) -> InvalidDocument:
    return InvalidDocument(f"not a checkpoint: {error.message}", rule=error.rule)


def parse_checkpoint_header(header: TensorHeader) -> tuple[int, TensorLayout]:
    """Return the step of a checkpoint, and the layout of its parameters.

    A checkpoint's values are its outer momentum's, and then its parameters'; each part has this layout.

    Raises:
        InvalidDocument: the header is not that of a checkpoint; rules `format`, `step` and `names`.
    """
    step, _ = _parse_metadata(header.metadata)
    momentum, parameters = (
        tuple((name.removeprefix(prefix), shape) for name, shape in header.layout.entries if name.startswith(prefix))
        for prefix in (MOMENTUM_PREFIX, PARAMETERS_PREFIX)
    )
    if not parameters or momentum != parameters or len(header.layout.entries) != 2 * len(parameters):
        raise InvalidDocument("a checkpoint whose parameters and momentum differ in names or shapes", rule="names")
    return step, TensorLayout(parameters)


def first_replica(step: int, parameters: Tensors) -> Replica:
    """Return the replica with which a run starts: these parameters, and no momentum."""
    return Replica(step, parameters, {name: no_momentum(values.shape) for name, values in parameters.items()})


def no_momentum(shape: tuple[int, ...]) -> Float32Array:
    """Return the outer momentum with which a parameter of this shape starts: zeros."""
    return np.zeros(shape, np.float32)


def check_layout(found: TensorLayout, layout: TensorLayout) -> None:
    """Raise `InvalidDocument` (rule `layout`) unless a checkpoint's parameters are those of the run's model."""
    difference = layout_difference(found, layout)
    if difference is not None:
        raise InvalidDocument(
            f"a checkpoint of another model than the state file describes: it has {difference}", rule="layout"
        )


def _parse_metadata(metadata: Mapping[str, str]) -> tuple[int, str | None]:
    """Return the step, and the model document if there is one.

    Raises:
        InvalidDocument: format or version is not the one that this module writes.
    """
    expected = {"format": CHECKPOINT_FORMAT, "version": CHECKPOINT_VERSION}
    found = dict(metadata)
    step, model = found.pop("step", ""), found.pop(_MODEL, None)
    if found != expected:
        raise InvalidDocument(f"a checkpoint of another format than {expected}", rule="format")
    if not (step.isascii() and step.isdigit() and len(step) < 20 and str(int(step)) == step and int(step) <= _MAX_STEP):
        raise InvalidDocument(f"a checkpoint at step {step[:32]!a}", rule="step")
    return int(step), model
