"""The names and shapes of the run's tensors, read from its checkpoint once: what every result must have."""

import asyncio

from coordinator.store.blobs import BlobReader
from state.documents import CheckpointRef
from state.errors import Refused
from state.refusals import Refusal
from state.replica import parse_checkpoint
from state.tensors import TensorLayout


class LayoutCache:
    """Reads one checkpoint, however many clients ask at once.

    A checkpoint is taken only if it has the layout of the one before, so that what was read once holds for the run.
    """

    def __init__(self) -> None:
        self._layout: TensorLayout | None = None
        self._reading = asyncio.Lock()

    async def current(self, checkpoint: CheckpointRef | None, blobs: BlobReader) -> TensorLayout:
        """Return the layout of the checkpoint's parameters.

        Raises:
            Refused: `not-now`, when the run has no checkpoint yet.
        """
        if checkpoint is None:
            raise Refused(Refusal.NOT_NOW, "the run has no checkpoint yet")
        async with self._reading:
            if self._layout is None:
                self._layout = parse_checkpoint(await blobs.read(checkpoint.blob_sha256)).layout
        return self._layout
