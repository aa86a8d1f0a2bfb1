"""A conversation's text as tokens, with labels where something is learnt."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from epochal.batching.chat.conversations import Learn, conversation_of
from epochal.batching.chat.templates import ChatTemplate, RenderedChat
from epochal.batching.packing.samples import EncodedSample
from epochal.data_providers.protocol import IGNORED_LABEL, Tokens


class PlacedTokens(Protocol):
    """A tokenizer that reports where its tokens come from."""

    def encode_placed(self, text: str) -> tuple[Tokens, npt.NDArray[np.int64]]:
        """Return a text's tokens and, for each, the character of the text at which it begins, never descending.

        Nothing is added to the text: special tokens are in it as the template writes them.
        """
        ...


def encode_chat(rendered: RenderedChat, tokenizer: PlacedTokens) -> EncodedSample:
    """Return the tokens of a text, each a label where it begins within a stretch that is learnt.

    A token that begins before such a stretch and ends in it is not learnt: a model is asked to continue after it.

    Returns:
        `input_ids` of the tokenizer's dtype; `labels` int64, `IGNORED_LABEL` where nothing is predicted.
    """
    tokens, begins = tokenizer.encode_placed(rendered.text)
    labels = np.full(len(tokens), IGNORED_LABEL, np.int64)
    for start, stop in rendered.learnt:
        first, last = np.searchsorted(begins, (start, stop), side="left")
        labels[first:last] = tokens[first:last]
    return EncodedSample(tokens, labels)


def encode_record(
    record: Any, template: ChatTemplate, tokenizer: PlacedTokens, learn: Learn = "assistant"
) -> EncodedSample:
    """Return the sample of a JSON record of a conversation. Raises `CorruptData` as its parts do."""
    return encode_chat(template.render(conversation_of(record, learn)), tokenizer)
