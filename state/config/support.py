"""Values of a state file that are valid, and that this version does not support."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from epochal.state.config.data_location import MAX_FILES, MIX_PIN, PINNED_LINE, DummyData, Server
from epochal.state.config.mistakes import show
from epochal.state.config.model_table import (
    HF_ARCHITECTURES,
    Architecture,
    DataType,
    Distro,
    DummyCheckpoint,
    Ephemeral,
)
from epochal.state.config.schema import tag_of
from epochal.state.config.state_file import MAX_RUN_ID_BYTES, StateFile
from epochal.state.errors import Mistake, Unsupported

SERVED_RUN_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
RUN_ID_LINE = "letters, digits, '-', '_' and '.', no '.' first: it is part of the run's URL"
_UNPACKED = frozenset(kind.variant for kind in (Server, DummyData))
_LLM = "model.LLM."
_ARCHITECTURE = _LLM + "architecture"
_HF = _LLM + "hf"
_NUM_FILES = _LLM + "data_location.Http.location.NumberedFiles.num_files"
_MIX = _LLM + "data_location.WeightedHttp"
_ADAMW = "`optimizer = { AdamW = { betas = [0.9, 0.95], weight_decay = 0.1, eps = 1e-8 } }`"
_PACKED = (
    '`data_location = { Local = "folder of JSON lines" }`, `{ Preprocessed = "folder of parquet files" }`, or '
    "`Http` of such files"
)


def ensure_supported(state: StateFile, source: str, architectures: Collection[Architecture]) -> None:
    """Raise `Unsupported`, with the line to change at each place, if the file asks for something not supported yet.

    Args:
        state: the file.
        source: the file's name, for the message.
        architectures: those that can be trained (`epochal.trainers.architectures`).
    """
    found = unsupported_values(state.to_plain(), architectures)
    if found:
        raise Unsupported(source, found)


def unsupported_values(tree: Mapping[str, Any], architectures: Collection[Architecture]) -> tuple[Mistake, ...]:
    """Return what is not supported in a state file's tree, which may hold mistakes; a mistake is no finding here.

    Each finding's `allowed` is the line to write instead.
    """
    values = {path: _value_at(tree, path) for path in (*_LINES, *_READ)}
    kinds = {path: tag_of(value) for path, value in values.items()}
    known = {name.value for name in Architecture} - {name.value for name in architectures}
    run_id, file_count = values["run_id"], values[_NUM_FILES]
    refused = {
        "run_id": isinstance(run_id, str) and not SERVED_RUN_ID.fullmatch(run_id),
        "config.verification_percent": _is_above(values["config.verification_percent"], 0),
        _ARCHITECTURE: kinds[_ARCHITECTURE] in known,
        _LLM + "data_location": (
            values[_LLM + "data_type"] == DataType.FINETUNING and kinds[_LLM + "data_location"] in _UNPACKED
        ),
        _HF: kinds[_ARCHITECTURE] not in known and _lacks_config(values, kinds),
        _LLM + "optimizer": kinds[_LLM + "optimizer"] == Distro.variant,
        _NUM_FILES: _is_above(file_count, MAX_FILES),
    }
    mix = values[_MIX]
    lines = dict(_LINES)
    if isinstance(mix, str) and "://" in mix and MIX_PIN not in mix:
        refused[_LLM + "data_location"] = True
        lines[_LLM + "data_location"] = PINNED_LINE.format(place=mix)
    trainable = " or ".join(f'`architecture = "{name}"`' for name in sorted(architectures))
    return tuple(
        Mistake(path, _shown(values[path]), trainable if path == _ARCHITECTURE else lines[path])
        for path, is_refused in refused.items()
        if is_refused
    )


_LINES = {
    "run_id": RUN_ID_LINE,
    "config.verification_percent": "`verification_percent = 0`",
    _ARCHITECTURE: "",
    _LLM + "data_location": f"{_PACKED}, as Finetuning packs samples",
    _HF: "the keys of the model's `config.json` as a table `[model.LLM.hf]`, or, where the operator makes the first "
    "checkpoint, `checkpoint = { Hub = … }`, or another place that holds one",
    _LLM + "optimizer": f'{_ADAMW} or `optimizer = "Dummy"`',
    _NUM_FILES: f"`num_files = {MAX_FILES}` or fewer",
}
"""The places whose values may not be supported, with the line to write instead; for the architecture it is made."""
_READ = (_MIX, _LLM + "data_type", _LLM + "checkpoint", "access.genesis")
"""Other places on whose values it depends."""


def _lacks_config(values: Mapping[str, Any], kinds: Mapping[str, str | None]) -> bool:
    """Whether the config of a Hugging Face model is missing.

    A member that is elected to make the first parameters does not decide which model they are of.
    """
    checkpoint = kinds[_LLM + "checkpoint"]
    if kinds[_ARCHITECTURE] not in HF_ARCHITECTURES or values[_HF] is not None or checkpoint == DummyCheckpoint.variant:
        return False
    return checkpoint == Ephemeral.variant or values["access.genesis"] == "members"


def _shown(value: Any) -> str | None:
    return None if value is None else show(value)


def _value_at(tree: Any, path: str) -> Any:
    for part in path.split("."):
        if not isinstance(tree, Mapping) or part not in tree:
            return None
        tree = tree[part]
    return tree


def _is_above(value: Any, limit: int) -> bool:
    return type(value) is int and value > limit


def is_served_id(run_id: str) -> bool:
    """Return whether a run that is served may have this id, so that it may be part of a path."""
    return len(run_id) <= MAX_RUN_ID_BYTES and SERVED_RUN_ID.fullmatch(run_id) is not None
