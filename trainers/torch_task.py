"""The base class of trainers for custom models in torch.

A subclass says what the model is, how samples become a batch, and what the loss is. Everything else is `TorchLearner`'s
and `LearnerTrainer`'s: devices, precision, micro-batches, gradients, optimizer and inner state.

The rule kept here: a subclass is another's code and may raise anything. What it raises becomes an error that names the
class and the method. Failures of memory and of the device pass as they are, because the learner knows what they mean.
"""

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn.modules.batchnorm import _NormBase

from epochal.batching.chunking.datums import ImageAssetPointerChunk, ImageChunk
from epochal.batching.micro_batches import Example
from epochal.state.config.model_table import TRAINER, ModelSpec
from epochal.state.errors import EpochalError, InvalidInput, TrainerFailed
from epochal.state.model.tensors import Tensors
from epochal.trainers.image_files import read_image
from epochal.trainers.learner_trainer import LearnerTrainer
from epochal.trainers.packages import TrainerSetup
from epochal.trainers.torch.devices import is_device_failure, is_out_of_memory, reason_of
from epochal.trainers.torch.learner import TorchLearner
from epochal.trainers.torch.objective import BatchLoss, TensorBatch
from epochal.trainers.torch.torch_options import DEFAULT_TORCH_OPTIONS, TorchOptions

Batch: TypeAlias = torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]
_ALONE, _PLACE, _NAME = "alone", "place ", "name "


class TorchTask(ABC):
    """A custom model in torch, and its objective: the base class of trainers in packages (docs/trainers.md).

    Register the subclass in the entry point group `epochal.trainers`. It is made without arguments other than the spec.

    Attributes:
        options: the table `[model.LLM.custom]` of the state file without its `trainer`.
        vocabulary: a token or label that is not below it is corrupt data; None for any.
        places_at_a_time: the most tokens of a micro-batch with `--micro-batch auto`, each sample counted as long as its
            longest. It is smaller where a local step or the device's memory is. A sample with images counts one.
        assets: the folder of images that the owner of this machine named (`--assets`); None without.
    """

    vocabulary: int | None = None
    places_at_a_time: int = 65_536
    assets: Path | None = None

    def __init__(self, spec: ModelSpec) -> None:
        self.options: Mapping[str, Any] = {
            name: value for name, value in (spec.custom or {}).items() if name != TRAINER
        }

    @abstractmethod
    def build_model(self) -> torch.nn.Module:
        """Return the model with its first values.

        Clients share its `named_parameters()`, which are converted to float32; buffers stay as they are built here.
        """

    @abstractmethod
    def batch_of(self, samples: Sequence[Example]) -> Batch:
        """Return samples as one batch: a tensor, or a tuple or a dictionary of tensors, on the CPU.

        Each sample has `tokens`, an array of integers, and `labels`, an array of the same length or None. A local step
        may be computed in several batches, the longest samples first. Where the run's `data_type` is "Multimodal", a
        sample's `datum` has its chunks of text and images, and batches are in the samples' order.
        """

    def image_bytes(self, image: ImageChunk | ImageAssetPointerChunk) -> bytes:
        """Return the file of an image: its own bytes, or for a location those of the file below `assets`.

        Raises:
            TrainerFailed: the location is an address, which this method does not fetch, or there is no such file.
        """
        return image.data if isinstance(image, ImageChunk) else read_image(image, self.assets)

    @abstractmethod
    def loss(self, model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, int]:
        """Return the sum of a batch's loss, and over how many things it was summed (tokens, images).

        Args:
            model: as `build_model` returned it, on the device; in evaluation mode where no gradient is wanted.
            batch: as `batch_of` returned it, on the same device.
        """

    @classmethod
    def open(cls, setup: TrainerSetup) -> LearnerTrainer:
        """Return the trainer of a client."""
        keeps_state = setup.state.merge.inner_state == "keep"
        model = cls.open_model(setup.spec, setup.torch)
        return LearnerTrainer(model, setup.optimizer, keeps_state, setup.worker, setup.name)

    @classmethod
    def open_model(cls, spec: ModelSpec, options: TorchOptions | None = None) -> "TaskModel":
        """Return the model that the spec describes; its learners compute as the options say."""
        return TaskModel(cls, spec, options or DEFAULT_TORCH_OPTIONS)


class TaskModel:
    """The model of a `TorchTask`.

    Args:
        kind: the task's class.
        spec: the run's model.
        options: where and how its learners compute.

    Raises:
        InvalidInput: the class cannot make its model from the spec, or clients cannot share the model.
    """

    def __init__(self, kind: type[TorchTask], spec: ModelSpec, options: TorchOptions) -> None:
        self._task = _made(kind, spec)
        self._task.assets = options.assets
        self._options = options
        self.shapes = _shapes_of(self._task)
        """Shape of every parameter, by name, in name order."""

    @property
    def vocabulary(self) -> int | None:
        return self._task.vocabulary

    def initial_parameters(self, seed: bytes) -> Tensors:
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int.from_bytes(seed[:8], "little", signed=True))
                module = built(self._task, torch.device("cpu"))
        except (MemoryError, RuntimeError) as error:
            raise TrainerFailed(f"{_name_of(type(self._task))}.build_model failed: {reason_of(error)}") from error
        return {name: one.detach().numpy() for name, one in sorted(module.named_parameters())}

    def learner(self) -> TorchLearner:
        """Return a new learner of this model, without parameters.

        Raises:
            InvalidInput: this machine does not have the device that the options name.
        """
        return TorchLearner(functools.partial(_rebuilt, self._task), TaskObjective(self._task), self._options)


class TaskObjective:
    """The objective of a `TorchTask`, as a `TorchLearner` asks for it."""

    def __init__(self, task: TorchTask) -> None:
        self._task = task

    def sizes(self, examples: Sequence[Example]) -> list[int]:
        return [1 if example.datum is not None else max(1, example.tokens.size) for example in examples]

    def places_at_a_time(self, device_type: str) -> int:
        del device_type
        return self._task.places_at_a_time

    def batch(self, examples: Sequence[Example]) -> TensorBatch:
        with _named(self._task, "batch_of", TrainerFailed):
            found = self._task.batch_of(examples)
        tensors = _by_key(found)
        if not tensors or not all(isinstance(one, torch.Tensor) for one in tensors.values()):
            raise TrainerFailed(
                f"{_name_of(type(self._task))}.batch_of returned {_kind_of(found)}; allowed: a tensor, or a tuple or a "
                "dictionary of tensors"
            )
        return TensorBatch(tensors, 0)  # how many things it has is known with its loss

    def loss(self, module: torch.nn.Module, batch: TensorBatch) -> BatchLoss:
        with _named(self._task, "loss", TrainerFailed):
            found = self._task.loss(module, _from_keys(batch.tensors))
        if not _is_loss(found):
            raise TrainerFailed(
                f"{_name_of(type(self._task))}.loss returned {_kind_of(found)}; allowed: the summed loss, a tensor "
                "without dimensions, and an integer, the number of things it was summed over"
            )
        return BatchLoss(found[0].float(), int(found[1]))


def built(task: TorchTask, device: torch.device) -> torch.nn.Module:
    """Build the task's model on a device, with parameters in float32.

    Raises:
        InvalidInput: the class cannot make its model, or clients cannot share the model.
        RuntimeError, MemoryError: torch failed, as on a device without enough memory.
    """
    name = f"{_name_of(type(task))}.build_model"
    with _named(task, "build_model", InvalidInput), device:
        module = task.build_model()
    if not isinstance(module, torch.nn.Module):
        raise InvalidInput(f"{name} returned {_kind_of(module)}; allowed: a torch.nn.Module")
    for part, child in module.named_modules():
        if isinstance(child, _NormBase) and child.track_running_stats:
            raise InvalidInput(
                f"{name}: {part or 'the model'} ({type(child).__name__}) keeps running statistics, which clients "
                "do not share; allowed: GroupNorm or LayerNorm, or track_running_stats=False"
            )
    parameters = dict(module.named_parameters())
    for part, one in parameters.items():
        if torch.nn.parameter.is_lazy(one) or not one.is_floating_point():
            shown = "no shape yet" if torch.nn.parameter.is_lazy(one) else str(one.dtype)
            raise InvalidInput(f"{name}: parameter {part!a} has {shown}; allowed: parameters of floating-point numbers")
    if not parameters:
        raise InvalidInput(f"{name}: the model has no parameters; allowed: a model with something to learn")
    return module.to(device=device, dtype=torch.float32)


def _rebuilt(task: TorchTask, device: torch.device) -> torch.nn.Module:
    """Return the model on a device, for parameters to be copied in. Torch's random numbers are as before."""
    with torch.random.fork_rng(devices=[]):
        return built(task, device)


def _shapes_of(task: TorchTask) -> Mapping[str, tuple[int, ...]]:
    """Return the parameters' shapes. The model is built without memory, unless its class needs values to build it."""
    try:
        module = _rebuilt(task, torch.device("meta"))
    except (InvalidInput, RuntimeError):
        try:
            module = _rebuilt(task, torch.device("cpu"))
        except (MemoryError, RuntimeError) as error:
            raise InvalidInput(f"{_name_of(type(task))}.build_model failed: {reason_of(error)}") from error
    return {name: tuple(one.shape) for name, one in sorted(module.named_parameters())}


def _made(kind: type[TorchTask], spec: ModelSpec) -> TorchTask:
    try:
        return kind(spec)
    except EpochalError:
        raise
    except Exception as error:
        raise InvalidInput(f"{_name_of(kind)} cannot be made: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _named(task: TorchTask, method: str, error_type: type[EpochalError]) -> Iterator[None]:
    """Turn what a task raises within the block into an error that names the method.

    Failures of memory and of the device pass: they are not the task's.
    """
    try:
        yield
    except EpochalError:
        raise
    except Exception as error:
        if is_out_of_memory(error) or is_device_failure(error):
            raise
        raise error_type(
            f"{_name_of(type(task))}.{method} failed: {type(error).__name__}: {reason_of(error)}"
        ) from error


def _by_key(batch: Any) -> dict[str, Any]:
    """Return the tensors of a batch by keys from which `_from_keys` makes the batch again."""
    match batch:
        case torch.Tensor():
            return {_ALONE: batch}
        case Mapping():
            return {f"{_NAME}{name}": one for name, one in batch.items()}
        case tuple() | list():
            return {f"{_PLACE}{place}": one for place, one in enumerate(batch)}
    return {}


def _from_keys(tensors: Mapping[str, torch.Tensor]) -> Any:
    if _ALONE in tensors:
        return tensors[_ALONE]
    if next(iter(tensors)).startswith(_PLACE):
        return tuple(tensors.values())
    return {key.removeprefix(_NAME): one for key, one in tensors.items()}


def _is_loss(found: Any) -> bool:
    match found:
        case (torch.Tensor() as nats, count):
            is_number = isinstance(count, int | np.integer) and not isinstance(count, bool)
            return nats.ndim == 0 and is_number and int(count) >= 0
    return False


def _kind_of(found: Any) -> str:
    if isinstance(found, torch.Tensor):
        return f"a tensor of shape {tuple(found.shape)}"
    if isinstance(found, tuple | list):
        return f"({', '.join(map(_kind_of, found))})"
    return f"a {type(found).__name__}"


def _name_of(kind: type[TorchTask]) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"
