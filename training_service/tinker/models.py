"""Models that the SDK's clients train, with an optimizer whose settings each client chooses.

All parameters are trained; of the SDK's LoRA settings only the seed is used. The gradient is of the sum of
`−weight · log p(target)`, as the SDK defines its `cross_entropy`; the optimizer does not divide it.

The rule kept here: a step is taken on a complete gradient or not at all. If a request since the last step has failed,
the next step fails too and the gradient is discarded; the model is unchanged, and training can continue.
"""

import re
import secrets
from pathlib import Path

from pydantic import ValidationError

from epochal.runtime.files.durable_files import replace_file
from epochal.state.config.model_table import AdamW, ModelSpec
from epochal.state.errors import Refused, TrainerFailed
from epochal.state.model.tensors import InvalidTensorFile, encode_tensor_file, parse_tensor_file
from epochal.state.refusals import Refusal
from epochal.trainers.architectures import ARCHITECTURES
from epochal.trainers.learner import NO_INNER_STATE, InnerState, LossOptions
from epochal.training_service.sessions import open_served_model
from epochal.training_service.tinker.examples import WeightedExamples, encode_output

_SIZES = re.compile(r"\w+=[0-9]{1,9}(?:,\w+=[0-9]{1,9})*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
WEIGHTS_SUFFIX, OPTIMIZER_SUFFIX = ".safetensors", ".optimizer.safetensors"
MAX_SAVED = 256
"""Maximum number of files in a model's folder."""
_STEPS, _MODEL = "steps", "base_model"


def parse_base_model(name: str) -> ModelSpec:
    """Return the model of a name such as `epochal-ngram` or `epochal-ngram:context=4,hidden=32`.

    Raises:
        Refused: `invalid-body`: there is no such model.
    """
    base, separator, text = name.partition(":")
    named = [(one, entry.size_table) for one, entry in ARCHITECTURES.items() if entry.base_model == base]
    if not named or (separator and not (named[0][1] and _SIZES.fullmatch(text))):
        allowed = " or ".join(f"{base}, or {base}:SIZE=NUMBER,…" for base in base_models())
        raise Refused(Refusal.INVALID_BODY, f"base model {name!r}; allowed: {allowed}")
    architecture, table = named[0]
    sizes = {size: int(value) for size, value in (part.split("=") for part in text.split(",") if part)}
    try:
        return ModelSpec.model_validate({"architecture": architecture, **({table: sizes} if table else {})})
    except ValidationError as error:
        raise Refused(Refusal.INVALID_BODY, f"base model {name!r}: {error.errors()[0]['msg']}") from error


def base_models() -> list[str]:
    """Return the names that `parse_base_model` accepts, without sizes."""
    return [entry.base_model for entry in ARCHITECTURES.values() if entry.base_model is not None]


class TinkerModel:
    """One model, of the name `base_model`.

    Raises:
        Refused: as `parse_base_model` and `open_served_model` do.
    """

    def __init__(self, base_model: str) -> None:
        spec = parse_base_model(base_model)
        self.base_model = base_model
        self.architecture = spec.architecture.value
        self._model = open_served_model(spec)
        self._learner = self._model.learner()
        self._failed: str | None = None

    @property
    def vocabulary(self) -> int:
        """Number of tokens in the model's vocabulary."""
        found = self._model.vocabulary
        assert found is not None, "models of language are served"
        return found

    def initialise(self, seed: int | None) -> None:
        """Load initial parameters, made from the seed or at random."""
        text = secrets.token_bytes(32) if seed is None else str(seed).encode()
        self._learner.load(self._model.initial_parameters(text))

    def forward(self, examples: WeightedExamples, *, backward: bool) -> bytes:
        """Answer a request of examples, and add their gradient if `backward`.

        Raises:
            Refused: `untrainable`: the loss is not finite.
        """
        compute = self._learner.accumulate if backward else self._learner.evaluate
        try:
            loss = compute(examples.examples, LossOptions(examples.weights, wants_logprobs=True))
            metrics = {"loss:sum": loss.finite_nats(), "tokens:sum": float(loss.token_count)}
        except TrainerFailed as error:
            raise Refused(Refusal.UNTRAINABLE, error.message) from error
        return encode_output([logprobs[1:] for logprobs in loss.logprobs], metrics)

    def fail(self, message: str) -> None:
        """Make the next step fail and discard its gradient, because one of its requests has failed."""
        self._failed = self._failed or message

    def optim_step(self, optimizer: AdamW, learning_rate: float) -> dict[str, float]:
        """Take the optimizer step if there is a gradient, and return the step's metrics.

        Raises:
            Refused: `incomplete-step`: a request since the last step failed; its gradient is discarded.
        """
        failed, self._failed = self._failed, None
        if failed is not None:
            self._learner.discard()
            raise Refused(Refusal.INCOMPLETE_STEP, f"the gradient was discarded, since a request failed: {failed}")
        norm = self._learner.step(optimizer, learning_rate, 1)
        return {} if norm is None else {"grad_norm:mean": float(norm)}

    def save(self, folder: Path, name: str, *, overwrite: bool) -> None:
        """Write `NAME.safetensors` (the parameters, as a run's `checkpoint` takes them) and the optimizer's state.

        Raises:
            Refused: `not-saved`: the name is taken or not allowed, or the files cannot be written.
        """
        _check_name(name)
        if not overwrite and (folder / (name + WEIGHTS_SUFFIX)).exists():
            raise Refused(Refusal.NOT_SAVED, f"{name!r} is saved already, and `overwrite` is not set")
        state = self._learner.inner_state
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if sum(1 for _ in folder.iterdir()) >= MAX_SAVED:
                raise Refused(Refusal.NOT_SAVED, f"{MAX_SAVED} files are saved of this model, the maximum")
            steps = {_STEPS: str(state.step_count)}
            replace_file(folder / (name + OPTIMIZER_SUFFIX), encode_tensor_file(state.tensors, steps))
            named = {_MODEL: self.base_model}
            replace_file(folder / (name + WEIGHTS_SUFFIX), encode_tensor_file(self._learner.parameters, named))
        except OSError as error:
            raise Refused(Refusal.NOT_SAVED, f"{name!r} cannot be saved: {error.strerror}") from error

    def load(self, folder: Path, name: str, *, optimizer: bool) -> None:
        """Load what `save` wrote. Raise `Refused`: `not-saved`."""
        _check_name(name)
        try:
            weights = parse_tensor_file((folder / (name + WEIGHTS_SUFFIX)).read_bytes())
            kept = parse_tensor_file((folder / (name + OPTIMIZER_SUFFIX)).read_bytes())
        except OSError as error:
            raise Refused(Refusal.NOT_SAVED, f"{name!r} cannot be read: {error.strerror}") from error
        except InvalidTensorFile as error:
            raise Refused(Refusal.NOT_SAVED, f"{name!r}: {error.message}") from error
        tensors = weights.tensors()
        if {key: array.shape for key, array in tensors.items()} != self._model.shapes:
            raise Refused(Refusal.NOT_SAVED, f"{name!r} holds another model than {self.base_model}")
        state = InnerState(int(kept.metadata[_STEPS]), kept.tensors()) if optimizer else NO_INNER_STATE
        self._learner.load(tensors, state)


def saved_base_model(folder: Path, name: str) -> str:
    """Return the base model of saved weights. Raise `Refused`: `not-saved`."""
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
