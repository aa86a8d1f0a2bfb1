"""Exports one checkpoint of a run, or every new one while the run continues."""

import asyncio
import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from epochal.runtime.long_work import BYTES, counted_pieces, long_work
from epochal.runtime.retry import RetryPolicy
from epochal.state.config.model_table import LocalCheckpoint, ModelSpec
from epochal.state.documents import CheckpointRef
from epochal.state.errors import InvalidDocument, InvalidInput
from epochal.state.model.tensors import Float32Array, TensorLayout
from epochal.tools.checkpoints.checkpoint_stream import CheckpointStream, read_parameters
from epochal.tools.checkpoints.each_checkpoint import Say, follow_checkpoints, take_checkpoint
from epochal.tools.checkpoints.readable_run import RunView, WatchedRun
from epochal.tools.export.destinations import HubDestination, step_in, step_name
from epochal.tools.export.folder import ExportedModel, making, read_note, reported, write_export
from epochal.trainers.architectures import open_model
from epochal.trainers.sources.float_types import FloatType
from epochal.trainers.torch.torch_options import TorchOptions


class MergedStream:
    """A `ParameterStream` of a whole model, its base changed by a run's adapter. The base is read one tensor at a time.

    Args:
        spec: the run's model, with its adapter.
        folder: of the base; None for the run's repository.

    Raises:
        InvalidInput, ModelUnavailable: the base is not here, or its files are others.
        Unsupported: libraries are missing.
    """

    def __init__(self, spec: ModelSpec, folder: Path | None) -> None:
        model = open_model(spec, options=TorchOptions(base=folder, lends_token=True))
        from epochal.trainers.torch.adapters import AdapterModel  # what `open_model` has found to be importable

        assert isinstance(model, AdapterModel)
        self._model = model
        self._base = model.open_base()
        self.adapter_layout = TensorLayout(tuple(sorted(model.shapes.items())))
        """Names and shapes of the adapter that `change_by` takes."""
        self._tensors: Iterator[tuple[str, Float32Array]] = iter(())
        self._held = memoryview(b"")

    def change_by(self, adapter: Mapping[str, Float32Array]) -> None:
        """Take the adapter's tensors; call it before anything is read."""
        self._tensors = self._model.merged(adapter, self._base)

    async def parameters(self) -> TensorLayout:
        return TensorLayout(tuple(sorted(self._model.whole.shapes.items())))

    async def read(self, size_bytes: int) -> bytes:
        found = bytearray()
        while len(found) < size_bytes:
            if not self._held:
                _, values = await asyncio.to_thread(next, self._tensors)
                self._held = values.astype("<f4", copy=False).reshape(-1).view(np.uint8).data
            count = size_bytes - len(found)
            found += self._held[:count]
            self._held = self._held[count:]
        return bytes(found)

    async def check_end(self) -> None:
        if self._held or next(self._tensors, None) is not None:
            raise InvalidDocument("a whole model that is larger than its layout")


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The choices for an export: what is written, and where to.

    Attributes:
        out: the new folder; of a followed run, the folder of a folder for each step.
        kind: the type of the stored numbers.
        tokenizer: the tokenizer's files by name.
        destination: where each folder is uploaded to; None for nowhere.
        keep: number of checkpoints of a followed run that are kept; None keeps all.
        merged: whether an adapter is written as the whole model.
        base: folder of the adapter's base; None for the run's repository.
    """

    out: Path
    kind: FloatType
    tokenizer: Mapping[str, bytes]
    destination: HubDestination | None = None
    keep: int | None = None
    merged: bool = False
    base: Path | None = None


class Exporter:
    """Exports checkpoints of one run."""

    def __init__(self, run: WatchedRun, options: ExportOptions, say: Say) -> None:
        self._run = run
        self._options = options
        self._say = say

    async def once(self, step: int | None) -> None:
        """Export the checkpoint of a step, or the newest.

        Raises:
            InvalidInput: there is no such checkpoint, or the folder exists.
            ModelUnavailable: a disk is full, or the destination does not answer.
        """

        async def take(view: RunView, reference: CheckpointRef) -> None:
            self._check(view)
            if not self._is_written(view, reference):
                await self._write(view, reference, self._options.out)

        reference = await take_checkpoint(self._run, step, take)
        await self._upload(self._options.out, reference.step)

    def _check(self, view: RunView) -> None:
        if self._options.merged and view.spec.adapter is None:
            raise InvalidInput("--merged goes with a run that trains an adapter; this one trains the whole model")

    def _is_written(self, view: RunView, reference: CheckpointRef) -> bool:
        """Return whether an earlier command has written the folder, and its upload did not succeed, perhaps."""
        wanted = self._model(view).note(reference)
        return self._options.destination is not None and read_note(self._options.out) == wanted

    async def follow(self, policy: RetryPolicy) -> None:
        """Export the newest checkpoint, and every later one, until the run has finished.

        Args:
            policy: how long to retry when the coordinator, the destination or a disk fails.
        """
        await follow_checkpoints(self._run, self._follow_one, policy, self._say)

    async def _follow_one(self, view: RunView, reference: CheckpointRef) -> None:
        self._check(view)
        folder = self._options.out / step_name(reference.step)
        found = read_note(folder)
        model = self._model(view)
        if found is None:
            await self._write(view, reference, folder)
        elif found != model.note(reference):
            raise InvalidInput(f"{folder} was exported from another run or with other options; name another --out")
        await self._upload(folder, reference.step)
        await asyncio.to_thread(self._forget_older, view.state.run_id)

    async def _write(self, view: RunView, reference: CheckpointRef, to: Path) -> None:
        if self._options.merged:
            await self._write_merged(view, reference, to)
            return
        title = f"exporting the checkpoint of step {reference.step}"
        async with self._run.reading(), contextlib.aclosing(self._run.pieces(reference)) as pieces:
            with making(to) as folder, long_work(title, reference.size_bytes, BYTES) as work:
                stream = CheckpointStream(counted_pieces(pieces, work), reference)
                await write_export(folder, self._model(view), reference, stream)
        self._say(f"{view.state.run_id}, replica {reference.step}: {to}")

    async def _write_merged(self, view: RunView, reference: CheckpointRef, to: Path) -> None:
        stream = await asyncio.to_thread(MergedStream, view.spec, self._options.base)
        stream.change_by(await read_parameters(self._run, reference, stream.adapter_layout))
        with making(to) as folder:
            await write_export(folder, self._model(view), reference, stream)
        self._say(f"{view.state.run_id}, replica {reference.step} and its base: {to}")

    def _model(self, view: RunView) -> ExportedModel:
        spec = view.spec.whole if self._options.merged else view.spec
        checkpoint = view.state.model.LLM.checkpoint
        base = checkpoint.path if isinstance(checkpoint, LocalCheckpoint) else ""
        return ExportedModel(view.state.run_id, spec, self._options.kind, self._options.tokenizer, base)

    async def _upload(self, folder: Path, step: int) -> None:
        destination = self._options.destination
        if destination is not None:
            self._say(f"uploaded: {await asyncio.to_thread(destination.upload, folder, step)}")

    def _forget_older(self, run_id: str) -> None:
        """Delete all exported folders of the run but the last ones."""
        keep = self._options.keep
        if keep is None:
            return
        with reported(self._options.out):
            exported = {
                step: path
                for path in self._options.out.iterdir()
                if (step := step_in(path.name)) is not None and (note := read_note(path)) and note.run_id == run_id
            }
            kept = sorted(exported)[-keep:]
            for step in exported.keys() - set(kept):
                shutil.rmtree(exported[step])
