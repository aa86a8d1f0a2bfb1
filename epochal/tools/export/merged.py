"""The parameters of a whole model, its base changed by a run's adapter, as a stream that an export writes."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from epochal.state.config.model_table import ModelSpec
from epochal.state.errors import InvalidDocument
from epochal.state.model.tensors import Float32Array, TensorLayout
from epochal.trainers.architectures import open_model
from epochal.trainers.torch.torch_options import TorchOptions


class MergedStream:
    """A `ParameterStream` of the whole model. The base is read one tensor at a time.

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
