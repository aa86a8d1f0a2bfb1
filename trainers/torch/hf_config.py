"""A model of transformers from its Hugging Face config: what is checked before, and how it is built."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from epochal.state.config.model_table import Architecture, ModelSpec
from epochal.state.errors import Mistake, Unsupported
from epochal.trainers.sources.origin import CODE_KEY
from epochal.trainers.sources.safetensors_reader import ROUTING_BIASES

MODEL_TYPES: dict[Architecture, str] = {Architecture.HF_LLAMA: "llama", Architecture.HF_DEEPSEEK: "deepseek"}
"""The prefix of `model_type` in an architecture's configs; `HfAuto` takes any."""
CONFIG_PLACE = "model.LLM.hf"
NOT_TRAINED = "this model cannot be trained"
NEVER_BUILT = ("quantization_config", CODE_KEY)
"""Keys of a config that say how weights are stored or loaded; parameters here are float32."""


def hf_config(spec: ModelSpec) -> Any:
    """Return transformers' config object of a model.

    Raises:
        Unsupported: the config is not known, is not one of the architecture's, needs code of its own, or transformers
            cannot read it; the message names the line to change.
    """
    from transformers import CONFIG_MAPPING

    hf = spec.hf
    if hf is None:
        raise _wrong(CONFIG_PLACE, None, "the model's Hugging Face config as a table, or a checkpoint that has one")
    kind: str = hf["model_type"]
    beginning = MODEL_TYPES.get(spec.architecture, "")
    if not kind.startswith(beginning):
        allowed = f"a model_type that begins with {beginning}; architecture HfAuto takes any"
        raise _wrong(f"{CONFIG_PLACE}.model_type", kind, allowed)
    if kind not in CONFIG_MAPPING:
        allowed = "a model_type that the installed transformers knows"
        if CODE_KEY in hf:
            allowed += "; code that comes with a config is not run: a trainer of your own may hold such a model"
        raise _wrong(f"{CONFIG_PLACE}.model_type", kind, allowed)
    named = {key: value for key, value in hf.items() if key not in NEVER_BUILT}
    try:
        with quiet():
            config = CONFIG_MAPPING[kind].from_dict(named)
    except Exception as error:  # whatever a config class makes of wrong values
        reason = " ".join(str(error).split())
        raise _wrong(CONFIG_PLACE, f"not a config of {kind} ({reason})", "the keys of its config.json") from error
    return config


def build_module(spec: ModelSpec) -> Any:
    """Return the module on torch's default device with random parameters in float32, for training.

    Raises:
        Unsupported: as `hf_config`, or the model is no causal language model.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from epochal.trainers.torch.attention import RIGHT_PADDED_SDPA, register_attention
    from epochal.trainers.torch.devices import is_out_of_memory

    register_attention()
    _log_as_others_do()
    failure: Exception | None = None
    for name in (RIGHT_PADDED_SDPA, "sdpa", "eager"):
        config = hf_config(spec)
        config.use_cache = False
        try:
            with quiet():
                module = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=name)
                return _with_routing_biases(module)
        except MemoryError:
            raise
        except Exception as error:  # whatever a model's class makes of wrong numbers
            if is_out_of_memory(error):
                raise
            failure = error
    allowed = "a causal language model that transformers can build"
    raise _wrong(CONFIG_PLACE, f"refused: {first_line(failure)}", allowed) from failure


def _with_routing_biases(module: Any) -> Any:
    """Return the module with the biases that choose experts among its parameters, which training leaves as they are.

    Some classes hold them as parameters, others as buffers; either way the run carries the values that it began with.
    """
    import torch

    for one in module.modules():
        for name in ROUTING_BIASES:
            if name in one._buffers:
                values = one._buffers.pop(name)
                one._non_persistent_buffers_set.discard(name)
                one.register_parameter(name, torch.nn.Parameter(values.float(), requires_grad=False))
    return module


def _log_as_others_do() -> None:
    """Send the log of transformers to this program's log, not to standard error in another format."""
    from transformers.utils import logging as hf_logging

    hf_logging.disable_default_handler()
    hf_logging.enable_propagation()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' messages about its defaults out of the client's log and of a test's warnings."""
    from transformers.utils import logging as hf_logging

    before = hf_logging.get_verbosity()
    hf_logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf_logging.set_verbosity(before)


def first_line(error: Exception | None) -> str:
    """Return the first line of an error of transformers or torch, with the name of its class where it needs one."""
    line = next(iter(str(error).splitlines()), "")
    return line if isinstance(error, ValueError | ImportError) else f"{type(error).__name__} {line}".rstrip()


def _wrong(path: str, value: str | None, allowed: str) -> Unsupported:
    return Unsupported("model", (Mistake(path, value, allowed),), NOT_TRAINED)
