"""The tokenizer beside a model's weights: whether the model knows its tokens."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from epochal.state.errors import InvalidInput, ModelUnavailable
from epochal.trainers.sources.model_source import ModelSource

TOKENIZER_FILE, VOCABULARY_FILE = "tokenizer.json", "vocab.json"
_DECIDES = ("model", "normalizer", "pre_tokenizer", "added_tokens")
LISTS_OF_TOKENS = (TOKENIZER_FILE, VOCABULARY_FILE)


class UnreadableTokenizer(InvalidInput):
    """A tokenizer's file is not JSON."""


def check_tokenizer(source: ModelSource, vocabulary: int) -> None:
    """Check the tokenizer beside a model, if there is one that can be read: training needs none.

    Args:
        source: where the model is.
        vocabulary: number of the model's tokens.

    Raises:
        InvalidInput: the tokenizer's vocabulary is larger than the model's: it is another model's.
    """
    with suppress(ModelUnavailable, UnreadableTokenizer):
        for name, data in source.tokenizer_files():
            if name in LISTS_OF_TOKENS:
                check_list(name, data, source.place, vocabulary)
                return


def check_list(name: str, data: bytes, folder: str, vocabulary: int | None) -> None:
    """Check a file that lists a tokenizer's tokens. Tokens that were added later are not counted.

    Args:
        name: of the file, one of `LISTS_OF_TOKENS`.
        data: its bytes.
        folder: where it is.
        vocabulary: number of the model's tokens; None if it is not known.

    Raises:
        UnreadableTokenizer: the bytes are not JSON.
        InvalidInput: its vocabulary is larger than the model's.
    """
    place = f"{folder}/{name}"
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableTokenizer(f"{place} is not JSON: {error}", place=place) from error
    try:
        largest = _largest(name, content)
    except (ValueError, TypeError, KeyError, AttributeError):
        return  # of a form that is not known here
    if vocabulary is not None and largest >= vocabulary:
        raise InvalidInput(
            f"{place} is a tokenizer of tokens from 0 to {largest}; the model's vocab_size is {vocabulary}, so "
            f"allowed: tokens from 0 to {vocabulary - 1}. Is it another model's tokenizer?",
            place=place,
        )


def identity_of(tokenizer_json: bytes) -> str:
    """Return the SHA-256, in hex, of what decides the tokens of a `tokenizer.json`.

    That is its model, normaliser, pre-tokeniser and added tokens, as JSON with sorted keys, merges as pairs. Padding,
    truncation, decoder and template do not count: a copy that another program has saved has the same identity.
    """
    document = json.loads(tokenizer_json)
    found = {name: document.get(name) for name in _DECIDES}
    model = found["model"]
    if isinstance(model, dict) and isinstance(model.get("merges"), list):
        merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        found["model"] = model | {"merges": merges}
    text = json.dumps(found, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def check_identity(data: bytes, folder: str, of_data: str | None, otherwise: str) -> None:
    """Raise `InvalidInput` if a `tokenizer.json` is another tokenizer than that of the run's data, where it is known.

    Args:
        data: the file's bytes.
        folder: where it is.
        of_data: the identity that the state file names (`model.LLM.tokenizer`).
        otherwise: what is allowed besides the right one.
    """
    if of_data is None:
        return
    try:
        found = identity_of(data)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return  # of a form that is not known here
    if found != of_data:
        raise InvalidInput(
            f"{folder}/{TOKENIZER_FILE} is another tokenizer ({found[:12]}…) than that of the run's data "
            f"({of_data[:12]}…, `model.LLM.tokenizer`); allowed: that one, or {otherwise}"
        )


def _largest(name: str, content: Mapping[str, Any]) -> int:
    if name == VOCABULARY_FILE:
        return max(map(int, content.values()), default=-1)
    added = {int(token["id"]) for token in content.get("added_tokens") or ()}
    tokens = content["model"]["vocab"]
    own = set(map(int, tokens.values())) if isinstance(tokens, dict) else set(range(len(tokens)))
    return max(own - added, default=-1)
