"""A trainer of a small model in torch, for real clients whose device fails as `FAILING_DEVICE` says.

- `memory`: from the second loss on there is no memory, until one row alone has failed.
- `gone`: the fourth loss finds no device.
- `flush`: torch flushes denormals in every thread of the process that is started later.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch

from epochal.batching.micro_batches import Example
from epochal.trainers.torch_task import Batch, TorchTask

VARIABLE = "FAILING_DEVICE"
MEMORY, GONE, FLUSH = "memory", "gone", "flush"
_MODE = os.environ.get(VARIABLE, "")

if _MODE == FLUSH:
    torch.set_flush_denormal(True)


class Bigrams(TorchTask):
    """Each token from the one before it."""

    vocabulary = 256

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self._loss_count = 0
        self._has_failed = False

    def build_model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Embedding(256, 8), torch.nn.Linear(8, 256))

    def batch_of(self, samples: Sequence[Example]) -> Batch:
        return torch.tensor([sample.tokens.tolist() for sample in samples])

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, int]:
        self._loss_count += 1
        if not self._has_failed and model.training:
            self._fail(len(batch))
        targets = batch[:, 1:].flatten()
        logits = model(batch[:, :-1]).flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, targets, reduction="sum"), targets.numel()

    def _fail(self, row_count: int) -> None:
        if _MODE == MEMORY and self._loss_count > 1:
            self._has_failed = row_count == 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7 GiB")
        if _MODE == GONE and self._loss_count == 4:
            self._has_failed = True
            raise RuntimeError("CUDA error: the device is gone")
