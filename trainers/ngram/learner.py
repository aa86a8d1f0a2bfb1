"""The embedded model while it learns: parameters that change, a gradient that adds up, an optimizer that steps.

What the `numpy` trainer does for its micro-batches, a training service does for a session's requests, and the processes
of a mesh do for their rows: gradients of summed losses add up, whatever they are cut into, and one step divides by the
tokens that they were learnt from.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from batching.micro_batches import Document
from data_providers.protocol import IGNORED_LABEL
from state.config.model import AdamW
from state.errors import TrainerFailed
from state.tensors import Float32Array, Tensors
from trainers.ngram.adamw import AdamWState, adamw_step
from trainers.ngram.model import VOCABULARY, Gradient, add_gradient, padded_targets, padded_tokens


@dataclass(frozen=True, slots=True)
class Learnt:
    """What documents came to: their summed loss in nats, and the tokens that it is summed over."""

    loss_sum: float
    token_count: int


class Learner:
    """Parameters on their way through local steps.

    Args:
        parameters: float32 by name; copied.
        context: as in the model's size.
        optimizer: None leaves the parameters as they are.
        state: the optimizer's; changed by `step`.
    """

    def __init__(
        self, parameters: Mapping[str, Float32Array], context: int, optimizer: AdamW | None, state: AdamWState
    ) -> None:
        self.parameters: Tensors = {name: parameters[name].copy() for name in sorted(parameters)}
        self.state = state
        self.gradient: Gradient = {}
        self.token_count = 0
        self._context = context
        self._optimizer = optimizer

    def accumulate(self, documents: list[Document], proceed: Callable[[], None] = lambda: None) -> Learnt:
        """Adds the gradient of the documents' summed loss.

        Raises:
            TrainerFailed: a token or label is not of the model's vocabulary; nothing was added. Or the loss is not
                finite; discard the gradient.
        """
        _check_vocabulary(documents)
        if not any(document.predicted for document in documents):
            return Learnt(0.0, 0)
        if not self.gradient:
            self.gradient = {name: np.zeros_like(array) for name, array in self.parameters.items()}
        padded = padded_tokens([document.tokens for document in documents], self._context)
        targets = padded_targets(documents, self._context)
        with np.errstate(all="ignore"):  # a loss that is not finite is found below
            loss_sum, token_count = add_gradient(self.parameters, padded, targets, self.gradient, proceed)
        if not math.isfinite(loss_sum):
            raise TrainerFailed(f"the loss is {loss_sum}")
        self.token_count += token_count
        return Learnt(loss_sum, token_count)

    def step(self, learning_rate: float) -> None:
        """One optimizer step on the mean gradient, which is used up; without one, nothing."""
        if self.token_count and self._optimizer is not None:
            with np.errstate(all="ignore"):
                for array in self.gradient.values():
                    array /= array.dtype.type(self.token_count)
                adamw_step(self.parameters, self.gradient, self.state, self._optimizer, learning_rate)
        self.discard()

    def discard(self) -> None:
        """Forgets the gradient."""
        self.gradient = {}
        self.token_count = 0


def _check_vocabulary(documents: list[Document]) -> None:
    """What came of a provider was checked with its data index; this one guards the arithmetic."""
    for tokens, labels in documents:
        for name, values in (("token", tokens), ("label", labels)):
            if values is None:
                continue
            wrong = (values >= VOCABULARY) | ((values < 0) & (values != IGNORED_LABEL))
            if wrong.any():
                found = int(values[wrong][0])
                raise TrainerFailed(f"{name} {found}; the model knows bytes only, 0 to {VOCABULARY - 1}")
