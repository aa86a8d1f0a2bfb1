"""The tokenizer beside a model's weights: whether the model knows its tokens."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from state.errors import InvalidInput, ModelUnavailable
from trainers.sources.protocol import ModelSource

TOKENIZER_FILE, VOCABULARY_FILE = "tokenizer.json", "vocab.json"


@dataclass(frozen=True, slots=True)
class LargestTokens:
    """The largest tokens of a tokenizer; -1 where there are none.

    Attributes:
        own: of the vocabulary that it was trained with.
        added: of those that were added later.
    """

    own: int
    added: int


def check_tokenizer(source: ModelSource, vocabulary: int) -> str:
    """Return what is to be said of the tokenizer beside a model; "" if there is nothing.

    Args:
        source: where the model is.
        vocabulary: number of the model's tokens.

    Raises:
        InvalidInput: the tokenizer's vocabulary is larger than the model's: it is another model's.
    """
    found = _largest_in(source)
    if found is None:
        return ""
    name, largest = found
    place = f"{source.place}/{name}"
    if largest.own >= vocabulary:
        raise InvalidInput(
            f"{place} is a tokenizer of tokens from 0 to {largest.own}; the model's vocab_size is {vocabulary}, so "
            f"allowed: tokens from 0 to {vocabulary - 1}. Is it another model's tokenizer?",
            place=place,
        )
    if largest.added >= vocabulary:
        return (
            f"{place} has an added token {largest.added}, which the model, with vocab_size = {vocabulary}, does not "
            "know: data that contain it are refused"
        )
    return ""


def _largest_in(source: ModelSource) -> tuple[str, LargestTokens] | None:
    """Return the file that lists the tokenizer's tokens, and the largest; None if no such file can be read."""
    try:
        for name, data in source.tokenizer_files():
            if name in (TOKENIZER_FILE, VOCABULARY_FILE):
                return name, _largest(name, json.loads(data))
    except ModelUnavailable:
        return None  # the model itself was read, and training needs no tokenizer
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return None  # of a form that is not known here
    return None


def _largest(name: str, content: Mapping[str, Any]) -> LargestTokens:
    if name == VOCABULARY_FILE:
        return LargestTokens(max(map(int, content.values()), default=-1), -1)
    added = {int(token["id"]) for token in content.get("added_tokens") or ()}
    tokens = content["model"]["vocab"]
    own = set(map(int, tokens.values())) if isinstance(tokens, dict) else set(range(len(tokens)))
    return LargestTokens(max(own - added, default=-1), max(added, default=-1))
