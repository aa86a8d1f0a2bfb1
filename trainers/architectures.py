"""The architectures that this version trains, and the only place that lists them.

To add one, write a package that implements `Model` and `Learner`, and add an entry here; trainers, mesh, training
service and commands stay as they are.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from epochal.state.config.model_table import HF_ARCHITECTURES, Architecture, ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.config.verify_table import dropouts
from epochal.state.errors import EpochalError, InvalidInput, Mistake, Unsupported

if TYPE_CHECKING:  # models are imported when one is opened: `epochal check` only asks which architectures there are
    from epochal.trainers.learner import Model
    from epochal.trainers.torch.torch_options import TorchOptions

NUMPY, TORCH = "numpy", "torch"
"""The trainers that compute on this machine."""


@dataclass(frozen=True, slots=True)
class ArchitectureEntry:
    """One architecture.

    Attributes:
        open: returns the model of a size; torch models compute as the options say.
        modules: the libraries that it needs.
        extra: the extra of this package that installs them.
        trainer: the trainer that computes it on this machine; "" if the spec names it.
    """

    open: Callable[[ModelSpec, "TorchOptions | None"], "Model"]
    modules: tuple[str, ...] = ()
    extra: str = ""
    trainer: str = NUMPY

    def missing_modules(self, spec: ModelSpec | None = None) -> list[str]:
        """Return the libraries that it needs, and that are not installed; with a spec, those that this model needs."""
        adapts = spec is not None and spec.adapter is not None
        return [name for name in (*self.modules, *(("peft",) if adapts else ())) if find_spec(name) is None]

    def extra_of(self, spec: ModelSpec) -> str:
        """Return the extra of this package that installs what this model needs."""
        return self.extra if spec.adapter is None else "adapters"


@contextmanager
def naming_broken_libraries() -> Iterator[None]:
    """Raise `InvalidInput` if torch or transformers, which are installed, cannot be imported within the block.

    Libraries whose versions do not go together raise errors of any kind while they are imported.
    """
    try:
        yield
    except EpochalError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise InvalidInput(f"torch or transformers cannot be imported: {reason}") from error


def _open_ngram(spec: ModelSpec, options: "TorchOptions | None") -> "Model":
    del options
    from epochal.trainers.ngram.learner import NgramModel

    return NgramModel(spec.ngram)


def _open_hf(spec: ModelSpec, options: "TorchOptions | None") -> "Model":
    with naming_broken_libraries():
        import torch  # noqa: F401
        from transformers import CONFIG_MAPPING, AutoModelForCausalLM  # noqa: F401 - which imports what they need

        if spec.adapter is not None:
            from epochal.trainers.torch.adapters import AdapterModel

            return AdapterModel(spec) if options is None else AdapterModel(spec, options)
        from epochal.trainers.torch.causal_models import HfModel

    return HfModel(spec) if options is None else HfModel(spec, options)


_TRANSFORMERS = (("torch", "transformers"), "torch")


def _open_custom(spec: ModelSpec, options: "TorchOptions | None") -> "Model":
    from epochal.trainers.packages import open_custom_model

    return open_custom_model(spec) if options is None else open_custom_model(spec, options)


ARCHITECTURES: dict[Architecture, ArchitectureEntry] = {
    Architecture.EPOCHAL_NGRAM: ArchitectureEntry(_open_ngram),
    Architecture.HF_LLAMA: ArchitectureEntry(_open_hf, *_TRANSFORMERS, TORCH),
    Architecture.HF_DEEPSEEK: ArchitectureEntry(_open_hf, *_TRANSFORMERS, TORCH),
    Architecture.HF_AUTO: ArchitectureEntry(_open_hf, *_TRANSFORMERS, TORCH),
    Architecture.CUSTOM: ArchitectureEntry(_open_custom, trainer=""),
}


def open_model(spec: ModelSpec, asked_by: str = "model", options: "TorchOptions | None" = None) -> "Model":
    """Return the model of this architecture and size.

    Args:
        spec: architecture and size, complete: from the run's model document.
        asked_by: the beginning of the error's message.
        options: how models of torch compute; None for the defaults.

    Raises:
        Unsupported: this version does not train the architecture, its config is missing or wrong, or libraries that it
            needs are not installed; the message says which line to change, or what to install.
        InvalidInput: the model belongs to a trainer of another package that cannot be imported here.
    """
    if spec.dummy:
        from epochal.trainers.null import DummyModel

        return DummyModel()
    entry = ARCHITECTURES.get(spec.architecture)
    if entry is None:
        allowed = " or ".join(sorted(ARCHITECTURES))
        raise Unsupported(asked_by, (Mistake("model.LLM.architecture", spec.architecture.value, allowed),))
    missing = entry.missing_modules(spec)
    if missing:
        allowed = f"any other, or this one with {' and '.join(missing)}: pip install 'epochal[{entry.extra_of(spec)}]'"
        raise Unsupported(asked_by, (Mistake("model.LLM.architecture", spec.architecture.value, allowed),))
    if not spec.is_complete:
        allowed = "a table with the keys of the model's config.json"
        raise Unsupported(asked_by, (Mistake("model.LLM.hf", None, allowed),))
    return entry.open(spec, options)


def is_of_transformers(spec: ModelSpec) -> bool:
    """Return whether transformers makes the model, and is installed."""
    entry = ARCHITECTURES.get(spec.architecture)
    is_one = spec.architecture in HF_ARCHITECTURES and not spec.dummy and entry is not None and entry.trainer == TORCH
    return is_one and entry is not None and not entry.missing_modules()


def check_repeatable(state: StateFile, spec: ModelSpec) -> None:
    """Raise `Unsupported` if no work on the model can be repeated, as its class drops values where no line says so.

    Args:
        state: the run's state file; `unrepeatable` finds what it says itself.
        spec: its model; one that is not complete, or for which libraries are not installed, is not checked.
    """
    if spec.hf is not None and is_of_transformers(spec):
        with naming_broken_libraries():
            from epochal.trainers.torch.config_keys import check_dropouts

            check_dropouts(spec, {path for path, _ in dropouts(state.model.LLM.spec.tables, ("model", "LLM"))})


def check_trainer(trainer: str, architecture: Architecture) -> None:
    """Raise `Unsupported` unless this trainer, `numpy` or `torch`, computes models of this architecture."""
    entry = ARCHITECTURES.get(architecture)
    if entry is None or entry.trainer == trainer:
        return  # what no trainer computes is refused when it is opened
    own = " or ".join(sorted(one for one, other in ARCHITECTURES.items() if other.trainer == trainer))
    allowed = f"{own} with --trainer {trainer}; {architecture.value} is trained by --trainer {entry.trainer}"
    raise Unsupported(f"trainer {trainer}", (Mistake("model.LLM.architecture", architecture.value, allowed),))
