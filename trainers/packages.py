"""Trainers from other packages: a class that `--trainer` or a state file names, imported when it is asked for.

A package registers its class in the entry point group `epochal.trainers`, by whose name a state file knows it; on a
command line a class without an entry point is named as `module:Class`. The class has `open(setup)`, which returns the
trainer of a client, and, if its model is one of its own (`architecture = "Custom"`), `open_model(spec, options)`. A
subclass of `epochal.TorchTask` has both.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from epochal.runtime.entry_points import check_registered, names_of, registered
from epochal.runtime.import_by_name import import_by_name
from epochal.runtime.permissions import Permissions
from epochal.runtime.worker_thread import Worker
from epochal.state.config.model_table import TRAINER, Architecture, InnerOptimizer, ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.errors import EpochalError, InvalidInput
from epochal.trainers.learner import Model
from epochal.trainers.protocol import Trainer
from epochal.trainers.torch.torch_options import DEFAULT_TORCH_OPTIONS, TorchOptions

ENTRY_POINT_GROUP = "epochal.trainers"
_TRAINER_PARTS = (
    *("name", "vocabulary", "loads_data", "computed", "initial_parameters", "train"),
    *("commit_inner_state", "roll_back_inner_state", "forget_inner_state", "aclose"),
)
_MODEL_PARTS = ("vocabulary", "shapes", "initial_parameters", "learner")


class UnknownTrainer(InvalidInput):
    """There is no trainer of the name that was given on this machine. The user's fault."""


@dataclass(frozen=True, slots=True)
class TrainerSetup:
    """The facts with which a client's trainer is opened.

    Attributes:
        name: the name by which the user asked for the trainer; it becomes the trainer's `name`.
        state: the run's state file.
        spec: the run's model; `spec.custom` is the table `[model.LLM.custom]`.
        optimizer: the run's inner optimizer; None for the one that leaves the parameters as they are (`"Dummy"`).
        worker: runs the trainer's arithmetic; the trainer's `aclose` closes it.
        torch: how the user wants torch to compute, for trainers that use it.
    """

    name: str
    state: StateFile
    spec: ModelSpec
    optimizer: InnerOptimizer | None
    worker: Worker
    torch: TorchOptions = DEFAULT_TORCH_OPTIONS


class TrainerClass(Protocol):
    """A class, or another object, that a package registers as its trainer."""

    def open(self, setup: TrainerSetup) -> Trainer:
        """Return a client's trainer. It may connect to services later, in the first `train`.

        Raises:
            EpochalError: it cannot be opened; any other exception is shown to the user as an `InvalidInput`.
        """
        ...

    def open_model(self, spec: ModelSpec, options: TorchOptions) -> Model:
        """Return the model of `architecture = "Custom"` that `spec.custom` describes; needed for such runs only.

        Its `shapes` and `initial_parameters` are used where the run's first checkpoint is made and checked, also by
        the coordinator, and its `learner` by `epochal evaluate`. A class without torch ignores the options.
        """
        ...


def installed_trainers() -> list[str]:
    """Return the names of the trainers that installed packages register."""
    return names_of(ENTRY_POINT_GROUP)


def place_of_trainer(name: str) -> str | None:
    """Return `module:Class` of a trainer by its name, which may be that already; None if no package registers it.

    Raises:
        InvalidInput: several packages register different classes under the name.
    """
    if ":" in name:
        return name
    entry = registered(ENTRY_POINT_GROUP, name)
    return None if entry is None else entry.value


def trainer_class(name: str, shown: str) -> TrainerClass:
    """Import and return the class of a trainer.

    Args:
        name: of an entry point, or `module:Class`.
        shown: the name as messages show it, with the option or line that names it.

    Raises:
        UnknownTrainer: there is no such trainer.
        InvalidInput: several have the name, it cannot be imported, or it is no trainer.
    """
    place = place_of_trainer(name)
    if place is None:
        raise UnknownTrainer(
            f"{shown} is not installed: no package registers it in {ENTRY_POINT_GROUP}; installed: "
            f"{', '.join(installed_trainers()) or 'none'}; install its package",
            trainer=name,
        )
    shown = shown if place == name else f"{shown} ({place})"
    found = import_by_name(place, shown)
    if not callable(getattr(found, "open", None)):
        raise InvalidInput(
            f"{shown} is {found!r}; allowed: a subclass of epochal.TorchTask, or a class with open(setup)", trainer=name
        )
    trainer: TrainerClass = found
    return trainer


def open_packaged_trainer(setup: TrainerSetup) -> Trainer:
    """Open a package's trainer by the name in the setup.

    Raises:
        InvalidInput: there is no such trainer, or it cannot be opened.
        EpochalError: an error that the trainer raises on purpose.
    """
    shown = f"trainer {setup.name!r}"
    trainer = _called(shown, trainer_class(setup.name, shown).open, setup)
    _check_parts(shown, trainer, _TRAINER_PARTS)
    opened: Trainer = trainer
    return opened


def open_custom_model(spec: ModelSpec, options: TorchOptions = DEFAULT_TORCH_OPTIONS) -> Model:
    """Open the model of `architecture = "Custom"`. Raises as `open_packaged_trainer` does."""
    name = trainer_of(spec)
    shown = f"model.LLM.custom.trainer {name!r}"
    opener = getattr(trainer_class(name, shown), "open_model", None)
    if not callable(opener):
        raise InvalidInput(
            f'{shown} has no open_model(spec, options), which architecture = "Custom" needs; allowed: a subclass of '
            "epochal.TorchTask, or a class with both open(setup) and open_model(spec, options)",
            trainer=name,
        )
    model: Model = _called(shown, opener, spec, options)
    _check_parts(shown, model, _MODEL_PARTS)
    return model


def trainer_of(spec: ModelSpec) -> str:
    """Return the name of the trainer to which a custom model belongs. Raise `InvalidInput` if the spec has no table."""
    if spec.custom is None:
        raise InvalidInput('architecture = "Custom" without a table [model.LLM.custom] that names its `trainer`')
    name: str = spec.custom[TRAINER]
    return name


def check_may_open(spec: ModelSpec, permissions: Permissions) -> None:
    """Raise `NotAllowed` if a document's model belongs to a trainer whose package the owner did not allow.

    Raises:
        InvalidInput: no package registers the trainer.
    """
    if spec.architecture is Architecture.CUSTOM and not spec.dummy:
        name = trainer_of(spec)
        check_registered(ENTRY_POINT_GROUP, name, f"model.LLM.custom.trainer {name!r}", permissions)


def _called(shown: str, opener: Any, *arguments: Any) -> Any:
    try:
        return opener(*arguments)
    except EpochalError:
        raise
    except Exception as error:  # the other package's code may raise anything
        raise InvalidInput(f"{shown} cannot be opened: {type(error).__name__}: {error}") from error


def _check_parts(shown: str, found: Any, parts: tuple[str, ...]) -> None:
    missing = [part for part in parts if not hasattr(found, part)]
    if missing:
        raise InvalidInput(f"{shown} opened a {type(found).__name__} without {', '.join(missing)}")
