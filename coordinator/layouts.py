"""The names and shapes of the run's tensors, read from its checkpoint once: what every result must have."""

from coordinator.store.protocol import BlobStore
from state.documents import CheckpointRef
from state.errors import Refused
from state.replica import parse_checkpoint
from state.tensors import TensorLayout
from state.wire import Sha256


class Layouts:
    """Remembers the layout of the newest checkpoint that it was asked about."""

    def __init__(self) -> None:
        self._of: Sha256 | None = None
        self._layout: TensorLayout | None = None

    async def current(self, checkpoint: CheckpointRef | None, blobs: BlobStore) -> TensorLayout:
        """The layout of the checkpoint's parameters.

        Raises:
            Refused: `not-now`, when the run has no checkpoint yet.
        """
        if checkpoint is None:
            raise Refused("not-now", "the run has no checkpoint yet")
        if self._layout is None or self._of != checkpoint.blob_sha256:
            self._layout = parse_checkpoint(await blobs.read(checkpoint.blob_sha256)).layout
            self._of = checkpoint.blob_sha256
        return self._layout
