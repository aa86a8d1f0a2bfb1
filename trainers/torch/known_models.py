"""The models that the installed transformers makes with its own code. This module imports neither it nor torch."""

from importlib.util import find_spec
from pathlib import Path

from epochal.state.config.model_table import HF_ARCHITECTURES, ModelSpec


def is_of_transformers(spec: ModelSpec) -> bool:
    """Whether the model is one that transformers has a folder for, by its `model_type`.

    False for a spec that lacks its config, and for a few models of transformers whose folder has another name.
    """
    kind = (spec.hf or {}).get("model_type")
    if spec.architecture not in HF_ARCHITECTURES or not isinstance(kind, str) or not kind.isidentifier():
        return False
    found = find_spec("transformers")
    folders = () if found is None else found.submodule_search_locations or ()
    return any((Path(folder) / "models" / kind).is_dir() for folder in folders)
