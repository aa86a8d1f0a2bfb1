"""The keys of a Hugging Face config: those that nothing reads, and sizes that no model can have.

transformers takes any key, and ignores those that it does not know. So a misspelt one leaves its value at the default,
and the run trains another model than its file says.
"""

import dataclasses
import difflib
import inspect
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any

from epochal.state.config.model_table import ModelSpec
from epochal.state.config.schema import Path
from epochal.state.config.support import dropout_mistake
from epochal.state.config.verify_table import dropouts
from epochal.state.errors import InvalidConfig, Mistake, Unsupported
from epochal.trainers.torch.hf_config import CONFIG_PLACE, NEVER_BUILT, hf_config, quiet

_ANY_MODEL = """_attn_implementation _commit_hash _name_or_path add_cross_attention architectures attn_implementation
    auto_map code_revision cross_attention_hidden_size dtype experts_implementation finetuning_task is_decoder
    model_type name_or_path num_labels output_attentions partial_rotary_factor prefix pretraining_tp pruned_heads
    rope_parameters rope_scaling rope_theta sep_token_id task_specific_params tf_legacy_loss tie_encoder_decoder
    tie_word_embeddings tokenizer_class torch_dtype torchscript transformers_version use_bfloat16 use_cache"""
ANY_MODEL_KEYS = frozenset(_ANY_MODEL.split()) | frozenset(NEVER_BUILT)
"""Keys that any config may have, besides those of its class and those of text generation."""
OF_OTHER_HEADS = ("classifier_", "summary_")
"""Beginnings of the keys of layers that a causal language model does not have."""
MIN_LIKENESS = 0.6
MAX_SHOWN_CHARACTERS = 80


def unknown_keys(hf: Mapping[str, Any], place: str = CONFIG_PLACE) -> list[Mistake]:
    """Return the keys of a config that transformers ignores, each with the nearest known one.

    A config of a class that transformers does not have has none.

    Args:
        hf: the config.
        place: its path in the file.
    """
    from transformers import CONFIG_MAPPING

    kind = hf.get("model_type")
    return list(_unknown_in(CONFIG_MAPPING[kind], hf, place)) if kind in CONFIG_MAPPING else []


def check_keys(hf: Mapping[str, Any], source: str) -> None:
    """Raise `InvalidConfig` if a config that a person wrote has keys that transformers ignores.

    Args:
        hf: the config.
        source: the name of the file that holds it.
    """
    if found := unknown_keys(hf):
        raise InvalidConfig(source, tuple(found))


def check_dropouts(spec: ModelSpec, known: Collection[Path]) -> None:
    """Raise `Unsupported` if a model of transformers drops values in training, also where its config does not say so.

    Args:
        spec: the model, complete. A config that transformers does not take is refused where the model is opened.
        known: places in the state file that were found before.
    """
    try:
        config = hf_config(spec)
    except Unsupported:
        return
    text = config.get_text_config()
    part = next((name for name in config.sub_configs if getattr(config, name, None) is text), None)
    place = tuple(CONFIG_PLACE.split(".")) + (() if part is None else (part,))
    found = [
        dropout_mistake(".".join(map(str, path)), value)
        for path, value in dropouts(text.to_dict(), place)
        if path not in known and not str(path[-1]).startswith(OF_OTHER_HEADS)
    ]
    if found:
        raise Unsupported("model", tuple(found))


def _unknown_in(config_class: Any, hf: Mapping[str, Any], place: str) -> Iterator[Mistake]:
    known = _known_keys(config_class)
    nested = getattr(config_class, "sub_configs", {})
    for key, value in hf.items():
        if key in nested and isinstance(value, dict):
            if _known_keys(nested[key]):
                yield from _unknown_in(nested[key], value, f"{place}.{key}")
        elif known and key not in known and _changes_nothing(config_class, hf, key):
            close = difflib.get_close_matches(key, known, n=1, cutoff=MIN_LIKENESS)
            allowed = f"the keys of a config of {getattr(config_class, 'model_type', '') or hf.get('model_type')}"
            yield Mistake(f"{place}.{key}", repr(value)[:MAX_SHOWN_CHARACTERS], allowed, next(iter(close), None))


@lru_cache
def _known_keys(config_class: Any) -> frozenset[str]:
    """Return the keys that a config class names; none for a base class."""
    from transformers import GenerationConfig, PretrainedConfig

    if not (isinstance(config_class, type) and issubclass(config_class, PretrainedConfig)):
        return frozenset()
    kind: Any = config_class
    own = {one.name for one in dataclasses.fields(config_class)} if dataclasses.is_dataclass(config_class) else set()
    own |= set(inspect.signature(kind.__init__).parameters) - {"self", "args", "kwargs"}
    return frozenset(own) | set(kind.attribute_map) | set(GenerationConfig().to_dict()) | ANY_MODEL_KEYS


def _changes_nothing(config_class: Any, hf: Mapping[str, Any], key: str) -> bool:
    """Return whether a config without the key is the same in all else. Older keys change newer ones."""
    try:
        with quiet():
            whole, less = (
                config_class.from_dict(named).to_dict()
                for named in (dict(hf), {one: value for one, value in hf.items() if one != key})
            )
    except Exception:  # of any config class: wrong values are refused where the model is opened
        return False
    whole.pop(key, None)
    return bool(whole == less)
