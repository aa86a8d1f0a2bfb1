"""Conversations of a preparation: rendered by a template, encoded, and each token marked if it is learnt.

Until they are packed, samples lie one after the other in shards of four bytes a token, whose two highest bits are the
marks `LEARNT` and `LAST` (of its sample).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from epochal.batching.chat.chat_encoding import PlacedTokens, encode_chat
from epochal.batching.chat.conversations import ASSISTANT, Conversation, Learn, asked, conversation_of, texts_in
from epochal.batching.chat.templates import BUILT_IN, END_MARK, MAX_TEMPLATE_CHARACTERS, ChatTemplate, RenderedChat
from epochal.data_providers.protocol import IGNORED_LABEL, CorruptData, Tokens
from epochal.runtime.os_errors import reason_of
from epochal.state.errors import InvalidInput
from epochal.tools.prepare.text_tokenizer import BYTES, TOKENIZER_FILE, NamedTokenizer, loaded

CONFIG_FILE, TEMPLATE_FILE = "tokenizer_config.json", "chat_template.jinja"
BYTES_TEMPLATE = "plain"
LEARNT, LAST = np.uint32(1 << 31), np.uint32(1 << 30)
TOKEN_BITS = np.uint32((1 << 30) - 1)
MARKED_TOKEN_BYTES = 4
_PROBE = "0123456789"
"""A message with which a template is tried."""


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Options for making samples of conversations.

    Attributes:
        template: Jinja, as `template_of` found it.
        template_name: for messages.
        learn: what is learnt of a conversation with `messages`.
    """

    template: str
    template_name: str
    learn: Learn = "assistant"


class ChatEncoder:
    """Encodes conversations. Each process makes its own.

    Raises:
        InvalidInput: an extra is missing, or the template cannot be used.
    """

    def __init__(self, options: ChatOptions, tokenizer: NamedTokenizer) -> None:
        special = special_tokens_of(tokenizer)
        self._learn = options.learn
        self._template = ChatTemplate(options.template, options.template_name, special)
        self._tokens = _placed_tokens_of(tokenizer)
        self._special = _special_texts(tokenizer)
        forgeries = sorted(self._special | self._template.markers, key=len, reverse=True)
        self._forged = re.compile("|".join(map(re.escape, forgeries))) if forgeries else None

    def rendered(self, record: Any) -> bytes:
        """Return the text of a record's conversation and the parts of it that are learnt, for `encode`.

        Raises:
            CorruptData: the record is no conversation, or holds a special token of the tokenizer's or a marker of the
                template's.
        """
        conversation = conversation_of(record, self._learn)
        self._check_forged(conversation)
        found = self._template.render(conversation)
        if not found.text:
            raise CorruptData(f"chat template {self._template.name} makes no text of the conversation")
        try:
            found.text.encode()
        except UnicodeEncodeError as error:
            raise CorruptData(f"the conversation has a lone surrogate at character {error.start}") from error
        return json.dumps([found.text, found.learnt], ensure_ascii=True, separators=(",", ":")).encode()

    def prompt(self, messages: Any) -> list[int]:
        """Return the tokens that ask for the assistant's next message.

        Args:
            messages: JSON: a list of objects with `role` and `content`.

        Raises:
            CorruptData: they are no messages, or one holds what would end its own turn, as in `rendered`.
        """
        conversation = asked(messages)
        self._check_forged(conversation)
        tokens, _ = self._tokens.encode_placed(self._template.prompt(conversation))
        return [int(token) for token in tokens]

    @cached_property
    def turn_end(self) -> str:
        """The text that the template writes after the assistant's messages, without spaces; "" if there is none."""
        answer = {"role": ASSISTANT, "content": _PROBE}
        try:
            found = self._template.render(Conversation(({"role": "user", "content": _PROBE}, answer), (1,)))
        except CorruptData:
            return ""
        ((start, stop),) = found.learnt
        return found.text[start:stop].partition(_PROBE)[2].strip().removeprefix(END_MARK)

    def encode(self, texts: Sequence[bytes]) -> tuple[npt.NDArray[np.uint32], list[int]]:
        """Return the marked tokens of conversations that `rendered` returned, and each one's number of tokens."""
        samples = [self._encoded(text) for text in texts]
        joined = np.concatenate([np.empty(0, "<u4"), *samples]).astype("<u4", copy=False)
        return joined, [len(sample) for sample in samples]

    def _encoded(self, rendered: bytes) -> npt.NDArray[np.uint32]:
        text, learnt = json.loads(rendered)
        sample = encode_chat(RenderedChat(text, tuple((start, stop) for start, stop in learnt)), self._tokens)
        assert sample.labels is not None
        marked = sample.input_ids.astype("<u4")
        marked[sample.labels != IGNORED_LABEL] |= LEARNT
        marked[-1:] |= LAST
        return marked

    def _check_forged(self, conversation: Conversation) -> None:
        if self._forged is None:
            return
        for place, part in conversation.parts:
            if found := next(filter(None, map(self._forged.search, texts_in(part))), None):
                is_special = found[0] in self._special
                what = "a special token of the tokenizer" if is_special else f"a marker of {self._template.name}"
                raise CorruptData(f"{place} holds {found[0]!r}, which is {what}: it would end its own turn")


class _PlacedBytes:
    """Bytes of UTF-8; `END_MARK` is the end token."""

    def __init__(self, end_id: int) -> None:
        self._end_id = end_id

    def encode_placed(self, text: str) -> tuple[Tokens, npt.NDArray[np.int64]]:
        parts = text.split(END_MARK)
        joined = bytes([self._end_id]).join(part.encode() for part in parts)
        begins = np.cumsum([0, *(1 if character == END_MARK else len(character.encode()) for character in text)])
        places = np.zeros(len(joined), np.int64)
        places[begins[1:-1]] = 1
        return np.frombuffer(joined, np.uint8).astype("<u2"), np.cumsum(places)


class _PlacedLibraryTokens:
    """A tokenizer of the `tokenizers` library, which finds the special tokens that a template wrote."""

    def __init__(self, name: str, file: bytes) -> None:
        self._tokenizer = loaded(name, file)
        self._tokenizer.encode_special_tokens = False

    def encode_placed(self, text: str) -> tuple[Tokens, npt.NDArray[np.int64]]:
        found = self._tokenizer.encode(text, add_special_tokens=False)
        begins = np.array([begin for begin, _ in found.offsets], np.int64)
        return np.array(found.ids, "<u4"), np.maximum.accumulate(begins) if len(begins) else begins


def template_of(asked: str | None, tokenizer: NamedTokenizer) -> tuple[str, str]:
    """Return the source of the template that the user named, and its name.

    Args:
        asked: `plain`, `chatml`, `none` or a file; None: the tokenizer's own, or `plain` for bytes.
        tokenizer: of the preparation.

    Raises:
        InvalidInput: there is no such template; the user's fault.
    """
    allowed = f"{', '.join(BUILT_IN)}, or a file with a Jinja template"
    if asked is None and tokenizer.identity.name == BYTES:
        asked = BYTES_TEMPLATE
    if asked is None:
        own = tokenizer.files.get(TEMPLATE_FILE, b"").decode("utf-8", "replace") or _configured(tokenizer)
        if not own:
            raise InvalidInput(f"tokenizer {tokenizer.identity.name} has no chat template; --template: {allowed}")
        return own, f"of {tokenizer.identity.name}"
    if asked in BUILT_IN:
        return BUILT_IN[asked], asked
    try:
        with Path(asked).open("rb") as file:
            source = file.read(4 * MAX_TEMPLATE_CHARACTERS).decode()
    except OSError as error:
        raise InvalidInput(f"--template {asked}: {reason_of(error)}; allowed: {allowed}", template=asked) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"--template {asked} is not UTF-8 at byte {error.start}", template=asked) from error
    return source, Path(asked).name


def special_tokens_of(tokenizer: NamedTokenizer) -> dict[str, str]:
    """Return the tokens that a template may name: `bos_token`, `eos_token` and others, by name."""
    found = {"eos_token": tokenizer.identity.end_token or END_MARK}
    for name, value in _config_of(tokenizer).items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _placed_tokens_of(tokenizer: NamedTokenizer) -> PlacedTokens:
    if not tokenizer.files:
        return _PlacedBytes(tokenizer.identity.end_id)
    return _PlacedLibraryTokens(tokenizer.identity.name, tokenizer.files[TOKENIZER_FILE])


def _special_texts(tokenizer: NamedTokenizer) -> frozenset[str]:
    """Return the texts of the tokenizer's special tokens, and of its end token if it was added to the vocabulary."""
    if not tokenizer.files:
        return frozenset()
    added = json.loads(tokenizer.files[TOKENIZER_FILE]).get("added_tokens") or []
    end = tokenizer.identity.end_token
    tokens = [token for token in added if isinstance(token, dict)]
    return frozenset(token["content"] for token in tokens if token.get("special") or token["content"] == end)


def _configured(tokenizer: NamedTokenizer) -> str:
    found: Any = _config_of(tokenizer).get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else ""


def _config_of(tokenizer: NamedTokenizer) -> Mapping[str, Any]:
    try:
        found = json.loads(tokenizer.files.get(CONFIG_FILE, b"{}"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
