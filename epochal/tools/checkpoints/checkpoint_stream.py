"""Reading a checkpoint while it arrives: its header, its parameters in their order, and its end; or all as arrays."""

import contextlib
import math
from collections.abc import AsyncIterator

import numpy as np

from epochal.runtime.long_work import BYTES, LongWork, counted_pieces, long_work
from epochal.state.documents import CheckpointRef
from epochal.state.errors import InvalidDocument
from epochal.state.model.layout_difference import layout_difference
from epochal.state.model.replica import parse_checkpoint_header
from epochal.state.model.tensors import (
    LENGTH_BYTES,
    Float32Array,
    InvalidTensorFile,
    TensorLayout,
    Tensors,
    parse_tensor_header,
    tensor_header_bytes,
)
from epochal.state.model.value_checks import check_values
from epochal.tools.checkpoints.readable_run import WatchedRun

_NOTHING = b""
PIECE_NUMBERS = 1 << 20
"""Numbers that are read at a time (4 MiB)."""


class CheckpointStream:
    """A checkpoint's bytes, of which only a piece is held.

    Every method raises `InvalidDocument` if the bytes are not those of the checkpoint.

    Args:
        pieces: the bytes, in pieces of any size; whoever yields them compares them with their digests.
        reference: the checkpoint.
    """

    def __init__(self, pieces: AsyncIterator[bytes], reference: CheckpointRef) -> None:
        self._pieces = pieces
        self._reference = reference
        self._held = bytearray()

    async def parameters(self) -> TensorLayout:
        """Read up to the first parameter, and return the layout of the parameters. To be called first."""
        try:
            beginning = await self.read(LENGTH_BYTES)
            rest = tensor_header_bytes(beginning, self._reference.size_bytes) - LENGTH_BYTES
            header = parse_tensor_header(beginning + await self.read(rest), self._reference.size_bytes)
        except InvalidTensorFile as error:
            raise self._damaged(error.message) from error
        form = parse_checkpoint_header(header)
        if form.step != self._reference.step:
            raise self._damaged(f"it holds replica {form.step}")
        if form.has_momentum:
            await self._skip(form.layout.size_bytes)
        return form.layout

    async def read(self, count: int) -> bytes:
        """Return the next bytes, exactly so many."""
        while len(self._held) < count:
            await self._receive()
        found = bytes(self._held[:count])
        del self._held[:count]
        return found

    async def check_end(self) -> None:
        """Raise `InvalidDocument` unless all bytes have been read, and have their digests."""
        rest = await anext(self._pieces, _NOTHING)
        if self._held or rest:
            raise self._damaged("bytes follow its last tensor")

    async def _skip(self, count: int) -> None:
        while count > len(self._held):
            count -= len(self._held)
            self._held.clear()
            await self._receive()
        del self._held[:count]

    async def _receive(self) -> None:
        piece = await anext(self._pieces, _NOTHING)
        if not piece:
            raise self._damaged("it ends too early")
        self._held += piece

    def _damaged(self, how: str) -> InvalidDocument:
        return InvalidDocument(f"the checkpoint of step {self._reference.step} is damaged: {how}")


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
