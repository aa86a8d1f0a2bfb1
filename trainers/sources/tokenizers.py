"""The tokenizer beside a model's weights: whether the model knows its tokens."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from epochal.state.errors import InvalidInput, ModelUnavailable
from epochal.trainers.sources.model_source import ModelSource

TOKENIZER_FILE, VOCABULARY_FILE = "tokenizer.json", "vocab.json"
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


def _largest(name: str, content: Mapping[str, Any]) -> int:
    if name == VOCABULARY_FILE:
        return max(map(int, content.values()), default=-1)
    added = {int(token["id"]) for token in content.get("added_tokens") or ()}
    tokens = content["model"]["vocab"]
    own = set(map(int, tokens.values())) if isinstance(tokens, dict) else set(range(len(tokens)))
    return max(own - added, default=-1)
