"""Messages between a remote trainer and a training service.

A client opens a *session* (its model, its optimizer), begins a *round* in it with the round's parameters, sends each
local step's examples in requests of whole chunks (`forward_backward`), asks for the optimizer's step (`optim_step`),
and fetches the parameters at the end. Messages are JSON; examples and parameters are safetensors.

The rules kept here: a request that changes a session carries an idempotency key, and acts once however often it
arrives; examples name their round and local step, so that late ones are refused, not counted; and the request of an
optimizer step names the number of its examples, so that the step is taken on all of them or not at all.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy
from pydantic import Field

from epochal.batching.chunking.column_chunks import Rows
from epochal.batching.chunking.policies import MAX_CHUNK_BYTES, MAX_CHUNK_ITEMS
from epochal.batching.micro_batches import Example, examples_of
from epochal.data_providers.protocol import CorruptData, TokenBatch
from epochal.state.config.model_table import InnerOptimizer, ModelSpec
from epochal.state.errors import InvalidDocument, Refused
from epochal.state.model.computed_class import COMPUTED_PATTERN
from epochal.state.refusals import Refusal
from epochal.state.wire import strict_json
from epochal.state.wire_document import WireDocument

SESSIONS = "/v1/sessions"
IDEMPOTENCY_KEY = "Idempotency-Key"
MAX_PARAMETERS_BYTES = 2**30
MAX_WIRE_BYTES = 2 * MAX_CHUNK_BYTES
"""Maximum size of a request of examples; they are smaller than estimated, unless labels are many bytes wide."""
FRAME_BYTES = 64 * 1024
"""Room in a request in addition to its examples, so that one example fits even if the limit is very low."""
TOKENS, OFFSETS, LABELS, POSITIONS = "tokens", "offsets", "labels", "positions"
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class ServiceLimits(WireDocument):
    """Limits of one request of examples. `size` is estimated as `chunking.BYTES` does."""

    items: int = MAX_CHUNK_ITEMS
    size: int = MAX_CHUNK_BYTES
    wire_bytes: int = MAX_WIRE_BYTES


@dataclass(frozen=True, slots=True)
class SessionRequest(WireDocument):
    """A session's model and optimizer; None as optimizer leaves the parameters as they are."""

    model: ModelSpec
    optimizer: InnerOptimizer | None
    inner_state: Literal["keep", "reset"] = "reset"


@dataclass(frozen=True, slots=True)
class SessionOpened(WireDocument):
    """An open session.

    Attributes:
        session_id: secret, since it gives access to the session.
        expires_s: idle time allowed.
        computed: precision and device with which it computes (`state/model/computed_class.py`).
    """

    session_id: str
    limits: ServiceLimits
    expires_s: float
    computed: Annotated[str, Field(pattern=COMPUTED_PATTERN)]


@dataclass(frozen=True, slots=True)
class ChunkAnswer(WireDocument):
    """Result of one request: the number of its examples, their summed loss, and the number of predicted tokens."""

    items: int
    nats: float
    tokens: int


@dataclass(frozen=True, slots=True)
class OptimStepRequest(WireDocument):
    """Request of an optimizer step on the examples of a local step, whose number is `items`."""

    round_key: str
    local_step: int
    items: int
    learning_rate: float


@dataclass(frozen=True, slots=True)
class OptimStepAnswer(WireDocument):
    """The L2 norm of an optimizer step's gradient before clipping; None if no step was taken."""

    gradient_norm: Annotated[float, Field(ge=0)] | None


def encode_examples(parts: Sequence[Rows]) -> bytes:
    """Encode the samples of a chunk as safetensors: flat tokens, offsets of the samples, labels and positions.

    Labels and positions are left out if no sample has its own.
    """
    tokens = [part.batch.input_ids[part.batch.offsets[part.start] : part.batch.offsets[part.stop]] for part in parts]
    lengths = [np.diff(part.batch.offsets[part.start : part.stop + 1]) for part in parts]
    arrays = {
        TOKENS: np.concatenate(tokens),
        OFFSETS: np.concatenate(([0], np.cumsum(np.concatenate(lengths)))).astype(np.int64),
    }
    if any(part.batch.labels is not None for part in parts):
        arrays[LABELS] = np.concatenate([_labels_of(part) for part in parts], dtype=np.int32)
    if any(part.batch.position_ids is not None for part in parts):
        arrays[POSITIONS] = np.concatenate([_positions_of(part) for part in parts], dtype=np.int32)
    return bytes(safetensors.numpy.save(arrays))


def _labels_of(part: Rows) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    batch = part.batch
    flat = batch.input_ids if batch.labels is None else batch.labels
    return flat[batch.offsets[part.start] : batch.offsets[part.stop]].astype(np.int32)


def _positions_of(part: Rows) -> npt.NDArray[np.integer[Any]]:
    batch = part.batch
    if batch.position_ids is not None:
        return batch.position_ids[batch.offsets[part.start] : batch.offsets[part.stop]]
    lengths = np.diff(batch.offsets[part.start : part.stop + 1])
    return np.concatenate([np.arange(length) for length in lengths])


def decode_examples(body: bytes, most: int = MAX_CHUNK_ITEMS) -> list[Example]:
    """Decode the examples of a request, at most `most`.

    Raises:
        InvalidDocument: the bytes are not encoded examples; the sender's fault.
        Refused: `body-too-large`.
    """
    try:
        strict_json(body[_LENGTH.size : _LENGTH.size + _LENGTH.unpack_from(body)[0]])  # the library is not strict
        arrays = safetensors.numpy.load(body)
        tokens, offsets = arrays[TOKENS], arrays[OFFSETS]
        labels = arrays.get(LABELS)
        if tokens.ndim != 1 or tokens.dtype.kind != "u" or offsets.ndim != 1 or offsets.dtype != np.int64:
            raise ValueError("tokens are flat and unsigned, offsets flat and int64")
        if labels is not None and (labels.shape != tokens.shape or labels.dtype.kind != "i"):
            raise ValueError("labels are signed and as many as the tokens")
        positions = arrays.get(POSITIONS)
        if positions is not None and (positions.shape != tokens.shape or positions.dtype.kind != "i"):
            raise ValueError("positions are signed and as many as the tokens")
        if offsets.size > most + 1:  # a million empty examples fit into a request, and each takes time
            raise Refused(Refusal.BODY_TOO_LARGE, f"{offsets.size - 1} examples; at most {most} in one request")
        batch = TokenBatch(tokens, offsets, labels, positions)
    except (safetensors.SafetensorError, struct.error, CorruptData, KeyError, TypeError, ValueError) as error:
        raise InvalidDocument(f"these bytes are not encoded examples: {type(error).__name__}: {error}") from error
    return [example for sample in examples_of(batch) for example in sample]


def batch_of(examples: Sequence[Example]) -> TokenBatch:
    """Return the examples as one batch."""
    offsets = np.concatenate(([0], np.cumsum([example.tokens.size for example in examples]))).astype(np.int64)
    labels = None
    if any(example.labels is not None for example in examples):
        labels = np.concatenate(
            [example.tokens if example.labels is None else example.labels for example in examples], dtype=np.int32
        )
    position_ids = None
    if any(example.position_ids is not None for example in examples):
        position_ids = np.concatenate(
            [np.arange(one.tokens.size) if one.position_ids is None else one.position_ids for one in examples]
        )
    return TokenBatch(np.concatenate([example.tokens for example in examples]), offsets, labels, position_ids)
