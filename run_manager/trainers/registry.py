"""Trainers by name."""

from collections.abc import Callable, Mapping

from run_manager.trainers.null_trainer import NullTrainer
from run_manager.trainers.numpy_trainer import NumpyTrainer
from run_manager.trainers.protocol import Trainer
from run_manager.worker_thread import Worker
from state.config import StateFile
from state.errors import InvalidInput, Mistake, Unsupported
from state.model_config import AdamW, Architecture, DummyOptimizer


def open_trainer(name: str, state: StateFile, worker: Worker) -> Trainer:
    """The trainer of this name, for the run that the state file describes.

    Args:
        name: one of `TRAINERS`.
        state: the run's state file.
        worker: where the trainer's arithmetic runs; the trainer closes it.

    Raises:
        InvalidInput: no trainer has this name; the user's fault, the message says which there are.
        Unsupported: the trainer cannot train what the file asks for; the message says which lines to change.
    """
    check_trainer_name(name)
    return TRAINERS[name](state, worker)


def check_trainer_name(name: str) -> None:
    """Raises `InvalidInput` unless there is a trainer of this name."""
    if name not in TRAINERS:
        raise InvalidInput(f"there is no trainer {name!r}; allowed: {', '.join(sorted(TRAINERS))}", trainer=name)


def _open_null(state: StateFile, worker: Worker) -> Trainer:
    del worker  # it has no arithmetic to run
    _ensure_embedded("null", state)
    return NullTrainer(state.model.LLM.ngram)


def _open_numpy(state: StateFile, worker: Worker) -> Trainer:
    _ensure_embedded("numpy", state)
    optimizer = state.model.LLM.optimizer
    if not isinstance(optimizer, AdamW | DummyOptimizer):
        raise _unsupported("numpy", "model.LLM.optimizer", optimizer.variant, "AdamW or Dummy")
    return NumpyTrainer(
        state.model.LLM.ngram,
        optimizer if isinstance(optimizer, AdamW) else None,
        state.merge.inner_state,
        worker,
    )


def _ensure_embedded(trainer: str, state: StateFile) -> None:
    architecture = state.model.LLM.architecture
    if architecture is not Architecture.EPOCHAL_NGRAM:
        raise _unsupported(
            trainer,
            "model.LLM.architecture",
            architecture.value,
            f"{Architecture.EPOCHAL_NGRAM.value} with this trainer",
        )


def _unsupported(trainer: str, path: str, value: str, allowed: str) -> Unsupported:
    return Unsupported(f"trainer {trainer}", (Mistake(path, value, allowed),))


TRAINERS: Mapping[str, Callable[[StateFile, Worker], Trainer]] = {"null": _open_null, "numpy": _open_numpy}
