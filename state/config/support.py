"""Values of a state file that are valid, and that this version does not support."""

import re
from collections.abc import Collection, Iterator
from dataclasses import replace

from epochal.state.config.data_location import (
    MAX_FILES,
    PINNED_LINE,
    DataLocation,
    DummyData,
    Http,
    NumberedFiles,
    WeightedHttp,
)
from epochal.state.config.mistakes import show
from epochal.state.config.model_table import (
    HF_ARCHITECTURES,
    Architecture,
    DataType,
    Distro,
    DummyCheckpoint,
    Ephemeral,
    ModelSpec,
)
from epochal.state.config.rules import WANT_FEEDBACK
from epochal.state.config.state_file import MAX_RUN_ID_BYTES, StateFile
from epochal.state.config.verify_table import MAX_REPEATABLE_STEPS, dropouts
from epochal.state.errors import Mistake, Unsupported

SERVED_RUN_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
RUN_ID_LINE = "letters, digits, '-', '_' and '.', no '.' first: it is part of the run's URL"
_ADAMW = "`optimizer = { AdamW = { betas = [0.9, 0.95], weight_decay = 0.1, eps = 1e-8 } }`"
_PACKED = (
    '`data_location = { Local = "folder of JSON lines" }`, `{ Preprocessed = "folder of parquet files" }`, or '
    "`Http` or `Server` of such files, as Finetuning packs samples"
)
_IMAGES = '`data_location = { Local = "folder of JSON lines" }`, or `Http` or `Server` of such files'
_SCORES = '`by = "scores"` in `[verify]`, with which nothing is computed again, and no such line refused'
_HF = (
    "the keys of the model's `config.json` as a table `[model.LLM.hf]`, or, where the operator makes the first "
    "checkpoint, `checkpoint = { Hub = … }`, or another place that holds one"
)


def ensure_supported(state: StateFile, source: str, architectures: Collection[Architecture]) -> None:
    """Raise `Unsupported`, with the line to change at each place, if the file asks for something not supported yet.

    Args:
        state: the file.
        source: the file's name, for the message.
        architectures: those that can be trained (`epochal.trainers.architectures`).
    """
    found = tuple(_unsupported(state, architectures))
    if found:
        raise Unsupported(source, found)


def unsupported_changes(state: StateFile) -> Iterator[Mistake]:
    """Yield what is not supported of the settings to which the file's changes lead."""
    for number, change in enumerate(state.changes):
        known = {mistake.path for mistake in _unsupported_settings(state)}
        yield from (
            replace(mistake, path=f"changes.{number}.values.{mistake.path}")
            for mistake in _unsupported_settings(state.at(change.at_step))
            if mistake.path not in known
        )


def unsupported_from(state: StateFile, step: int) -> Iterator[Mistake]:
    """Yield what is not supported of the settings at a step, and of those to which the file's later changes lead."""
    later = (change.at_step for change in state.changes if change.at_step > step)
    yield from dict.fromkeys(mistake for at in (step, *later) for mistake in _unsupported_settings(state.at(at)))


def _unsupported(state: StateFile, architectures: Collection[Architecture]) -> Iterator[Mistake]:
    """Yield what is not supported; `allowed` is the line to write instead."""
    llm = state.model.LLM
    plain = state.to_plain()["model"]["LLM"]
    if not SERVED_RUN_ID.fullmatch(state.run_id):
        yield Mistake("run_id", show(state.run_id), RUN_ID_LINE)
    yield from _unsupported_settings(state)
    yield from unsupported_changes(state)
    if llm.architecture not in architectures:
        trainable = " or ".join(f'`architecture = "{name}"`' for name in sorted(architectures))
        yield Mistake("model.LLM.architecture", show(llm.architecture), trainable)
    elif llm.architecture in HF_ARCHITECTURES and _lacks_config(state):
        yield Mistake("model.LLM.hf", None, _HF)
    if isinstance(llm.optimizer, Distro):
        yield Mistake("model.LLM.optimizer", show(plain["optimizer"]), f'{_ADAMW}, `Muon` or `optimizer = "Dummy"`')


def _unsupported_settings(state: StateFile) -> Iterator[Mistake]:
    """Yield what is not supported of the settings that a change may have touched, and of the places of data."""
    llm = state.model.LLM
    yield from _unsupported_place("data_location", llm.data_location, llm.data_type)
    yield from _unsupported_place("held_out_location", llm.held_out_location, llm.data_type)
    if state.is_replayed:
        yield from _unrepeatable(state)


def _unsupported_place(name: str, location: DataLocation | None, data_type: DataType) -> Iterator[Mistake]:
    place, lines = f"model.LLM.{name}", {DataType.FINETUNING: _PACKED, DataType.MULTIMODAL: _IMAGES}
    if isinstance(location, DummyData) and data_type in lines:
        line = lines[data_type] if name == "data_location" else f"`{name}` of files that hold records, or no such line"
        yield Mistake(place, show(location.variant), line)
    if isinstance(location, WeightedHttp) and location.is_unpinned:
        line = PINNED_LINE.format(place=location.place).replace("data_location", name)
        yield Mistake(place, show({location.variant: location.root}), line)
    files = location.location if isinstance(location, Http) else None
    if isinstance(files, NumberedFiles) and files.num_files > MAX_FILES:
        place = f"{place}.Http.location.NumberedFiles.num_files"
        yield Mistake(place, show(files.num_files), f"`num_files = {MAX_FILES}` or fewer")


def _unrepeatable(state: StateFile) -> Iterator[Mistake]:
    """Yield what keeps a verifier from computing a result again that an honest client has made.

    The first one also names the line with which none is refused.
    """
    found = list(unrepeatable(state, state.model.LLM.spec))
    if state.merge.local_steps > MAX_REPEATABLE_STEPS:
        line, why = f"{MAX_REPEATABLE_STEPS}, or fewer", "honest machines differ the more the longer they compute"
        found.insert(0, _where_replayed("merge.local_steps", state.merge.local_steps, line, why))
    for number, mistake in enumerate(found):
        yield mistake if number else replace(mistake, allowed=f"{mistake.allowed}; or {_SCORES}")


def unrepeatable(state: StateFile, spec: ModelSpec) -> Iterator[Mistake]:
    """Yield what keeps everybody from computing a result again: work that depends on what nobody else knows.

    Args:
        state: the run's state file, at the step of the result.
        spec: the run's model.
    """
    merge = state.merge
    if merge.error_feedback:
        line = 'false` and `codec = "int4"' if merge.codec in WANT_FEEDBACK else "false"
        yield _where_replayed("merge.error_feedback", True, line, "what earlier results left out is not public")
    if merge.delay:
        why = "replays begin from replicas, not from clients' own results"
        yield _where_replayed("merge.delay", merge.delay, "0", why)
    if merge.inner_state == "keep" and not state.reveals_inner_states:
        why = "clients reveal what they keep only in a run with a `[verify]` by replays"
        yield _where_replayed("merge.inner_state", "keep", '"reset"', why)
    for place, value in dropouts(spec.tables, ("model", "LLM")):
        yield dropout_mistake(".".join(map(str, place)), value)


def dropout_mistake(path: str, value: object) -> Mistake:
    """Return the mistake that a model drops values at random where its work is to be computed again."""
    return _where_replayed(path, value, "0.0", "devices draw other random numbers")


def _where_replayed(path: str, value: object, line: str, why: str) -> Mistake:
    name = path.rpartition(".")[2]
    return Mistake(path, show(value), f"`{name} = {line}` where results are computed again: {why}")


def _lacks_config(state: StateFile) -> bool:
    """Whether the config of a Hugging Face model is missing.

    A member that is elected to make the first parameters does not decide which model they are of.
    """
    llm = state.model.LLM
    if llm.hf is not None or isinstance(llm.checkpoint, DummyCheckpoint):
        return False
    return isinstance(llm.checkpoint, Ephemeral) or state.access.genesis == "members"


def is_served_id(run_id: str) -> bool:
    """Return whether a run that is served may have this id, so that it may be part of a path."""
    return len(run_id) <= MAX_RUN_ID_BYTES and SERVED_RUN_ID.fullmatch(run_id) is not None
