"""The SDK's `forward_backward`: decodes the protobuf of requests, encodes that of answers.

The SDK calls an example a datum: the tokens of its model input, and for each of them the token to predict after it
(`target_tokens`) and the weight of its loss (`weights`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tinker.proto import tinker_public_pb2 as proto

from epochal.batching.micro_batches import Example
from epochal.data_providers.protocol import IGNORED_LABEL
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal

LOSS = "cross_entropy"
TARGETS, WEIGHTS, LOGPROBS = "target_tokens", "weights", "logprobs"
OUTPUT_TYPE = "CrossEntropyOutput"
_DTYPES: dict[int, np.dtype[Any]] = {
    proto.DTYPE_FLOAT32: np.dtype("<f4"),
    proto.DTYPE_INT64: np.dtype("<i8"),
    proto.DTYPE_INT32: np.dtype("<i4"),
}


@dataclass(frozen=True, slots=True)
class WeightedExamples:
    """The examples of a request as a learner takes them, and the weights of their losses.

    The SDK puts a target at the last token from which it is predicted, a learner's label is one place after it. So each
    example has one place more than its datum, and predicts nothing at its first place.
    """

    examples: list[Example]
    weights: list[NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class ForwardBackward:
    """A request. `seq_id` is its number among the model's requests, from 1; `message` holds the rest."""

    model_id: str
    seq_id: int
    message: Any

    @property
    def forward_only(self) -> bool:
        """Whether no gradient is wanted."""
        return bool(self.message.forward_only)

    def examples(self, vocabulary: int) -> WeightedExamples:
        """Return the request's examples, for a model with this vocabulary.

        Raises:
            Refused: `untrainable`: another loss, inputs other than text, or tensors that do not match.
        """
        if self.message.loss_fn != LOSS:
            raise _untrainable(f"the loss {self.message.loss_fn!r}; allowed: {LOSS}")
        found = WeightedExamples([], [])
        for number, datum in enumerate(self.message.data):
            example, weights = _example(number, datum, vocabulary)
            found.examples.append(example)
            found.weights.append(weights)
        return found

    @property
    def count(self) -> int:
        """Number of examples."""
        return len(self.message.data)


def decode_request(body: bytes) -> ForwardBackward:
    """Decode the request in a body. Raise `Refused`: `invalid-body`."""
    message = proto.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise Refused(Refusal.INVALID_BODY, "the body is not a ForwardBackwardRequest") from error
    return ForwardBackward(message.model_id, message.seq_id, message)


def encode_output(logprobs: Sequence[NDArray[np.float32]], metrics: Mapping[str, float]) -> bytes:
    """Encode a request's answer: each example's log-probabilities, and metrics by `name:reduction`."""
    message = proto.ForwardBackwardOutput(loss_fn_output_type=OUTPUT_TYPE, metrics=dict(metrics))
    record = message.loss_fn_outputs.add()
    record.num_datums = len(logprobs)
    field = record.fields[LOGPROBS]
    field.dtype = proto.DTYPE_FLOAT32
    field.data = np.concatenate([*logprobs, np.empty(0, "<f4")], dtype="<f4").tobytes()
    sizes = [array.size * 4 for array in logprobs]
    field.offsets = np.concatenate(([0], np.cumsum(sizes, dtype="<i8"))).astype("<i8").tobytes()
    encoded: bytes = message.SerializeToString()
    return encoded


def _example(number: int, datum: Any, vocabulary: int) -> tuple[Example, NDArray[np.float32]]:
    where = f"datum {number}"
    parts: list[NDArray[np.int32]] = []
    for chunk in datum.model_input:
        kind = chunk.WhichOneof("chunk")
        if kind != "encoded_text" or len(chunk.encoded_text.tokens) % 4:
            raise _untrainable(f"{where} has a chunk of {kind}; allowed: encoded_text")
        parts.append(np.frombuffer(chunk.encoded_text.tokens, dtype="<i4"))
    tokens = np.concatenate(parts) if parts else np.empty(0, dtype="<i4")
    inputs = datum.loss_fn_inputs
    if TARGETS not in inputs or not set(inputs) <= {TARGETS, WEIGHTS}:
        raise _untrainable(f"{where} has the inputs {sorted(inputs)}; allowed: {TARGETS}, and {WEIGHTS} if wanted")
    named = _array(where, TARGETS, inputs[TARGETS])
    if not (np.isfinite(named) & (named == np.trunc(named))).all():
        raise _untrainable(f"{where}: {TARGETS} are not whole numbers")
    targets = named.astype(np.int64)
    weights = (
        _array(where, WEIGHTS, inputs[WEIGHTS]).astype(np.float32)
        if WEIGHTS in inputs
        else np.ones(targets.size, dtype=np.float32)
    )
    if not tokens.size == targets.size == weights.size:
        raise _untrainable(f"{where} has {tokens.size} tokens, {targets.size} targets and {weights.size} weights")
    if not np.isfinite(weights).all():
        raise _untrainable(f"{where} has weights that are not finite")
    for name, values in (("token", tokens), ("target", targets)):
        wrong = (values < 0) | (values >= vocabulary)
        if wrong.any():
            raise _untrainable(f"{where}: {name} {int(values[wrong][0])}; the model knows 0 to {vocabulary - 1}")
    read = np.append(tokens, 0).astype(np.uint32)
    return Example(read, np.insert(targets, 0, IGNORED_LABEL)), np.insert(weights, 0, 0)


def _array(where: str, name: str, tensor: Any) -> NDArray[Any]:
    """Return a dense tensor, flat."""
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None or tensor.WhichOneof("encoding") != "dense" or len(tensor.dense) % dtype.itemsize:
        raise _untrainable(f"{where}: {name} is not a dense tensor of float32 or int64")
    return np.frombuffer(tensor.dense, dtype=dtype)


def _untrainable(message: str) -> Refused:
    return Refused(Refusal.UNTRAINABLE, message)
