"""The architectures `HfLlama`, `HfDeepseek` and `HfAuto`: causal language models of transformers.

The parameters are the module's `named_parameters()`, tied weights once, in float32, and the biases that choose experts,
which no step changes. Other buffers are not among them: every client has those that the config gives.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from epochal.state.config.model_table import InnerOptimizer, ModelSpec
from epochal.state.errors import Mistake, TrainerFailed, Unsupported
from epochal.state.model.tensors import Tensors
from epochal.trainers.torch.forward_trial import check_first_module
from epochal.trainers.torch.hf_config import CONFIG_PLACE, NOT_TRAINED, build_module, hf_config
from epochal.trainers.torch.language import NextTokenLoss
from epochal.trainers.torch.learner import TorchLearner
from epochal.trainers.torch.torch_options import DEFAULT_TORCH_OPTIONS, TorchOptions

if TYPE_CHECKING:  # imported where there is a mesh
    from torch.distributed.device_mesh import DeviceMesh

    from epochal.trainers.torch.sharded_learner import ShardedLearner

MAX_KNOWN_LAYOUTS = 8
"""Models whose parameters' names and shapes are remembered: they are asked for with every checkpoint."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """The facts of a model that need no parameters."""

    vocabulary: int
    max_positions: int | None
    shapes: Mapping[str, tuple[int, ...]]


class HfModel:
    """A causal language model of transformers.

    Args:
        spec: architecture and Hugging Face config.
        options: where and how its learners compute.

    Raises:
        Unsupported: the config is not known or not one of the architecture's.
    """

    def __init__(self, spec: ModelSpec, options: TorchOptions = DEFAULT_TORCH_OPTIONS) -> None:
        self._spec = spec
        self._options = options
        self._layout = _layout_of(spec.model_dump_json())

    @property
    def vocabulary(self) -> int:
        return self._layout.vocabulary

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._layout.shapes

    def initial_parameters(self, seed: bytes) -> Tensors:
        try:
            with torch.random.fork_rng(devices=[]), torch.device("cpu"):
                torch.manual_seed(int.from_bytes(seed[:8], "little", signed=True))
                module = build_module(self._spec)
                check_first_module(module, self.vocabulary)
        except (MemoryError, RuntimeError) as error:
            raise TrainerFailed(f"no memory for a model of {self._parameter_count} parameters: {error}") from error
        return {name: one.detach().numpy() for name, one in sorted(module.named_parameters())}

    def learner(self) -> TorchLearner:
        """Return a new learner of this model, without parameters.

        Raises:
            InvalidInput: this machine does not have the device that the options name.
        """
        build = partial(_built_on, self._spec)
        return TorchLearner(build, self.objective(), self._options)

    def sharded_learner(
        self, mesh: "DeviceMesh", optimizer: InnerOptimizer | None, fitting_places: int | None
    ) -> "ShardedLearner":
        """Return this process's part of the model (`epochal.trainers.torch.sharded_learner.ShardableModel`)."""
        from epochal.trainers.torch.sharded_learner import ShardedLearner

        build = partial(build_module, self._spec)
        return ShardedLearner(build, self.objective(), self._options, mesh, optimizer, fitting_places)

    def objective(self) -> NextTokenLoss:
        """Return what the model's learners minimise."""
        return NextTokenLoss(self._layout.vocabulary, self._layout.max_positions)

    @property
    def _parameter_count(self) -> int:
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())


def _built_on(spec: ModelSpec, device: torch.device) -> torch.nn.Module:
    """Return the module on a device. Torch's random numbers are as before, except on the device."""
    with torch.random.fork_rng(devices=[]), device:
        module: torch.nn.Module = build_module(spec)
    return module


@functools.lru_cache(maxsize=MAX_KNOWN_LAYOUTS)
def _layout_of(spec_json: str) -> _Layout:
    spec = ModelSpec.model_validate_json(spec_json)
    config = hf_config(spec).get_text_config()
    with torch.device("meta"):
        module = build_module(spec)
    shapes = {name: tuple(one.shape) for name, one in sorted(module.named_parameters())}
    if empty := next((name for name, shape in shapes.items() if 0 in shape), None):
        reason = f"refused: parameter {empty} has the shape {list(shapes[empty])}"
        raise Unsupported("model", (Mistake(CONFIG_PLACE, reason, "sizes above 0"),), NOT_TRAINED)
    longest = getattr(config, "max_position_embeddings", None)
    return _Layout(int(config.vocab_size), longest if isinstance(longest, int) else None, shapes)
