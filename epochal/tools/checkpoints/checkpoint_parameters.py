"""The parameters of a checkpoint as arrays, read one piece of a tensor at a time."""

import contextlib
import math

import numpy as np

from epochal.runtime.long_work import BYTES, LongWork, counted_pieces, long_work
from epochal.state.documents import CheckpointRef
from epochal.state.errors import InvalidDocument
from epochal.state.model.layout_difference import layout_difference
from epochal.state.model.tensors import Float32Array, TensorLayout, Tensors
from epochal.state.model.value_checks import check_values
from epochal.tools.checkpoints.checkpoint_stream import CheckpointStream
from epochal.tools.checkpoints.readable_run import WatchedRun

PIECE_NUMBERS = 1 << 20
"""Numbers that are read at a time (4 MiB)."""


async def read_parameters(run: WatchedRun, reference: CheckpointRef, layout: TensorLayout) -> Tensors:
    """Return a checkpoint's parameters. Neither its bytes nor its momentum are held.

    Args:
        run: the run, which holds the checkpoint.
        reference: the checkpoint.
        layout: of the run's model.

    Raises:
        Refused: `not-found` if the checkpoint is held no longer.
        InvalidDocument: the bytes are not the checkpoint's, or are not finite parameters of the run's model.
    """
    title = f"reading the checkpoint of step {reference.step}"
    with long_work(title, reference.size_bytes, BYTES) as work:
        return await _read(run, reference, layout, work)


async def _read(run: WatchedRun, reference: CheckpointRef, layout: TensorLayout, work: LongWork) -> Tensors:
    async with run.reading(), contextlib.aclosing(run.pieces(reference)) as pieces:
        stream = CheckpointStream(counted_pieces(pieces, work), reference)
        difference = layout_difference(await stream.parameters(), layout)
        if difference is not None:
            raise InvalidDocument(f"the checkpoint of step {reference.step} is of another model: it has {difference}")
        parameters = {name: await _tensor(stream, name, shape) for name, shape in layout.entries}
        await stream.check_end()
    return parameters


async def _tensor(stream: CheckpointStream, name: str, shape: tuple[int, ...]) -> Float32Array:
    values = np.empty(math.prod(shape), np.float32)
    for start in range(0, values.size, PIECE_NUMBERS):
        piece = values[start : start + PIECE_NUMBERS]
        piece[:] = np.frombuffer(await stream.read(piece.size * 4), "<f4")
        if check_values(piece, math.inf) is not None:
            raise InvalidDocument(f"parameter {name!a} has values that are not finite")
    return values.reshape(shape)
