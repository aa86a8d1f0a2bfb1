"""Reading a checkpoint while it arrives: its header, its parameters in their order, and its end."""

from collections.abc import AsyncIterator

from epochal.state.documents import CheckpointRef
from epochal.state.errors import InvalidDocument
from epochal.state.model.replica import parse_checkpoint_header
from epochal.state.model.tensors import (
    LENGTH_BYTES,
    InvalidTensorFile,
    TensorLayout,
    parse_tensor_header,
    tensor_header_bytes,
)

_NOTHING = b""


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
