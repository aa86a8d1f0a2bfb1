"""The architectures `HfLlama`, `HfDeepseek` and `HfAuto`: causal language models of transformers.

The parameters are the module's `named_parameters()`, tied weights once, in float32, and the biases that choose experts,
which no step changes. Other buffers are not among them: every client has those that the config gives.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from epochal.state.config.model_table import InnerOptimizer, ModelSpec
from epochal.state.errors import Mistake, TrainerFailed, Unsupported
from epochal.state.model.tensors import Tensors
from epochal.trainers.torch.devices import is_out_of_memory
from epochal.trainers.torch.hf_config import CONFIG_PLACE, NOT_TRAINED, build_module, first_line, hf_config, quiet
from epochal.trainers.torch.language import NextTokenLoss
from epochal.trainers.torch.learner import TorchLearner
from epochal.trainers.torch.torch_options import DEFAULT_TORCH_OPTIONS, TorchOptions

if TYPE_CHECKING:  # imported where there is a mesh
    from torch.distributed.device_mesh import DeviceMesh

    from epochal.trainers.torch.sharded_learner import ShardedLearner

TRIED_PLACES = 8
"""Length of the row with which a model is tried."""
TRIED_VOCABULARY = 256
"""Tokens of the row are below it."""
TOLERANCE = 1e-5
"""Largest movement that is rounding, as a part of the largest logit. Of models that look ahead it is above 1e-4."""
MAX_INITIAL_VALUE = 1e4
"""Larger parameters were not initialised by the model's class: their memory is arbitrary."""
_NOT_OF_THE_CONFIG = re.compile(r"cuda|triton|not implemented|not supported on|sequence[ _]length", re.IGNORECASE)
"""Errors of a kernel that this machine lacks, or of so short a row: they say nothing about the config."""
MAX_KNOWN_LAYOUTS = 8
"""Models whose parameters' names and shapes are remembered: they are asked for with every checkpoint."""


def check_first_module(module: Any, vocabulary: int) -> None:
    """Raise `Unsupported` if a module cannot be computed, computes numbers that are not finite, or looks ahead.

    transformers makes modules of many configs with which no step can be computed. And a model whose output at a place
    depends on later places sees what it has to predict, so that it learns nothing; its class does not say so (BERT's do
    both). Therefore a row is computed twice, the second time with another last token: no logit before it may move.

    Args:
        module: with the run's first parameters, on the CPU; in training mode, and left so.
        vocabulary: tokens are below it.
    """
    longest = getattr(module.config, "max_position_embeddings", None)
    places = min(TRIED_PLACES, longest) if isinstance(longest, int) else TRIED_PLACES
    known = min(vocabulary, TRIED_VOCABULARY)
    row = torch.arange(places)[None] % known
    other = row.clone()
    other[0, -1] = (other[0, -1] + 1) % known
    try:
        with quiet(), torch.no_grad():
            module.eval()
            one, two = (module(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0] for ids in (row, other))
    except Exception as error:  # of any model's class
        if is_out_of_memory(error):
            raise
        if isinstance(error, ImportError | NotImplementedError) or _NOT_OF_THE_CONFIG.search(str(error)):
            return
        raise _refused(first_line(error), "a config with which the model can be computed") from error
    finally:
        module.train()
    if not bool(torch.isfinite(one).all()):
        if all(float(part.detach().abs().max()) <= MAX_INITIAL_VALUE for part in module.parameters()):
            reason = "with random parameters it computes numbers that are not finite"
            raise _refused(reason, "a config with which the model can be computed")
    elif places > 1 and float((one - two)[:-1].abs().max()) > TOLERANCE * float(one.abs().max()):
        why = "it sees the tokens after a place, and with them what it has to predict"
        is_decoder = getattr(module.config, "is_decoder", None)
        hint = "is_decoder = true" if is_decoder is False else "a model that predicts each token from those before it"
        raise _refused(why, hint)


def _refused(reason: str, allowed: str) -> Unsupported:
    return Unsupported("model", (Mistake(CONFIG_PLACE, f"refused: {reason}", allowed),), NOT_TRAINED)


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
