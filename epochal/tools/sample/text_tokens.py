"""Text as the tokens of a run's model, and back: as the run's data were made, with the same tokenizer and template."""

import codecs
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from epochal.data_providers.protocol import CorruptData
from epochal.state.config.model_table import Architecture
from epochal.state.errors import InvalidInput
from epochal.tools.checkpoints.readable_run import RunView
from epochal.tools.export.tokenizer import find_tokenizer
from epochal.tools.prepare.chats import ChatEncoder, ChatOptions, template_of
from epochal.tools.prepare.text_tokenizer import (
    BYTES,
    BYTES_SHA256,
    BYTES_VOCABULARY,
    TOKENIZER_FILE,
    NamedTokenizer,
    loaded,
    named_tokenizer,
)
from epochal.tools.prepare.text_tokenizer import find_tokenizer as find_bytes
from epochal.trainers.sources.tokenizers import check_list

MAX_TOKENS_OF_A_CHARACTER = 4
"""Bytes of a character in UTF-8, of which a token has at least one."""
_UNKNOWN = "\ufffd"


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How text becomes tokens.

    Attributes:
        tokenizer: a place, as `epochal export --tokenizer` takes it, or `bytes`; None for the run's own.
        end_token: the text or ID of the token that ends a document; None: as the tokenizer's files say.
        template: of chats, as `epochal prepare --template` takes it; None for the tokenizer's own.
    """

    tokenizer: str | None = None
    end_token: str | None = None
    template: str | None = None


class TextReader(Protocol):
    """Makes text of tokens, one after the other."""

    def add(self, token: int) -> str:
        """Return the text that a token completes: "" within a character."""
        ...

    def end(self) -> str:
        """Return the text of the tokens that completed none."""
        ...


class TextTokens:
    """Text as tokens.

    Args:
        named: the tokenizer.
        ends: further tokens that end a document.
        template: as in `TextOptions`.
        vocabulary: number of the model's tokens.

    Attributes:
        vocabulary: number of tokens that both know.
        ends: tokens that end a document.
    """

    def __init__(self, named: NamedTokenizer, ends: frozenset[int], template: str | None, vocabulary: int) -> None:
        self._named = named
        self._template = template
        self._encoder = named.encoder()
        self._library = loaded(named.identity.name, named.files[TOKENIZER_FILE]) if named.files else None
        self.vocabulary = min(named.identity.vocabulary, vocabulary)
        self.ends = ends | {named.identity.end_id}

    def encode(self, text: str) -> list[int]:
        """Return a text's tokens; of "", that which ends the document before. Raise `InvalidInput` if it is no text."""
        try:
            tokens, _ = self._encoder.encode([text.encode()])
        except UnicodeEncodeError as error:
            raise InvalidInput(f"the prompt has a lone surrogate at character {error.start}") from error
        return self._known([int(token) for token in tokens[:-1]] or [self._named.identity.end_id])

    def encode_chat(self, messages: Any) -> list[int]:
        """Return the tokens that ask for the assistant's next message.

        Args:
            messages: JSON: a list of objects with `role` and `content`.

        Raises:
            InvalidInput: they are no messages, one holds a token that would end its own turn, or there is no template.
        """
        try:
            return self._known(self._chat.prompt(messages))
        except CorruptData as error:
            raise InvalidInput(error.message) from error

    @property
    def turn_end(self) -> str:
        """The text that ends the assistant's messages; "" where only a token does."""
        return self._chat.turn_end

    def reader(self) -> TextReader:
        """Return what makes text of an answer's tokens."""
        return _ByteReader() if self._library is None else _LibraryReader(self._library)

    def _known(self, tokens: list[int]) -> list[int]:
        if max(tokens, default=0) >= self.vocabulary:
            raise InvalidInput(f"the prompt has token {max(tokens)}; the model knows tokens below {self.vocabulary}")
        return tokens

    @cached_property
    def _chat(self) -> ChatEncoder:
        source, name = template_of(self._template, self._named)
        return ChatEncoder(ChatOptions(source, name), self._named)


class _ByteReader:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        return self._decoder.decode(bytes([token]))

    def end(self) -> str:
        return self._decoder.decode(b"", final=True)


class _LibraryReader:
    """Decodes a token together with those before it, from which spaces between words follow."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._begun = 0
        """Number of tokens before the last text that was returned, and its own."""
        self._read = 0

    def add(self, token: int) -> str:
        self._tokens.append(token)
        text = self._rest()
        if text.endswith(_UNKNOWN) and len(self._tokens) - self._read < MAX_TOKENS_OF_A_CHARACTER:
            return ""
        self._begun, self._read = self._read, len(self._tokens)
        return text

    def end(self) -> str:
        return self._rest()

    def _rest(self) -> str:
        before = self._decoded(self._tokens[self._begun : self._read])
        return self._decoded(self._tokens[self._begun :])[len(before) :]

    def _decoded(self, tokens: list[int]) -> str:
        found: str = self._tokenizer.decode(tokens, skip_special_tokens=False)
        return found


def text_tokens_of(view: RunView, options: TextOptions, base: Path | None, vocabulary: int) -> tuple[TextTokens, str]:
    """Return the tokens of a run's text, and a line on their source, or "".

    Args:
        view: the run, whose model is complete.
        options: as the user gave them.
        base: the folder of an adapter's base that the user named, whose tokenizer is taken where none is named.
        vocabulary: number of the model's tokens.

    Raises:
        InvalidInput: there is no tokenizer, or it is another model's; the message says what names one.
        ModelUnavailable: it cannot be read now.
    """
    hf = view.spec.hf or {}
    place = options.tokenizer
    if place is None and _reads_bytes(view):
        place = BYTES
    if place == BYTES:
        named, said = find_bytes(BYTES, options.end_token), ""
    else:
        if place is None and base is not None and (base / TOKENIZER_FILE).is_file():
            place = str(base)
        found = find_tokenizer(view, place, "--tokenizer with that one")
        if TOKENIZER_FILE not in found.files:
            missing = f"no {TOKENIZER_FILE} among {', '.join(found.files)}" if found.files else found.said
            raise InvalidInput(f"{missing or 'no tokenizer'}; allowed as --tokenizer: a place that has one, or {BYTES}")
        check_list(TOKENIZER_FILE, found.files[TOKENIZER_FILE], "the tokenizer", vocabulary)
        named, said = _with_end(found.files, options.end_token, hf), found.said
    return TextTokens(named, frozenset(_ends_in(hf)), options.template, vocabulary), said


def _reads_bytes(view: RunView) -> bool:
    is_ngram = view.spec.architecture is Architecture.EPOCHAL_NGRAM
    is_small = (view.spec.hf or {}).get("vocab_size") == BYTES_VOCABULARY and view.state.model.LLM.tokenizer is None
    return is_ngram or is_small or view.state.model.LLM.tokenizer == BYTES_SHA256


def _with_end(files: Mapping[str, bytes], end_token: str | None, hf: Mapping[str, Any]) -> NamedTokenizer:
    """Return the tokenizer; where its files name no end token, with that of the model's config."""
    try:
        return named_tokenizer(TOKENIZER_FILE, files, end_token)
    except InvalidInput:
        if end_token is not None or not _ends_in(hf):
            raise
        return named_tokenizer(TOKENIZER_FILE, files, str(_ends_in(hf)[0]))


def _ends_in(hf: Mapping[str, Any]) -> list[int]:
    found = hf.get("eos_token_id")
    return [one for one in (found if isinstance(found, list) else [found]) if type(one) is int and one >= 0]
