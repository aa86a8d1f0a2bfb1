"""The tokenizer that goes with an exported model: its source, and the remark on it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from epochal.state.config.model_table import Architecture, LocalCheckpoint
from epochal.state.errors import InvalidInput, ModelUnavailable
from epochal.tools.checkpoints.readable_run import RunView
from epochal.tools.prepare.text_tokenizer import BYTES_SHA256, BYTES_VOCABULARY
from epochal.trainers.sources.model_source import ModelSource
from epochal.trainers.sources.open_model import names_a_source, open_source, parse_source
from epochal.trainers.sources.origin import origin_of
from epochal.trainers.sources.tokenizers import LISTS_OF_TOKENS, TOKENIZER_FILE, check_identity, check_list

NO_TOKENIZER = "none"
NONE_NAMED = "no tokenizer: the run began with random parameters; --tokenizer names one"
READS_BYTES = "the model reads bytes: token N is the byte N of UTF-8, and no tokenizer is needed"
HINT = "--tokenizer names another place"


@dataclass(frozen=True, slots=True)
class FoundTokenizer:
    """A tokenizer's files by name, and a line on their source, or ""."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    said: str = ""


def find_tokenizer(view: RunView, place: str | None, otherwise: str = f"--tokenizer {NO_TOKENIZER}") -> FoundTokenizer:
    """Return the tokenizer at a place, or that of the source of the run's first parameters.

    A source on the Hub is read at the commit of the run's config, and a relative path only if it leads to the run's
    model: the coordinator may have been started in another folder, on another machine.

    Args:
        view: the run.
        place: the option's value; None for the run's own.
        otherwise: what is allowed besides the right one.

    Raises:
        InvalidInput, ModelUnavailable: it cannot be read, or there is none at the place, or the one there has a
            larger vocabulary than the run's model.
    """
    if place == NO_TOKENIZER:
        return FoundTokenizer()
    is_ngram = view.spec.architecture is Architecture.EPOCHAL_NGRAM
    if place is None and (is_ngram or view.state.model.LLM.tokenizer == BYTES_SHA256):
        return FoundTokenizer(said=READS_BYTES)
    try:
        source = _source_of(view) if place is None else parse_source(place)
        if isinstance(source, str):
            return FoundTokenizer(said=source)
        files = dict(source.tokenizer_files())
    except (InvalidInput, ModelUnavailable) as error:
        raise type(error)(f"the tokenizer cannot be read: {error.message}; {HINT}, or {otherwise}") from error
    if files:
        for name in LISTS_OF_TOKENS if place is not None else ():
            if name in files:
                check_list(name, files[name], source.place, _vocabulary_of(view))
        if TOKENIZER_FILE in files:
            check_identity(files[TOKENIZER_FILE], source.place, view.state.model.LLM.tokenizer, otherwise)
        return FoundTokenizer(files, f"tokenizer: {', '.join(files)} of {source.place}")
    if place is not None:
        raise InvalidInput(f"--tokenizer {place}: there is no tokenizer; allowed: a folder that holds one, not a file")
    return FoundTokenizer(said=f"no tokenizer: {source.place} has none; --tokenizer names one")


def _vocabulary_of(view: RunView) -> int | None:
    """Return the number of tokens that the run's config gives; None if it leaves it to its class."""
    if view.spec.architecture is Architecture.EPOCHAL_NGRAM:
        return BYTES_VOCABULARY
    config = view.spec.hf or {}
    inner = config.get("text_config")
    found = config.get("vocab_size") or (inner.get("vocab_size") if isinstance(inner, dict) else None)
    return found if type(found) is int else None


def _source_of(view: RunView) -> ModelSource | str:
    """Return the source of the run's first parameters, or a sentence on why it is missing; "" if none was named."""
    origin = origin_of(view.spec.hf)
    if origin is not None:
        return parse_source(str(origin))
    checkpoint = view.state.model.LLM.checkpoint
    if not isinstance(checkpoint, LocalCheckpoint):
        return open_source(checkpoint) if names_a_source(checkpoint) else NONE_NAMED
    path = Path(checkpoint.path)
    if not path.exists():
        return f"no tokenizer: {path.absolute()}, the run's `checkpoint`, is not on this machine; --tokenizer names one"
    source = open_source(checkpoint)
    if path.is_absolute() or not path.is_dir() or source.config() == view.spec.hf:
        return source
    return (
        f"no tokenizer: {path.absolute()} differs from the run's model; `checkpoint` names {path} where its "
        "coordinator was started; --tokenizer names it"
    )
