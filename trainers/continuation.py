"""Continuing a sequence of tokens: what a learner that can do so offers, and how the next token is chosen.

The rule kept here: a choice depends on logits, options and seed alone, so that a request with a seed has the same
answer again from the same replica on the same device.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from epochal.state.errors import InvalidInput, TrainerFailed
from epochal.state.model.tensors import Float32Array
from epochal.trainers.learner import NOT_FINITE

MAX_TOKENS = 4096
"""Maximum number of tokens of an answer."""
MAX_TEMPERATURE = 2.0
MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ChoiceOptions:
    """How the tokens of an answer are chosen.

    Attributes:
        max_tokens: maximum number of them, 1 to `MAX_TOKENS`.
        temperature: divides the logits; 0 takes the likeliest token always.
        top_p: chooses among the fewest tokens whose probabilities add up to this (Holtzman and others, 2020, "The
            Curious Case of Neural Text Degeneration"), above 0 and up to 1.
        seed: 0 to `MAX_SEED`; None for another answer each time.

    Raises:
        InvalidInput: a value is not allowed; the user's fault.
    """

    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.max_tokens <= MAX_TOKENS:
            raise InvalidInput(f"max tokens {self.max_tokens}; allowed: 1 to {MAX_TOKENS}")
        if not 0 <= self.temperature <= MAX_TEMPERATURE:
            raise InvalidInput(f"temperature {self.temperature:g}; allowed: 0 to {MAX_TEMPERATURE:g}")
        if not 0 < self.top_p <= 1:
            raise InvalidInput(f"top_p {self.top_p:g}; allowed: above 0, up to 1")
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise InvalidInput(f"seed {self.seed}; allowed: 0 to {MAX_SEED}")


class Continuation(Protocol):
    """A sequence of tokens that a model continues.

    Attributes:
        context: maximum number of tokens in the sequence; None for no maximum.
    """

    @property
    def context(self) -> int | None: ...

    def logits(self, tokens: Sequence[int]) -> Float32Array:
        """Append tokens, at least one, each below the vocabulary, and return the next one's logits, (vocabulary,).

        Raises:
            TrainerFailed: there is no memory, or the device failed.
        """
        ...


@runtime_checkable
class ContinuingLearner(Protocol):
    """A `Learner` whose model predicts the next token of a sequence."""

    def continuation(self) -> Continuation:
        """Return a new, empty sequence, which is continued with the parameters as they are; call `load` first."""
        ...


class TokenChoice:
    """Chooses tokens one after the other."""

    def __init__(self, options: ChoiceOptions) -> None:
        self._options = options
        self._generator = np.random.default_rng(options.seed)

    def of(self, logits: Float32Array) -> int:
        """Return the token that these logits, (vocabulary,), choose. Raise `TrainerFailed` if one is not a number."""
        largest = logits.max()
        if not math.isfinite(largest):
            raise TrainerFailed(f"the model's logits reach {largest}", failure=NOT_FINITE)
        if self._options.temperature == 0:
            return int(logits.argmax())
        weights = np.exp((logits.astype(np.float64) - largest) / self._options.temperature)
        order = np.argsort(-weights, kind="stable")
        sums = np.cumsum(weights[order])
        count = 1 + int(np.searchsorted(sums, self._options.top_p * sums[-1]))
        sums = sums[: min(count, sums.size)]
        at = int(np.searchsorted(sums, self._generator.random() * sums[-1], side="right"))
        return int(order[min(at, sums.size - 1)])
