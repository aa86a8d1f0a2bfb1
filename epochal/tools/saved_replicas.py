"""The newest replica of a client, kept for its owner in the layout of a Hugging Face repository (`--save DIR`).

```
DIR/step-000000012/     as `epochal export` writes it, without a tokenizer
```

A newer replica is written beside the older one, which is deleted when the newer one is complete: so there is one at any
time. Folders of other runs stay.
"""

import asyncio
import hashlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

from epochal.run_manager.replica.keeper import HeldReplica
from epochal.state.config.model_table import ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.documents import CheckpointRef
from epochal.state.model.replica import checkpoint_of
from epochal.state.model.tensors import TensorStream
from epochal.state.wire import Sha256
from epochal.tools.checkpoints.checkpoint_stream import CheckpointStream
from epochal.tools.export.destinations import step_in, step_name
from epochal.tools.export.folder import ExportedModel, making, read_note, reported, write_export
from epochal.trainers.sources.float_types import FloatType


class SavedReplicas:
    """Keeps one replica in a folder, as `ClientDependencies.save_replica` is called.

    Args:
        folder: made if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def __call__(self, state: StateFile, spec: ModelSpec, held: HeldReplica) -> None:
        """Write a replica, and then delete older ones of the run.

        Raises:
            InvalidInput: the folder cannot be written, or has a folder of that step from another run.
            ModelUnavailable: the disk is full, or fails for now.
        """
        await asyncio.to_thread(self._save, state.run_id, spec, held)

    def _save(self, run_id: str, spec: ModelSpec, held: HeldReplica) -> None:
        stream = checkpoint_of(held.replica)
        digest, size_bytes = hashlib.sha256(), 0
        for piece in stream.pieces():
            digest.update(piece)
            size_bytes += len(piece)
        reference = CheckpointRef(held.step, Sha256(digest.hexdigest()), size_bytes, held.digest)
        model = ExportedModel(run_id, spec, FloatType.FLOAT32, {})
        to = self._folder / step_name(held.step)
        kept = read_note(to)
        if kept != model.note(reference):
            if kept is not None and kept.run_id == run_id:  # of a history that the run has left, or of other options
                with reported(to):
                    shutil.rmtree(to)
            with making(to) as folder:
                asyncio.run(write_export(folder, model, reference, CheckpointStream(_pieces_of(stream), reference)))
        self._delete_others(run_id, held.step)

    def _delete_others(self, run_id: str, step: int) -> None:
        with reported(self._folder):
            for path in self._folder.iterdir():
                note = None if step_in(path.name) in (None, step) else read_note(path)
                if note is not None and note.run_id == run_id:
                    shutil.rmtree(path)


async def _pieces_of(stream: TensorStream) -> AsyncIterator[bytes]:
    for piece in stream.pieces():
        yield bytes(piece)
