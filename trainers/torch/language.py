"""The objective of language models: each token is predicted from those before it in its own example.

Each example is a row of its own, padded on the right to the longest of its micro-batch. So documents that were packed
into one row do not see each other, whatever the model's kind of attention, and padding changes nothing: what is causal
never attends to the right. The first place of an example is not predicted, because nothing comes before it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from epochal.batching.micro_batches import Example
from epochal.data_providers.protocol import IGNORED_LABEL
from epochal.state.errors import TrainerFailed
from epochal.trainers.torch.devices import reason_of
from epochal.trainers.torch.objective import BatchLoss, TensorBatch

CPU_PLACES = 4096
"""Places of a micro-batch on a CPU: more do not make it faster, and where memory ends the system kills the process."""
DEVICE_PLACES = 65_536
"""Places that are tried first on a GPU: more do not make it faster."""
WIDTH_STEP = 8
"""Rows are padded to a multiple of this, which a GPU's matrix units want."""

TOKENS, TARGETS, POSITIONS = "tokens", "targets", "positions"


class NextTokenLoss:
    """Cross-entropy of the next token, in nats, for modules that are called as those of transformers are.

    Args:
        vocabulary: tokens and labels are below it.
        max_positions: the longest example, and the bound of a token's position; None for no bound.
    """

    def __init__(self, vocabulary: int, max_positions: int | None) -> None:
        self._vocabulary = vocabulary
        self._max_positions = max_positions

    def sizes(self, examples: Sequence[Example]) -> list[int]:
        for example in examples:
            self._check(example)
        return [self._width(example.tokens.size) if _target_count(example) else 0 for example in examples]

    def places_at_a_time(self, device_type: str) -> int:
        return CPU_PLACES if device_type == "cpu" else DEVICE_PLACES

    def batch(self, examples: Sequence[Example]) -> TensorBatch:
        shape = (len(examples), self._width(max(example.tokens.size for example in examples)))
        arrays: dict[str, npt.NDArray[Any]] = {
            TOKENS: np.zeros(shape, np.int64),
            TARGETS: np.full(shape, IGNORED_LABEL, np.int64),
        }
        if any(example.position_ids is not None for example in examples):
            arrays[POSITIONS] = np.tile(np.arange(shape[1]), (shape[0], 1))
        for row, example in enumerate(examples):
            size = example.tokens.size
            arrays[TOKENS][row, :size] = example.tokens
            arrays[TARGETS][row, : size - 1] = _labels(example)[1:]
            if example.position_ids is not None:
                arrays[POSITIONS][row] = self._padded_positions(example.position_ids, shape[1])
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return TensorBatch(tensors, int(np.count_nonzero(arrays[TARGETS] != IGNORED_LABEL)))

    def loss(self, module: torch.nn.Module, batch: TensorBatch) -> BatchLoss:
        tensors = batch.tensors
        # by a mask of ones transformers knows that no row is packed
        arguments = {"input_ids": tensors[TOKENS], "attention_mask": torch.ones_like(tensors[TOKENS])}
        if POSITIONS in tensors:
            arguments["position_ids"] = tensors[POSITIONS]
        logits = _logits(module, arguments)
        flat, targets = logits.flatten(0, 1).float(), tensors[TARGETS].flatten()
        nats = torch.nn.functional.cross_entropy(flat, targets, ignore_index=IGNORED_LABEL, reduction="sum")
        return BatchLoss(nats, batch.token_count)

    def _width(self, length: int) -> int:
        padded = -(-length // WIDTH_STEP) * WIDTH_STEP
        return padded if self._max_positions is None else max(length, min(padded, self._max_positions))

    def _padded_positions(self, positions: npt.NDArray[np.integer[Any]], width: int) -> npt.NDArray[np.int64]:
        """Return positions that continue behind the example's end, within the bound."""
        after = int(positions[-1]) + 1 + np.arange(width - positions.size)
        if self._max_positions is not None:
            after = np.minimum(after, self._max_positions - 1)
        return np.concatenate([positions, after]).astype(np.int64)

    def _check(self, example: Example) -> None:
        """Raise `TrainerFailed` unless the model can compute on the example."""
        for name, values in (("token", example.tokens), ("label", example.labels)):
            if values is None or not values.size:
                continue
            if name == "label":
                values = values[values != IGNORED_LABEL]
            if values.size and (int(values.max()) >= self._vocabulary or int(values.min()) < 0):
                wrong = int(values.max()) if int(values.max()) >= self._vocabulary else int(values.min())
                raise TrainerFailed(f"{name} {wrong}; the model knows tokens from 0 to {self._vocabulary - 1}")
        if self._max_positions is None:
            return
        if example.tokens.size > self._max_positions:
            raise TrainerFailed(
                f"a document of {example.tokens.size} tokens; the model's config has max_position_embeddings = "
                f"{self._max_positions}, so that max_seq_len must not be larger"
            )
        positions = example.position_ids
        if (
            positions is not None
            and positions.size
            and not 0 <= int(positions.min()) <= int(positions.max()) < (self._max_positions)
        ):
            raise TrainerFailed(
                f"position ids from {int(positions.min())} to {int(positions.max())}; the model's config has "
                f"max_position_embeddings = {self._max_positions}"
            )


def _logits(module: torch.nn.Module, arguments: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the module's logits. Raise `TrainerFailed` if its code fails in another way than torch itself does."""
    try:
        logits: torch.Tensor = module(**arguments).logits
    except (RuntimeError, MemoryError, TrainerFailed):
        raise
    except Exception as error:  # the code of any model, which may come from elsewhere
        raise TrainerFailed(f"the model's own code failed: {type(error).__name__} {reason_of(error)}") from error
    return logits


def _labels(example: Example) -> npt.NDArray[np.integer[Any]]:
    return example.tokens if example.labels is None else example.labels


def _target_count(example: Example) -> int:
    """Return the number of places that are predicted: all labels but the first."""
    if example.labels is None:
        return max(0, example.tokens.size - 1)
    return int(np.count_nonzero(example.labels[1:] != IGNORED_LABEL))
