"""The valid part of a state file with mistakes, so that what the rest of it names can be checked in the same report."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from epochal.state.config.state_file import StateFile

_LLM = ("model", "LLM")
_STAND_INS: Mapping[tuple[str, ...], Any] = {
    ("run_id",): "unnamed",
    ("config",): {
        "warmup_time": 1,
        "cooldown_time": 1,
        "epoch_time": 1_000_000_000,
        "max_round_train_time": 1,
        "round_witness_time": 1,
        "waiting_for_members_extra_time": 1,
        "min_clients": 1,
        "init_min_clients": 1,
        "witness_nodes": 0,
        "global_batch_size_start": 1,
        "global_batch_size_end": 1,
        "global_batch_size_warmup_tokens": 0,
        "total_steps": 1,
    },
    (*_LLM, "max_seq_len"): 1,
    (*_LLM, "architecture"): "EpochalNgram",
    (*_LLM, "data_type"): "Pretraining",
    (*_LLM, "data_location"): "Dummy",
    (*_LLM, "checkpoint"): "Ephemeral",
    (*_LLM, "lr_schedule"): {"Constant": {"base_lr": 1.0, "warmup_init_lr": 0.0, "warmup_steps": 0}},
    (*_LLM, "optimizer"): "Dummy",
}
"""Valid values that replace wrong parts of a file without a default."""
Part = tuple[str, ...]
_RULED: tuple[frozenset[Part], ...] = (
    frozenset({("config",)}),
    frozenset({("progress",), ("packing",), ("access",), (*_LLM, "cold_start_warmup_steps")}),
    frozenset({(*_LLM, "hf")}),
    frozenset({(*_LLM, "architecture"), (*_LLM, "custom")}),
)
"""The parts with rules over several fields, whose mistakes have no single place; they are replaced in turn."""


def valid_part(tree: Mapping[str, Any]) -> tuple[StateFile | None, frozenset[Part]]:
    """Return a state file's tree, validated, with valid values in place of what is wrong or missing; and those parts.

    A part is a whole top-level table, or one key of `[model.LLM]`. The state file is None if nothing can be made of it.
    """
    replaced = frozenset(_STAND_INS) - _parts_of(tree).keys()
    while True:
        try:
            return StateFile.model_validate(_with_stand_ins(tree, replaced)), replaced
        except ValidationError as error:
            found = {_part_of(problem["loc"]) for problem in error.errors(include_url=False, include_input=False)}
        broken = frozenset(part for part in found if part) - replaced
        wrong = next(filter(None, (broken, *(parts - replaced for parts in _RULED))), None)
        if wrong is None:
            return None, replaced
        replaced |= wrong


def _part_of(place: tuple[int | str, ...]) -> Part:
    names = tuple(map(str, place))
    return names[:3] if names[:2] == _LLM else names[:1]


def _parts_of(tree: Mapping[str, Any]) -> dict[Part, Any]:
    llm = tree.get("model", {}).get("LLM", {}) if isinstance(tree.get("model"), Mapping) else {}
    parts: dict[Part, Any] = {(name,): value for name, value in tree.items() if name != "model"}
    return parts | ({(*_LLM, name): value for name, value in llm.items()} if isinstance(llm, Mapping) else {})


def _with_stand_ins(tree: Mapping[str, Any], replaced: frozenset[Part]) -> dict[str, Any]:
    parts = {part: value for part, value in _parts_of(tree).items() if part not in replaced}
    merged: dict[str, Any] = {"model": {"LLM": {}}}
    for part, value in (dict(_STAND_INS) | parts).items():
        (merged if len(part) == 1 else merged["model"]["LLM"])[part[-1]] = value
    return merged
