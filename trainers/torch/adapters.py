"""Adapters of `peft` beside a causal language model of transformers that stays as it is: `[model.LLM.adapter]`.

Theory of operation. The run's parameters are the adapter's tensors alone, under the names that files of `peft` give
them. Names and shapes follow from the base's config, on torch's meta device. The first values follow from a seed, so
that no base is read for them; DoRA's magnitudes are norms of the base's rows. Who computes reads the base from its own
disk, in a precision of his own, after its files have passed `open_base`.
"""

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from epochal.state.config.adapter_table import ALL_LINEAR, Lora
from epochal.state.config.model_table import ModelSpec
from epochal.state.errors import InternalError, Mistake, Unsupported
from epochal.state.model.computed_class import computed_class
from epochal.state.model.tensors import Float32Array, Tensors
from epochal.trainers.ngram.model import keyed_uniform
from epochal.trainers.sources.base_files import open_base
from epochal.trainers.sources.model_source import ModelSource
from epochal.trainers.torch.causal_models import MAX_KNOWN_LAYOUTS, HfModel
from epochal.trainers.torch.devices import Placement
from epochal.trainers.torch.frozen_base import build_base, check_fits
from epochal.trainers.torch.hf_config import NOT_TRAINED, build_module, first_line, quiet
from epochal.trainers.torch.learner import TorchLearner
from epochal.trainers.torch.torch_options import BF16, DEFAULT_TORCH_OPTIONS, FLOAT32, TorchOptions

PREFIX = "base_model.model."
"""Beginning of a tensor's name in files of `peft`, before the name of its layer."""
A, B, MAGNITUDE = ".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"
TRAINER_BYTES = 16
"""Bytes of memory for each number of an adapter: it, its gradient and two moments."""


@dataclass(frozen=True, slots=True)
class AdapterLayout:
    """An adapter's tensors, and the layers that have some.

    Attributes:
        shapes: of the tensors by name, in name order.
        transposed: for each layer by name, whether its matrix has inputs as rows (GPT-2's `Conv1D`).
    """

    shapes: Mapping[str, tuple[int, ...]]
    transposed: Mapping[str, bool]


class AdapterModel:
    """A model of transformers of which only an adapter is trained.

    Args:
        spec: the base's architecture and config, and the adapter.
        options: where and how its learners compute, and where the base is.

    Raises:
        Unsupported: the config is not known, or no layer has the names that the adapter wants.
    """

    def __init__(self, spec: ModelSpec, options: TorchOptions = DEFAULT_TORCH_OPTIONS) -> None:
        self._spec = spec
        self._options = options
        self.whole = HfModel(spec.whole, options)
        """The base, as a model that is trained as a whole."""
        self.layout = _layout_of(spec.model_dump_json(exclude={"base"}))

    @property
    def vocabulary(self) -> int:
        return self.whole.vocabulary

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self.layout.shapes

    def initial_parameters(self, seed: bytes) -> Tensors:
        base = self.open_base() if _lora(self._spec).use_dora else None
        return self.first_parameters(seed, base)

    def first_parameters(self, seed: bytes, base: ModelSource | None) -> Tensors:
        """Return the adapter with which the model computes what its base does.

        A is uniform in ±1/√inputs, as layers of torch are; B is zero.

        Args:
            seed: of A.
            base: where the base's weights are; needed for DoRA's magnitudes only.
        """
        found = {}
        for name, shape in self.shapes.items():
            if name.endswith(A):
                values = keyed_uniform(seed, name, 0, math.prod(shape)) / np.float32(math.sqrt(shape[1]))
                found[name] = values.astype(np.float32).reshape(shape)
            else:
                found[name] = np.zeros(shape, np.float32)
        if _lora(self._spec).use_dora:
            if base is None:
                raise InternalError("DoRA begins with the norms of a base's rows")
            for name, values in base.tensors(self.whole.shapes):
                layer = name.removesuffix(".weight")
                if layer in self.layout.transposed:
                    rows = values.T if self.layout.transposed[layer] else values
                    found[f"{PREFIX}{layer}{MAGNITUDE}"] = np.linalg.norm(rows, axis=1).astype(np.float32)
        return found

    def learner(self) -> TorchLearner:
        """Return a new learner of the adapter, without parameters. The base's files are verified, and not read yet.

        Raises:
            InvalidInput: this machine lacks the device, memory for the base, or the base; or its files are others.
            ModelUnavailable: the base is not here, and the Hub does not answer.
        """
        placement = Placement.of(self._options)
        precision = self._options.base_precision
        if precision == "auto":
            precision = FLOAT32 if placement.autocast_type is None else BF16
        beside_bytes = TRAINER_BYTES * sum(math.prod(shape) for shape in self.shapes.values())
        check_fits(self.whole.shapes, self.vocabulary, precision, beside_bytes, placement, self._options.memory_bytes)
        build = partial(_built_on, self._spec, self.open_base(), precision)
        learner = TorchLearner(build, self.whole.objective(), self._options, adapter_tensors)
        learner.computed = _computed(placement, precision)
        return learner

    def merged(self, adapter: Mapping[str, Float32Array], base: ModelSource) -> Iterator[tuple[str, Float32Array]]:
        """Yield the parameters of the whole model in name order: the base's, changed by an adapter's.

        Args:
            adapter: its tensors by name.
            base: where the base's weights are.
        """
        lora = _lora(self._spec)
        scale = np.float32(lora.alpha / (math.sqrt(lora.r) if lora.use_rslora else lora.r))
        for name, values in base.tensors(self.whole.shapes):
            layer = name.removesuffix(".weight")
            if layer in self.layout.transposed and name != layer:
                rows = values.T if self.layout.transposed[layer] else values
                rows = rows + adapter[PREFIX + layer + B] @ adapter[PREFIX + layer + A] * scale
                if lora.use_dora:
                    norms = np.linalg.norm(rows, axis=1)
                    rows = rows * (adapter[PREFIX + layer + MAGNITUDE] / norms)[:, None]
                values = np.ascontiguousarray(rows.T if self.layout.transposed[layer] else rows, np.float32)
            yield name, values

    def open_base(self) -> ModelSource:
        """Return the base on this machine, whose files are those of the run. Raises as `base_files.open_base`."""
        return open_base(self._spec, self._options.base, lends_token=self._options.lends_token)


def adapter_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the adapter's parameters in a module, by their names in files of `peft`."""
    found = {}
    for name, one in module.named_parameters():
        if ".lora_" in name:
            plain = name.replace(".default", "")
            found[PREFIX + (plain.removesuffix(".weight") if MAGNITUDE in plain else plain)] = one
    return found


def adapter_config(spec: ModelSpec, base: str, revision: str | None) -> dict[str, Any]:
    """Return the content of `adapter_config.json`, with which `peft` loads the adapter.

    Args:
        spec: with the adapter.
        base: a repository, or a folder.
        revision: a commit of the repository.
    """
    lora = _lora(spec)
    layers = AdapterModel(spec).layout.transposed
    return _peft_arguments(lora) | {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "revision": revision,
        "target_modules": sorted(layers) if lora.target_modules == ALL_LINEAR else list(lora.target_modules),
        "fan_in_fan_out": any(layers.values()),
        "inference_mode": True,
    }


def _lora(spec: ModelSpec) -> Lora:
    assert spec.adapter is not None, "an adapter's model is opened where there is one"
    return spec.adapter


def _peft_arguments(lora: Lora) -> dict[str, Any]:
    return {
        "task_type": "CAUSAL_LM",
        "r": lora.r,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "use_dora": lora.use_dora,
        "use_rslora": lora.use_rslora,
        "bias": "none",
    }


def _computed(placement: Placement, precision: str) -> str:
    """Return the class of what is computed beside a base of this precision, which is named where it differs."""
    compute, _, device = placement.computed.partition("/")
    return placement.computed if precision == compute else computed_class(f"{compute}-{precision}", device)


@functools.lru_cache(maxsize=MAX_KNOWN_LAYOUTS)
def _layout_of(spec_json: str) -> AdapterLayout:
    spec = ModelSpec.model_validate_json(spec_json)
    with torch.device("meta"):
        module = _adapted(build_module(spec.whole), _lora(spec))
        shapes = {name: tuple(one.shape) for name, one in sorted(adapter_tensors(module).items())}
    layers = {
        name.removeprefix(PREFIX).removesuffix(A): module.get_submodule(name.removeprefix(PREFIX).removesuffix(A))
        for name in shapes
        if name.endswith(A)
    }
    kinds = {name: type(layer.get_base_layer()).__name__ for name, layer in layers.items()}
    endings = (A, B, MAGNITUDE)
    odd = [name for name, kind in kinds.items() if kind not in ("Linear", "Conv1D")]
    odd += [name for name in shapes if not name.endswith(endings)]
    if odd:
        raise _refused(f"{odd[0]} is no linear layer", "linear layers")
    return AdapterLayout(shapes, {name: kind == "Conv1D" for name, kind in kinds.items()})


def _adapted(module: torch.nn.Module, lora: Lora) -> torch.nn.Module:
    """Return the module with an adapter of any values in it, float32; nothing else of it is trained."""
    from peft import LoraConfig, inject_adapter_in_model

    wanted = () if lora.target_modules == ALL_LINEAR else lora.target_modules
    names = [name for name, part in module.named_modules() if type(part).__name__ in ("Linear", "Conv1D")]
    for target in wanted:
        if not any(name == target or name.endswith(f".{target}") for name in names):
            last = sorted({name.rpartition(".")[2] for name in names})
            raise _refused(f"no linear layer is named {target!a}", f"{ALL_LINEAR[0]}, or {', '.join(last)}")
    targets = list(wanted) or ALL_LINEAR[0]
    try:
        with quiet():
            config = LoraConfig(**_peft_arguments(lora), target_modules=targets)
            inject_adapter_in_model(config, module)
    except (ValueError, NotImplementedError) as error:  # whatever peft makes of a kind of model
        raise _refused(first_line(error), "another adapter, or none") from error
    for one in adapter_tensors(module).values():
        one.data = one.data.float()
    return module


def _refused(reason: str, allowed: str) -> Unsupported:
    mistake = Mistake("model.LLM.adapter.Lora.target_modules", f"refused: {reason[:200]}", allowed)
    return Unsupported("model", (mistake,), NOT_TRAINED)


def _built_on(spec: ModelSpec, base: ModelSource, precision: str, device: torch.device) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]), device:
        return _adapted(build_base(spec.whole, base, precision, device), _lora(spec))
