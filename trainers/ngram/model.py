"""The embedded model: a byte-level neural n-gram, with its loss and its gradient derived by hand.

A token is predicted from the `context` tokens before it in its sequence (Bengio et al., "A Neural Probabilistic
Language Model", 2003, without the direct connections): their embeddings, oldest first, form one vector *x*; then

    h = tanh(x·W + b)      z = h·U + c      p = softmax(z)      loss = −log p[token]   (nats)

Before its first token a sequence is padded with `PADDING`, a token of its own that is never predicted. All arithmetic
is vectorised over positions and cut into chunks, so that memory is bounded and a round can be cancelled between two.
The functions follow the parameters' type: float32 to train, float64 to check the gradient by differences.
"""

import hashlib
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from epochal.batching.micro_batches import Example
from epochal.data_providers.protocol import IGNORED_LABEL
from epochal.state.config.model_table import NgramConfig
from epochal.state.errors import TrainerFailed
from epochal.state.model.tensors import Tensors

VOCABULARY = 256
"""Tokens are bytes."""
PADDING = VOCABULARY
"""The token before a sequence's first token; the last row of the embedding table."""
CHUNK_POSITIONS = 4096
"""Positions computed at a time: about 8 MiB of activations, and a few milliseconds between two chances to cancel."""

EMBEDDING = "embedding"
HIDDEN_WEIGHT = "hidden.weight"
HIDDEN_BIAS = "hidden.bias"
OUTPUT_WEIGHT = "output.weight"
OUTPUT_BIAS = "output.bias"

FloatArray = npt.NDArray[np.floating[Any]]
Tokens = npt.NDArray[np.uint16]
Parameters = Mapping[str, FloatArray]
Gradient = dict[str, FloatArray]

_INIT_DOMAIN = b"epochal/ngram/init/v1\0"
_INIT_BLOCK_VALUES = 1 << 18
_OUTPUT_SCALE = 0.1
"""Makes the output layer small at first, so that the first loss is close to that of a uniform guess."""


def parameter_shapes(model: NgramConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter, by name; matrices are (inputs, outputs)."""
    return {
        EMBEDDING: (VOCABULARY + 1, model.embedding),
        HIDDEN_BIAS: (model.hidden,),
        HIDDEN_WEIGHT: (model.context * model.embedding, model.hidden),
        OUTPUT_BIAS: (VOCABULARY,),
        OUTPUT_WEIGHT: (model.hidden, VOCABULARY),
    }


def initial_parameters(model: NgramConfig, seed: bytes) -> Tensors:
    """Return the parameters to start from, a pure function of the model's size and the seed.

    Biases are zero; the rest is uniform in ±√(3 / inputs), so that a layer keeps its input's variance (the embedding,
    a lookup, has one input).

    Raises:
        TrainerFailed: the model does not fit into this machine's memory.
    """
    try:
        tensors = {name: np.empty(shape, np.float32) for name, shape in parameter_shapes(model).items()}
    except MemoryError as error:
        raise TrainerFailed(f"no memory for a model of {model}") from error
    filled = dict.fromkeys(tensors, 0)
    for name, part in initial_parts(model, seed):
        tensors[name].reshape(-1)[filled[name] : filled[name] + part.size] = part
        filled[name] += part.size
    return tensors


def initial_parts(model: NgramConfig, seed: bytes) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Yield the names and the values of `initial_parameters`, in name order and in flat parts, in constant memory."""
    for name, shape in parameter_shapes(model).items():
        inputs = 1 if name == EMBEDDING else shape[0]
        scale = np.float32(math.sqrt(3.0 / inputs) * (_OUTPUT_SCALE if name == OUTPUT_WEIGHT else 1.0))
        count = math.prod(shape)
        for start in range(0, count, _INIT_BLOCK_VALUES):
            size = min(_INIT_BLOCK_VALUES, count - start)
            if name in (HIDDEN_BIAS, OUTPUT_BIAS):
                yield name, np.zeros(size, np.float32)
            else:
                part = keyed_uniform(seed, name, start // _INIT_BLOCK_VALUES, size)
                part *= scale
                yield name, part


def keyed_uniform(seed: bytes, name: str, block: int, count: int) -> npt.NDArray[np.float32]:
    """Return a block's float32 values in [−1, 1): 24 bits each, of SHAKE-256 over seed, block number and name."""
    key = _INIT_DOMAIN + seed + struct.pack("<Q", block) + name.encode()
    stream = hashlib.shake_256(key).digest(4 * count)
    values = (np.frombuffer(stream, dtype="<u4") >> np.uint32(8)).astype(np.float32)
    values /= np.float32(1 << 23)
    values -= np.float32(1.0)
    return values


def padded_tokens(sequences: Sequence[npt.NDArray[np.integer[Any]]], context: int) -> Tokens:
    """Return the sequences one after the other, each with `context` paddings before it, as uint16.

    Args:
        sequences: one-dimensional; every token is below `VOCABULARY`, or `PADDING`.
        context: as in the model's size.
    """
    padded = np.full(sum(context + sequence.size for sequence in sequences), PADDING, np.uint16)
    offset = 0
    for sequence in sequences:
        offset += context
        padded[offset : offset + sequence.size] = sequence
        offset += sequence.size
    return padded


def padded_targets(examples: Sequence[Example], context: int) -> Tokens:
    """Return the labels, placed as `padded_tokens` places the tokens of the same examples; `PADDING` for no label."""
    return padded_tokens(
        [
            one.tokens if one.labels is None else np.where(one.labels == IGNORED_LABEL, PADDING, one.labels)
            for one in examples
        ],
        context,
    )


def next_logits(parameters: Parameters, tokens: npt.NDArray[np.integer[Any]]) -> FloatArray:
    """Return the logits, (256,), of the token after a sequence, of which the last `context` tokens count."""
    context = parameters[HIDDEN_WEIGHT].shape[0] // parameters[EMBEDDING].shape[1]
    window = padded_tokens([tokens], context)[-context:]
    hidden = np.tanh(parameters[EMBEDDING][window].reshape(-1) @ parameters[HIDDEN_WEIGHT] + parameters[HIDDEN_BIAS])
    found: FloatArray = hidden @ parameters[OUTPUT_WEIGHT] + parameters[OUTPUT_BIAS]
    return found


def add_gradient(
    parameters: Parameters, padded: Tokens, targets: Tokens, gradient: Gradient | None, proceed: Callable[[], None]
) -> tuple[float, int]:
    """Add the gradient of the *summed* loss to `gradient`; return the summed loss and the number of tokens predicted.

    Args:
        gradient: None computes the loss alone.
    """
    context = parameters[HIDDEN_WEIGHT].shape[0] // parameters[EMBEDDING].shape[1]
    loss_sum = 0.0
    for start in range(0, padded.size - context, CHUNK_POSITIONS):  # overlapping windows: each place is predicted once
        proceed()
        stop = start + CHUNK_POSITIONS + context
        loss_sum += _add_chunk(parameters, padded[start:stop], targets[start + context : stop], gradient)
    return loss_sum, int(np.count_nonzero(targets[context:] != PADDING))


def _add_chunk(parameters: Parameters, chunk: Tokens, targets: Tokens, gradient: Gradient | None) -> float:
    """Add the chunk's share of the summed loss's gradient to `gradient`; return its summed loss.

    `targets` represent the chunk's tokens after the first `context` ones.
    """
    context = chunk.size - targets.size
    real = np.flatnonzero(targets != PADDING)
    embedded = parameters[EMBEDDING][chunk[:-1]]
    inputs = _windows(embedded, context)
    hidden = inputs @ parameters[HIDDEN_WEIGHT]
    hidden += parameters[HIDDEN_BIAS]
    np.tanh(hidden, out=hidden)
    logits = hidden @ parameters[OUTPUT_WEIGHT]
    logits += parameters[OUTPUT_BIAS]
    loss = _softmax_in_place(logits, targets, real)
    if gradient is None:
        return loss

    gradient[OUTPUT_WEIGHT] += hidden.T @ logits
    gradient[OUTPUT_BIAS] += logits.sum(axis=0)
    back = logits @ parameters[OUTPUT_WEIGHT].T
    np.multiply(hidden, hidden, out=hidden)
    np.subtract(1, hidden, out=hidden)  # tanh′ = 1 − tanh²
    back *= hidden
    gradient[HIDDEN_WEIGHT] += inputs.T @ back
    gradient[HIDDEN_BIAS] += back.sum(axis=0)
    _add_by_token(gradient[EMBEDDING], chunk[:-1], _unwindow(back @ parameters[HIDDEN_WEIGHT].T, embedded, context))
    return loss


def _softmax_in_place(logits: FloatArray, targets: Tokens, real: npt.NDArray[np.intp]) -> float:
    """Return the summed loss; turn logits (positions, 256) into its gradient `p − onehot`, zero at paddings."""
    logits -= logits.max(axis=1, keepdims=True)
    at_target = logits[real, targets[real]]
    np.exp(logits, out=logits)
    totals = logits.sum(axis=1)
    losses = np.log(totals[real]) - at_target
    factors = np.zeros_like(totals)
    factors[real] = 1 / totals[real]
    logits *= factors[:, None]
    logits[real, targets[real]] -= 1
    return float(losses.sum(dtype=np.float64))


def _windows(embedded: FloatArray, context: int) -> FloatArray:
    """Return as row *r* the concatenation of rows *r* … *r + context − 1* of `embedded` (rows, values)."""
    width = embedded.shape[1]
    flat = np.lib.stride_tricks.sliding_window_view(embedded.reshape(-1), context * width)
    return np.ascontiguousarray(flat[::width])


def _unwindow(windows: FloatArray, embedded: FloatArray, context: int) -> FloatArray:
    """Apply the transpose of `_windows`: each row of `embedded` gets the sum over all places of its values."""
    width = embedded.shape[1]
    summed = np.zeros_like(embedded)
    for place in range(context):
        summed[place : place + len(windows)] += windows[:, place * width : (place + 1) * width]
    return summed


def _add_by_token(table: FloatArray, tokens: Tokens, rows: FloatArray) -> None:
    """Add `rows[i]` to `table[tokens[i]]` for every *i*: sorted first, because equal indices would overwrite."""
    order = np.argsort(tokens, kind="stable")
    ordered = tokens[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    table[ordered[starts]] += np.add.reduceat(rows[order], starts, axis=0)
