"""The objective of a torch learner: how examples become batches of tensors, and a batch's loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
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
        nats: weighted loss summed over the predicted tokens, a tensor without dimensions on the learner's device.
        token_count: number of predicted tokens.
        logprobs: (rows, places) if wanted: at each place the log-probability of the token after it, 0 where nothing is
            predicted.
    """

    nats: torch.Tensor
    token_count: int
    logprobs: torch.Tensor | None = None


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

    def batch(
        self, examples: Sequence[Example], weights: Sequence[npt.NDArray[np.floating[Any]]] | None
    ) -> TensorBatch:
        """Return a micro-batch of these examples, on the CPU.

        Args:
            examples: of similar size, none of size 0.
            weights: for each example the factor of the loss at each of its places; None for 1.
        """
        ...

    def loss(self, module: torch.nn.Module, batch: TensorBatch, *, wants_logprobs: bool) -> BatchLoss:
        """Return the loss of a micro-batch that lies on the module's device, without waiting for the device."""
        ...
