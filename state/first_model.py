"""The model that a run starts from: its spec, which becomes the run's model document, and its first replica.

Both travel together, in the run's first checkpoint: a checkpoint file whose metadata also hold the model document.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from state.config.model import ModelSpec
from state.errors import InvalidDocument
from state.replica import Replica, checkpoint_stream, first_replica, no_momentum
from state.tensors import Float32Array, TensorLayout, TensorStream
from state.wire import Sha256, canonical_json, document_digest, parse_document


@dataclass(frozen=True, slots=True, eq=False)
class FirstModel:
    """A run's model at its start, whose parameters come one at a time.

    Attributes:
        spec: complete: everything on which the parameters' names and shapes depend.
        step: of the first replica.
        layout: names and shapes of its parameters.
        parameters: returns the parameters in name order, each read or made when it is asked for; every call returns
            them anew. Errors of their source surface there.
    """

    spec: ModelSpec
    step: int
    layout: TensorLayout
    parameters: Callable[[], Iterable[tuple[str, Float32Array]]]

    @classmethod
    def of(cls, spec: ModelSpec, replica: Replica) -> Self:
        """Return the model of a first replica, which is in memory."""
        return cls(spec, replica.step, replica.layout, replica.parameters.items)

    @property
    def replica(self) -> Replica:
        """The first replica, all of which is read into memory."""
        return first_replica(self.step, dict(self.parameters()))


def model_document(spec: ModelSpec) -> bytes:
    """Return the model document of a run with this model: canonical JSON, which its digest names."""
    return canonical_json(spec.to_plain())


def model_digest(spec: ModelSpec) -> Sha256:
    """Return the digest of the model document."""
    return document_digest(spec.to_plain())


def first_checkpoint_bytes(first: FirstModel) -> bytes:
    """Return the bytes of `first_checkpoint`."""
    return first_checkpoint(first).to_bytes()


def first_checkpoint(first: FirstModel, look: Callable[[str, Float32Array], None] | None = None) -> TensorStream:
    """Return the run's first checkpoint: the checkpoint file of the first replica, with the model document.

    Args:
        first: the model; one parameter of it is in memory at a time.
        look: is shown every parameter before its bytes, and may raise an error.
    """

    def values() -> Iterator[Float32Array]:
        for _, shape in first.layout.entries:
            yield no_momentum(shape)
        for name, array in first.parameters():
            if look is not None:
                look(name, array)
            yield array

    return checkpoint_stream(first.step, first.layout, values, model_document(first.spec).decode("ascii"))


def spec_of_document(text: str | None) -> ModelSpec | None:
    """Return the spec that the model document of a checkpoint says; None without a document.

    Raises:
        InvalidDocument: rule `model`: the document is not a spec.
    """
    if text is None:
        return None
    try:
        return parse_document(ModelSpec, text)
    except InvalidDocument as error:
        raise InvalidDocument(f"a first checkpoint whose model document is {error.message}", rule="model") from error
