"""Continuing a sequence with a module of transformers, which keeps the keys and values of the tokens before."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from epochal.state.model.tensors import Float32Array
from epochal.trainers.torch.devices import Placement, copied_out


class TorchContinuation:
    """A `Continuation` of a causal language model. A kind of model that keeps no such cache reads all tokens again.

    Args:
        module: on the placement's device.
        placement: where and in which type it computes.
    """

    def __init__(self, module: torch.nn.Module, placement: Placement) -> None:
        self._module = module
        self._placement = placement
        self._tokens: list[int] = []
        self._cache: Any = None
        self._takes = inspect.signature(module.forward).parameters

    @property
    def context(self) -> int | None:
        config: Any = self._module.config
        longest = getattr(config.get_text_config(), "max_position_embeddings", None)
        return longest if isinstance(longest, int) else None

    def logits(self, tokens: Sequence[int]) -> Float32Array:
        with self._placement.reporting(), torch.no_grad():
            self._module.eval()
            self._tokens += tokens
            new = self._tokens if self._cache is None else list(tokens)
            with self._placement.computing():
                found = self._module(**self._arguments(new))
            self._cache = getattr(found, "past_key_values", None)
            return copied_out(found.logits[0, -1])

    def _arguments(self, new: list[int]) -> dict[str, Any]:
        device = self._placement.device
        found = {
            "input_ids": torch.tensor([new], device=device),
            "attention_mask": torch.ones((1, len(self._tokens)), dtype=torch.int64, device=device),
        }
        if "past_key_values" in self._takes:
            found |= {"past_key_values": self._cache, "use_cache": True}
        if "logits_to_keep" in self._takes:
            found["logits_to_keep"] = 1
        return found
