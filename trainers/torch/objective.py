"""The objective of a torch learner: how examples become batches of tensors, and a batch's loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from epochal.batching.micro_batches import Example


@dataclass(frozen=True, slots=True, eq=False)
class TensorBatch:
    """The tensors of one micro-batch.

    Attributes:
        tensors: by names of the objective's choice; on the CPU, or on the learner's device.
        token_count: number of tokens that are predicted.
    """

    tensors: Mapping[str, torch.Tensor]
    token_count: int


@dataclass(frozen=True, slots=True, eq=False)
class BatchLoss:
    """The loss of one micro-batch.

    Attributes:
        nats: summed over the predicted tokens, a tensor without dimensions on the learner's device.
        token_count: number of predicted tokens.
    """

    nats: torch.Tensor
    token_count: int


class Objective(Protocol):
    """The loss that a `TorchLearner` minimises: a sum over tokens, so that gradients add up over micro-batches."""

    def sizes(self, examples: Sequence[Example]) -> Sequence[int]:
        """Return each example's number of places: what its share of a micro-batch's memory grows with.

        An example of size 0 has nothing to predict and is left out.

        Raises:
            TrainerFailed: an example cannot be computed on, such as one with a token outside the vocabulary.
        """
        ...

    def places_at_a_time(self, device_type: str) -> int:
        """Return the most places of a micro-batch on such a device (`cpu`, `cuda`, `mps`) where no number is chosen."""
        ...

    def batch(self, examples: Sequence[Example]) -> TensorBatch:
        """Return a micro-batch of these examples, which are of similar size and none of size 0, on the CPU."""
        ...

    def loss(self, module: torch.nn.Module, batch: TensorBatch) -> BatchLoss:
        """Return the loss of a micro-batch that lies on the module's device, without waiting for the device."""
        ...
