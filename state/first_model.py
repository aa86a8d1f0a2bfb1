"""The model that a run starts from: its spec, which becomes the run's model document, and its first replica.

Both travel together, in the run's first checkpoint: a checkpoint file whose metadata also hold the model document.
"""

from dataclasses import dataclass

from state.config.model import ModelSpec
from state.errors import InvalidDocument
from state.replica import Replica, checkpoint_bytes, parse_model_document
from state.tensors import Buffer
from state.wire import Sha256, canonical_json, document_digest, parse_document


@dataclass(frozen=True, slots=True)
class FirstModel:
    """A run's model at its start.

    Attributes:
        spec: complete: everything on which the parameters' names and shapes depend.
        replica: the first replica.
    """

    spec: ModelSpec
    replica: Replica


def model_document(spec: ModelSpec) -> bytes:
    """Return the model document of a run with this model: canonical JSON, which its digest names."""
    return canonical_json(spec.to_plain())


def model_digest(spec: ModelSpec) -> Sha256:
    """Return the digest of the model document."""
    return document_digest(spec.to_plain())


def first_checkpoint_bytes(first: FirstModel) -> bytes:
    """Return the run's first checkpoint: the checkpoint file of the replica, with the model document."""
    return checkpoint_bytes(first.replica, model_document(first.spec).decode("ascii"))


def spec_in_checkpoint(data: Buffer) -> ModelSpec | None:
    """Return the spec that a checkpoint file holds; None if it holds none.

    Raises:
        InvalidDocument: as `parse_checkpoint`; with the rule `model` if the document is not a spec.
    """
    text = parse_model_document(data)
    if text is None:
        return None
    try:
        return parse_document(ModelSpec, text)
    except InvalidDocument as error:
        raise InvalidDocument(f"a first checkpoint whose model document is {error.message}", rule="model") from error
