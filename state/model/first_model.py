"""The model that a run starts from: its spec, which becomes the run's model document, and its first replica.

Both travel together, in the run's first checkpoint: a checkpoint file whose metadata also hold the model document.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from epochal.state.config.model_table import ModelSpec
from epochal.state.errors import InvalidDocument
from epochal.state.model.digest import ReplicaDigest
from epochal.state.model.replica import (
    PARAMETERS_PREFIX,
    CheckpointForm,
    Replica,
    checkpoint_stream,
    first_replica,
    no_momentum_parts,
)
from epochal.state.model.tensors import Float32Array, TensorLayout, TensorStream
from epochal.state.model.value_checks import check_values
from epochal.state.wire import Blake3, Sha256, canonical_json, document_digest, parse_document


@dataclass(frozen=True, slots=True, eq=False)
class FirstModel:
    """A run's model at its start, whose parameters come one at a time.

    Attributes:
        spec: complete: everything on which the parameters' names and shapes depend.
        step: of the first replica.
        layout: names and shapes of its parameters.
        parameters: returns the parameters in name order with their names, each as a whole or in flat parts, one after
            the other, read or made when they are asked for; every call returns them again. Errors of their source
            surface there.
        has_momentum: whether the run has outer momentum.
    """

    spec: ModelSpec
    step: int
    layout: TensorLayout
    parameters: Callable[[], Iterable[tuple[str, Float32Array]]]
    has_momentum: bool = True

    @classmethod
    def of(cls, spec: ModelSpec, replica: Replica) -> Self:
        """Return the model of a first replica, which is in memory."""
        return cls(spec, replica.step, replica.layout, replica.parameters.items, replica.has_momentum)

    @property
    def form(self) -> CheckpointForm:
        """Which values its checkpoint has."""
        return CheckpointForm(self.step, self.layout, self.has_momentum)

    @property
    def replica(self) -> Replica:
        """The first replica, all of which is read into memory."""
        tensors = checkpoint_stream(CheckpointForm(self.step, self.layout, False), self._values).tensors()
        parameters = {name: tensors[PARAMETERS_PREFIX + name] for name, _ in self.layout.entries}
        return first_replica(self.step, parameters, self.has_momentum)

    def _values(self) -> Iterator[Float32Array]:
        return (values for _, values in self.parameters())


class FirstDigest:
    """The digest of a first replica, to which its parameters are added with the momentum with which they start."""

    def __init__(self, first: FirstModel) -> None:
        self._shapes = dict(first.layout.entries)
        self._has_momentum = first.has_momentum
        self._digest = ReplicaDigest(first.step, first.layout, first.has_momentum)
        self._missing = 0

    def add(self, name: str, values: Float32Array) -> None:
        """Add the next parameter, or the next part of one."""
        shape = self._shapes[name]
        if not self._missing:
            self._digest.begin(name, shape)
            self._missing = math.prod(shape)
        self._digest.add_values(values)
        self._missing -= values.size
        if not self._missing and self._has_momentum:
            for part in no_momentum_parts(shape):
                self._digest.add_values(part)

    def hexdigest(self) -> Blake3:
        """Return the digest of what was added."""
        return self._digest.hexdigest()


def model_document(spec: ModelSpec) -> bytes:
    """Return the model document of a run with this model: canonical JSON, which its digest names."""
    return canonical_json(spec.to_plain())


def model_digest(spec: ModelSpec) -> Sha256:
    """Return the digest of the model document."""
    return document_digest(spec.to_plain())


def first_checkpoint(first: FirstModel, look: Callable[[str, Float32Array], None] | None = None) -> TensorStream:
    """Return the run's first checkpoint: the checkpoint file of the first replica, with the model document.

    Args:
        first: the model; one parameter of it, or a part of one, is in memory at a time.
        look: called with every parameter, or part of one, before its bytes; may raise an error.
    """

    def values() -> Iterator[Float32Array]:
        for _, shape in first.layout.entries if first.has_momentum else ():
            yield from no_momentum_parts(shape)
        for name, array in first.parameters():
            if look is not None:
                look(name, array)
            yield array

    return checkpoint_stream(first.form, values, model_document(first.spec).decode("ascii"))


def spec_of_document(text: str | None) -> ModelSpec | None:
    """Return the spec in the model document of a checkpoint; None without a document.

    Raises:
        InvalidDocument: rule `model`: the document is not a spec.
    """
    if text is None:
        return None
    try:
        return parse_document(ModelSpec, text)
    except InvalidDocument as error:
        raise InvalidDocument(f"a first checkpoint whose model document is {error.message}", rule="model") from error


def check_first_values(replica: Replica, max_abs: float) -> None:
    """Raise `InvalidDocument` unless a run can start from these values.

    The rule is `max_abs` for a parameter that is larger than any value of a result may be, and `momentum` if the outer
    momentum is not zero.
    """
    values = FirstValues(max_abs)
    for name, parameter in replica.parameters.items():
        values.look(name, parameter.reshape(-1), replica.momentum[name].reshape(-1) if replica.has_momentum else None)
    values.check()


class FirstValues:
    """The rules of `check_first_values`, for values that come a piece at a time."""

    def __init__(self, max_abs: float) -> None:
        self._max_abs = max_abs
        self._too_large: str | None = None
        self._has_momentum = False

    def look(self, name: str, parameter: Float32Array | None, momentum: Float32Array | None) -> None:
        """Take flat values of a parameter, or of its outer momentum, or of both."""
        if parameter is not None and self._too_large is None and check_values(parameter, self._max_abs) is not None:
            self._too_large = name
        if momentum is not None and not self._has_momentum:
            self._has_momentum = check_values(momentum, 0.0) is not None

    def check(self) -> None:
        """Raise as `check_first_values` does if a run cannot start from the values that came."""
        if self._too_large is not None:
            raise _too_large(self._too_large, self._max_abs)
        if self._has_momentum:
            raise InvalidDocument("a first checkpoint whose outer momentum is not zero", rule="momentum")


def check_first_parameter(name: str, values: Float32Array, max_abs: float) -> None:
    """Raise `InvalidDocument` (rule `max_abs`) unless a run can start from these values of one parameter."""
    if check_values(values.reshape(-1), max_abs) is not None:
        raise _too_large(name, max_abs)


def _too_large(name: str, max_abs: float) -> InvalidDocument:
    message = f"a first checkpoint with values of {name!a} that are larger than merge.max_abs, {max_abs:g}"
    return InvalidDocument(message, rule="max_abs")
