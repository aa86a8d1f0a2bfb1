"""The replica: the model as every member holds it between two rounds, its digest, and the checkpoint file.

The rule kept here: two replicas are equal exactly when their digests are. The digest covers only the step, the
parameters and the outer momentum (`docs/concepts.md`); inner optimizer state is each client's own.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from epochal.state.errors import InternalError, InvalidDocument
from epochal.state.model.digest import HASHED_ELEMENTS, ReplicaDigest
from epochal.state.model.layout_difference import layout_difference
from epochal.state.model.tensors import (
    CHECK_CHUNK_ELEMENTS,
    Buffer,
    Float32Array,
    InvalidTensorFile,
    Readable,
    TensorHeader,
    TensorLayout,
    Tensors,
    TensorStream,
    file_size_bound,
    frozen_tensors,
    layout_of,
    read_tensor_header,
    tensor_stream,
    value_pieces,
)
from epochal.state.model.value_checks import check_values
from epochal.state.wire import Blake3

CHECKPOINT_FORMAT = "epochal/checkpoint"
CHECKPOINT_VERSION = "1"
PARAMETERS_PREFIX = "parameters."
MOMENTUM_PREFIX = "momentum."
"""Beginnings of the names of a checkpoint's tensors."""

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
        momentum: outer momentum, the same names and shapes; empty in a run without (`merge.outer_momentum = 0`).

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
        if self.momentum and layout_of(self.parameters) != layout_of(self.momentum):
            raise InternalError("a replica's parameters and momentum differ in names or shapes")

    @property
    def layout(self) -> TensorLayout:
        """Names and shapes of the parameters."""
        return layout_of(self.parameters)

    @property
    def has_momentum(self) -> bool:
        """Whether there is outer momentum."""
        return bool(self.momentum)


def replica_digest(replica: Replica, read: Callable[[], None] = lambda: None) -> Blake3:
    """Return the BLAKE3 of the replica as hex; the same on every machine, whatever its memory layout.

    It covers a domain tag, the step (u64), the number of tensors (u32), and for each in name order: the name's UTF-8
    length (u32) and bytes, the number of dimensions (u32) and each (u64), then the parameters' values and the
    momentum's, in C order. Without outer momentum its values are left out, and the tag is another one. Integers and
    floats are little-endian; values are finite, so that no bits are ambiguous.

    Args:
        replica: the replica.
        read: called after each piece of its values.
    """
    digest = ReplicaDigest(replica.step, replica.layout, replica.has_momentum)
    for name, parameter in replica.parameters.items():
        digest.begin(name, parameter.shape)
        momentum = (replica.momentum[name].reshape(-1),) if replica.has_momentum else ()
        for values in (parameter.reshape(-1), *momentum):
            for start in range(0, values.size, HASHED_ELEMENTS):
                digest.add_values(values[start : start + HASHED_ELEMENTS])
                read()
    return digest.hexdigest()


def checkpoint_bytes(replica: Replica, model: str | None = None) -> bytes:
    """Return the bytes of `checkpoint_of`."""
    return checkpoint_of(replica, model).to_bytes()


def checkpoint_of(replica: Replica, model: str | None = None) -> TensorStream:
    """Return the checkpoint file: safetensors of `momentum.NAME` and `parameters.NAME`, the same for equal replicas.

    Args:
        replica: what it holds.
        model: the run's model document as text, in the run's first checkpoint.
    """

    def values() -> Iterator[Float32Array]:
        yield from replica.momentum.values()
        yield from replica.parameters.values()

    form = CheckpointForm(replica.step, replica.layout, replica.has_momentum)
    return checkpoint_stream(form, values, model)


@dataclass(frozen=True, slots=True)
class CheckpointForm:
    """Which values a checkpoint has.

    Attributes:
        step: of its replica.
        layout: of its parameters.
        has_momentum: whether it holds the outer momentum, before the parameters and with their layout.
    """

    step: int
    layout: TensorLayout
    has_momentum: bool

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Beginnings of the tensors' names, in the order of the file, which is that of the names."""
        return (MOMENTUM_PREFIX, PARAMETERS_PREFIX) if self.has_momentum else (PARAMETERS_PREFIX,)

    @property
    def size_bound(self) -> int:
        """Upper bound in bytes for a checkpoint of this form."""
        return checkpoint_size_bound(self.layout, has_momentum=self.has_momentum)


def checkpoint_stream(
    form: CheckpointForm, values: Callable[[], Iterable[Float32Array]], model: str | None = None
) -> TensorStream:
    """Return the checkpoint file of a replica whose tensors are made one at a time.

    Args:
        form: which values it has.
        values: returns the outer momentum of every parameter in name order, if there is any, and then the parameters.
        model: as in `checkpoint_of`.
    """
    metadata = {"format": CHECKPOINT_FORMAT, "version": CHECKPOINT_VERSION, "step": str(form.step)}
    if model is not None:
        metadata[_MODEL] = model
    entries = tuple((prefix + name, shape) for prefix in form.prefixes for name, shape in form.layout.entries)
    return tensor_stream(TensorLayout(entries), metadata, values)


def blank_checkpoint(form: CheckpointForm) -> TensorStream:
    """Return the checkpoint file of a replica whose values are not known yet: its header and its size."""
    return checkpoint_stream(form, tuple)


def arrays_in(room: memoryview, form: CheckpointForm) -> tuple[Tensors, Tensors]:
    """Return the parameters and the outer momentum in a checkpoint as views, to write to if it is being written.

    Args:
        room: the bytes after its header.
        form: which values it has.
    """
    values = np.frombuffer(room, np.dtype("<f4"))
    found: dict[str, Tensors] = {MOMENTUM_PREFIX: {}, PARAMETERS_PREFIX: {}}
    offset = 0
    for prefix in form.prefixes:
        for name, shape in form.layout.entries:
            count = math.prod(shape)
            found[prefix][name] = values[offset : offset + count].reshape(shape)
            offset += count
    return found[PARAMETERS_PREFIX], found[MOMENTUM_PREFIX]


@lru_cache(maxsize=16)
def checkpoint_size_bound(layout: TensorLayout, model_bytes: int = 0, *, has_momentum: bool) -> int:
    """Return an upper bound in bytes for a checkpoint.

    Args:
        layout: of its parameters.
        model_bytes: size of the model document, in a run's first checkpoint; a quote in it takes two bytes there.
        has_momentum: whether it holds the outer momentum.
    """
    parts = ((PARAMETERS_PREFIX, _METADATA_BOUND_BYTES), *([(MOMENTUM_PREFIX, 0)] if has_momentum else []))
    return 2 * model_bytes + sum(
        file_size_bound(TensorLayout(tuple((prefix + name, shape) for name, shape in layout.entries)), bound)
        for prefix, bound in parts
    )


def parse_checkpoint(data: Buffer) -> Replica:
    """Return the replica that a checkpoint holds; its arrays are read-only views of `data`.

    Raises:
        InvalidDocument: the sender's fault, do not retry the same bytes; `rule` in the context names what is broken:
            those of `read_tensor_header`, `format`, `step`, `names`, `finite`.
    """
    form, values = _values_of(data)
    if check_values(np.frombuffer(values, np.dtype("<f4")), math.inf) is not None:
        raise InvalidDocument("a checkpoint with values that are not finite", rule="finite")
    return Replica(form.step, *arrays_in(values, form))


def examined_replica(data: Buffer) -> Replica:
    """Return the replica in a checkpoint that `examine_checkpoint` accepted, whose values are not read once more."""
    form, values = _values_of(data)
    return Replica(form.step, *arrays_in(values, form))


def _values_of(data: Buffer) -> tuple[CheckpointForm, memoryview]:
    """Return which values a checkpoint has, and their bytes, as a read-only view."""
    view = memoryview(data).cast("B").toreadonly()
    header = _tensor_header(view)
    return parse_checkpoint_header(header), view[header.size_bytes :]


@dataclass(frozen=True, slots=True)
class CheckpointContent:
    """The content of a checkpoint without its values.

    Attributes:
        form: its replica's step, and which values it has.
        model: the model document, as text, in a run's first checkpoint.
        replica_digest: of its replica.
    """

    form: CheckpointForm
    model: str | None
    replica_digest: Blake3


def look_at_nothing(_name: str, _parameter: Float32Array | None, _momentum: Float32Array | None) -> None:
    """Do nothing."""


def examine_checkpoint(
    data: Readable, look: Callable[[str, Float32Array | None, Float32Array | None], None] = look_at_nothing
) -> CheckpointContent:
    """Check a checkpoint as `parse_checkpoint` does, and return what it holds, in constant memory besides its header.

    Args:
        data: the file, read a piece at a time.
        look: called with all values in the order of the replica digest, a flat piece at a time: the parameter's name,
            and a piece of the parameter or of its outer momentum.

    Raises:
        InvalidDocument: as `parse_checkpoint`.
    """
    header = _tensor_header(data)
    form = parse_checkpoint_header(header)
    layout, digest = form.layout, ReplicaDigest(form.step, form.layout, form.has_momentum)
    place = header.size_bytes
    for name, shape in layout.entries:
        size_bytes = 4 * math.prod(shape)
        digest.begin(name, shape)
        parts = ((False, place + layout.size_bytes), (True, place)) if form.has_momentum else ((False, place),)
        for is_momentum, start in parts:
            for values in value_pieces(data, start, start + size_bytes):
                if check_values(values, math.inf) is not None:
                    raise InvalidDocument("a checkpoint with values that are not finite", rule="finite")
                look(name, None if is_momentum else values, values if is_momentum else None)
                digest.add_values(values)
        place += size_bytes
    return CheckpointContent(form, _parse_metadata(header.metadata)[1], digest.hexdigest())


def checkpoint_form(data: Readable) -> CheckpointForm:
    """Return which values a checkpoint has, from its header alone. Raises as `parse_checkpoint_header`."""
    return parse_checkpoint_header(_tensor_header(data))


def _tensor_header(data: Readable) -> TensorHeader:
    try:
        return read_tensor_header(data)
    except InvalidTensorFile as error:
        raise InvalidDocument(f"not a checkpoint: {error.message}", rule=error.rule) from error


def parse_checkpoint_header(header: TensorHeader) -> CheckpointForm:
    """Return the step of a checkpoint, and which values it has.

    Raises:
        InvalidDocument: the header is not that of a checkpoint; rules `format`, `step` and `names`.
    """
    step, _ = _parse_metadata(header.metadata)
    momentum, parameters = (
        tuple((name.removeprefix(prefix), shape) for name, shape in header.layout.entries if name.startswith(prefix))
        for prefix in (MOMENTUM_PREFIX, PARAMETERS_PREFIX)
    )
    if not parameters or momentum not in ((), parameters) or len(header.layout.entries) != len(parameters + momentum):
        raise InvalidDocument("a checkpoint whose parameters and momentum differ in names or shapes", rule="names")
    return CheckpointForm(step, TensorLayout(parameters), bool(momentum))


def first_replica(step: int, parameters: Tensors, has_momentum: bool = True) -> Replica:
    """Return the replica with which a run starts: these parameters, and the outer momentum zero if there is any."""
    if not has_momentum:
        return Replica(step, parameters, {})
    return Replica(step, parameters, {name: no_momentum(values.shape) for name, values in parameters.items()})


def no_momentum(shape: tuple[int, ...]) -> Float32Array:
    """Return the outer momentum with which a parameter of this shape starts: zeros."""
    return np.zeros(shape, np.float32)


def no_momentum_parts(shape: tuple[int, ...]) -> Iterator[Float32Array]:
    """Yield `no_momentum` in flat parts that take constant memory."""
    count = math.prod(shape)
    zeros = np.zeros(min(count, CHECK_CHUNK_ELEMENTS), np.float32)
    for start in range(0, count, CHECK_CHUNK_ELEMENTS):
        yield zeros[: count - start]


def check_momentum(has_momentum: bool, needs_momentum: bool) -> None:
    """Raise `InvalidDocument` (rule `momentum`) unless a checkpoint has outer momentum exactly where its run has."""
    if has_momentum != needs_momentum:
        with_or_without = "without outer momentum, which" if needs_momentum else "with outer momentum, which not even"
        raise InvalidDocument(f"a checkpoint {with_or_without} the run's other replicas have", rule="momentum")


def check_layout(found: TensorLayout, layout: TensorLayout) -> None:
    """Raise `InvalidDocument` (rule `layout`) unless a checkpoint's parameters are those of the run's model."""
    difference = layout_difference(found, layout)
    if difference is not None:
        raise InvalidDocument(
            f"a checkpoint of another model than the state file describes: it has {difference}", rule="layout"
        )


def _parse_metadata(metadata: Mapping[str, str]) -> tuple[int, str | None]:
    """Return the step, and the model document if there is one. Raise `InvalidDocument` for another format."""
    expected = {"format": CHECKPOINT_FORMAT, "version": CHECKPOINT_VERSION}
    found = dict(metadata)
    step, model = found.pop("step", ""), found.pop(_MODEL, None)
    if found != expected:
        raise InvalidDocument(f"a checkpoint of another format than {expected}", rule="format")
    if not (step.isascii() and step.isdigit() and len(step) < 20 and str(int(step)) == step and int(step) <= _MAX_STEP):
        raise InvalidDocument(f"a checkpoint at step {step[:32]!a}", rule="step")
    return int(step), model
