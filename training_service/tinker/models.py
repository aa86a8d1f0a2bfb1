"""Models that the SDK's clients train: parameters, a gradient that adds up, an optimizer of the client's own settings.

All parameters are trained; the SDK's LoRA settings say nothing to this model but the seed. The gradient is of the sum
of `−weight · log p(target)`, as the SDK defines its `cross_entropy`; the optimizer takes it as it is.

The rule kept here: a gradient is whole or it is nothing. When one request since the last step has failed, the step that
follows fails too, and what had been added is discarded; then the model is as it was, and training goes on.
"""

import math
import re
import secrets
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from batching.micro_batches import Document
from runtime.durable_files import replace_file
from state.config.model import AdamW, NgramConfig
from state.errors import Refused
from state.refusals import Refusal
from state.tensors import InvalidTensorFile, Tensors, encode_tensor_file, parse_tensor_file
from trainers.ngram.adamw import AdamWState, adamw_step
from trainers.ngram.model import (
    PADDING,
    Gradient,
    add_gradient,
    initial_parameters,
    padded_tokens,
    parameter_shapes,
)
from training_service.sessions import check_model_size
from training_service.tinker.examples import Example, encode_output

BASE_MODEL = "epochal-ngram"
_BASE_MODEL = re.compile(rf"{BASE_MODEL}(?::(\w+=\d{{1,9}}(?:,\w+=\d{{1,9}})*))?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
WEIGHTS_SUFFIX, OPTIMIZER_SUFFIX = ".safetensors", ".optimizer.safetensors"
MAX_SAVED = 256
"""Files of one model's folder."""
_STEPS, _FIRST, _SECOND, _MODEL = "steps", "first/", "second/", "base_model"


def parse_base_model(name: str) -> NgramConfig:
    """The model of a name such as `epochal-ngram` or `epochal-ngram:context=4,hidden=32`.

    Raises:
        Refused: `invalid-body`: there is no such model; `body-too-large`.
    """
    found = _BASE_MODEL.fullmatch(name)
    if found is None:
        raise Refused(Refusal.INVALID_BODY, f"base model {name!r}; allowed: {BASE_MODEL}, or {BASE_MODEL}:hidden=32")
    sizes = dict(part.split("=") for part in found[1].split(",")) if found[1] else {}
    try:
        model = NgramConfig.model_validate({size: int(value) for size, value in sizes.items()})
    except ValidationError as error:
        raise Refused(Refusal.INVALID_BODY, f"base model {name!r}: {error.errors()[0]['msg']}") from error
    check_model_size(model)
    return model


class TinkerModel:
    """One model, of the name `base_model`."""

    def __init__(self, base_model: str) -> None:
        self.base_model = base_model
        self._config = parse_base_model(base_model)
        self._parameters: Tensors = {}
        self._state = AdamWState()
        self._gradient: Gradient = {}
        self._failed: str | None = None

    def initialise(self, seed: int | None) -> None:
        """Makes the parameters, of the seed or at random."""
        text = secrets.token_bytes(32) if seed is None else str(seed).encode()
        self._parameters = initial_parameters(self._config, text)

    def forward(self, examples: list[Example], *, backward: bool) -> bytes:
        """The answer to a request of examples; adds their gradient if `backward`.

        Raises:
            Refused: `untrainable`: the loss is not finite.
        """
        if backward and not self._gradient:
            self._gradient = {name: np.zeros_like(array) for name, array in self._parameters.items()}
        context = self._config.context
        # A label stands where it is predicted from the tokens before it, so there is one place after the last token.
        read = [np.append(example.tokens, 0).astype(np.uint16) for example in examples]
        padded = padded_tokens([Document(tokens).tokens for tokens in read], context)
        targets = np.full(padded.size, PADDING, np.uint16)
        weights = np.zeros(padded.size, np.float32)
        logprobs = np.zeros(padded.size, np.float32)
        ends = np.cumsum([context + tokens.size for tokens in read], dtype=np.int64)
        places = [slice(int(end) - example.targets.size, int(end)) for end, example in zip(ends, examples, strict=True)]
        for place, example in zip(places, examples, strict=True):
            targets[place], weights[place] = example.targets, example.weights
        gradient = self._gradient if backward else None
        with np.errstate(all="ignore"):  # a loss that is not finite is found below
            loss_sum, count = add_gradient(self._parameters, padded, targets, gradient, lambda: None, weights, logprobs)
        if not math.isfinite(loss_sum):
            raise Refused(Refusal.UNTRAINABLE, f"the loss is {loss_sum}")
        return encode_output([logprobs[place] for place in places], {"loss:sum": loss_sum, "tokens:sum": float(count)})

    def fail(self, message: str) -> None:
        """A request that belongs to the next step has failed; that step discards the gradient."""
        self._failed = self._failed or message

    def optim_step(self, optimizer: AdamW, learning_rate: float) -> dict[str, float]:
        """The optimizer's step on the gradient, which is used up. Without one, nothing; its metrics.

        Raises:
            Refused: `incomplete-step`: a request since the last step failed; its gradient is discarded.
        """
        gradient, self._gradient = self._gradient, {}
        failed, self._failed = self._failed, None
        if failed is not None:
            raise Refused(Refusal.INCOMPLETE_STEP, f"the gradient was discarded, since a request failed: {failed}")
        if not gradient:
            return {}
        norm = math.sqrt(sum(float(np.vdot(array, array)) for array in gradient.values()))
        tensors: Tensors = {name: array.astype(np.float32) for name, array in gradient.items()}
        with np.errstate(all="ignore"):
            adamw_step(self._parameters, tensors, self._state, optimizer, learning_rate)
        return {"grad_norm:mean": norm}

    def save(self, folder: Path, name: str, *, overwrite: bool) -> None:
        """Writes `NAME.safetensors` (the parameters, as a run's `checkpoint` takes them) and the optimizer's state.

        Raises:
            Refused: `not-saved`: the name is taken or none, or the disk is full.
        """
        _check_name(name)
        if not overwrite and (folder / (name + WEIGHTS_SUFFIX)).exists():
            raise Refused(Refusal.NOT_SAVED, f"{name!r} is saved already, and `overwrite` is not set")
        moments = {_FIRST + key: array for key, array in self._state.first.items()}
        moments |= {_SECOND + key: array for key, array in self._state.second.items()}
        steps = {_STEPS: str(self._state.step_count)}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if sum(1 for _ in folder.iterdir()) >= MAX_SAVED:
                raise Refused(Refusal.NOT_SAVED, f"{MAX_SAVED} files are saved of this model, the maximum")
            replace_file(folder / (name + OPTIMIZER_SUFFIX), encode_tensor_file(moments, steps))
            named = {_MODEL: self.base_model}
            replace_file(folder / (name + WEIGHTS_SUFFIX), encode_tensor_file(self._parameters, named))
        except OSError as error:
            raise Refused(Refusal.NOT_SAVED, f"{name!r} cannot be saved: {error.strerror}") from error

    def load(self, folder: Path, name: str, *, optimizer: bool) -> None:
        """Takes over what `save` wrote. Raises `Refused`: `not-saved`."""
        _check_name(name)
        try:
            weights = parse_tensor_file((folder / (name + WEIGHTS_SUFFIX)).read_bytes())
            kept = parse_tensor_file((folder / (name + OPTIMIZER_SUFFIX)).read_bytes())
        except OSError as error:
            raise Refused(Refusal.NOT_SAVED, f"{name!r} cannot be read: {error.strerror}") from error
        except InvalidTensorFile as error:
            raise Refused(Refusal.NOT_SAVED, f"{name!r}: {error.message}") from error
        tensors = {key: array.copy() for key, array in weights.tensors().items()}
        if {key: array.shape for key, array in tensors.items()} != parameter_shapes(self._config):
            raise Refused(Refusal.NOT_SAVED, f"{name!r} holds another model than {self.base_model}")
        self._parameters, self._state, self._gradient = tensors, AdamWState(), {}
        if optimizer:
            moments = kept.tensors()
            first, second = (
                {key.removeprefix(prefix): moments[key].copy() for key in moments if key.startswith(prefix)}
                for prefix in (_FIRST, _SECOND)
            )
            self._state = AdamWState(int(kept.metadata[_STEPS]), first, second)


def saved_base_model(folder: Path, name: str) -> str:
    """The base model of saved weights. Raises `Refused`: `not-saved`."""
    _check_name(name)
    try:
        return parse_tensor_file((folder / (name + WEIGHTS_SUFFIX)).read_bytes()).metadata[_MODEL]
    except (OSError, InvalidTensorFile, KeyError) as error:
        raise Refused(Refusal.NOT_SAVED, f"there are no weights {name!r}") from error


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or (name + WEIGHTS_SUFFIX).endswith(OPTIMIZER_SUFFIX):
        raise Refused(
            Refusal.NOT_SAVED,
            f"the name {name!r}; allowed: letters, digits, '.', '_' and '-', up to 128, not ending in '.optimizer'",
        )
