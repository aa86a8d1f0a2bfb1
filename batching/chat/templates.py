"""Chat templates: a conversation becomes the text that the model reads, with the places of what is learnt.

Templates are Jinja, as tokenizers on Hugging Face have them. What is learnt is found in one of two ways:

- A template with `{% generation %} … {% endgeneration %}` says it itself: its blocks are the assistant's messages.
- For any other, the conversation is rendered up to each message that is learnt, without it (and with
  `add_generation_prompt`) and with it; both must be the beginning of the whole text, and the difference is learnt.

The rule kept here: a text depends on the conversation and the template alone, so templates have no clock.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from epochal.batching.chat.conversations import ASSISTANT, Conversation, texts_in
from epochal.data_providers.protocol import CorruptData
from epochal.state.errors import ExtraMissing, InvalidInput

EXTRA = "pip install 'epochal[prepare]'"
MAX_TEMPLATE_CHARACTERS = 256 * 1024
_START, _STOP = "\ufdd0", "\ufdd1"
"""Around what a template marks, while it is rendered."""
END_MARK = "\ufdd2"
"""The `eos_token` of tokenizers whose end token has no text."""
_RESERVED = re.compile("[\ufdd0-\ufdef]")
"""Noncharacters, which Unicode reserves for a program's own use."""
_MARKER = re.compile(r"<[|｜][^<>|｜\s]{1,64}[|｜]>")
"""The usual separator between messages."""
_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")

PLAIN = """\
{%- for message in messages %}
{{- message.role | capitalize }}: {% if message.role == 'assistant' %}
{%- generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
{%- else %}{{ message.content }}{% endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}Assistant: {% endif %}"""
CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}
{%- else %}{{ message.content }}<|im_end|>{% endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
CONCATENATED = """\
{%- for message in messages %}
{%- if message.role == 'assistant' %}{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
{%- else %}{{ message.content }}{% endif %}
{%- endfor %}"""
BUILT_IN: Mapping[str, str] = {"plain": PLAIN, "chatml": CHATML, "none": CONCATENATED}
"""Templates by name: `plain` for people to read, OpenAI's ChatML, and `none`, which only joins the messages."""


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A conversation's text. `learnt` are the ascending stretches `[start, stop)` of its characters to predict."""

    text: str
    learnt: tuple[tuple[int, int], ...]


class ChatTemplate:
    """A template, compiled.

    Args:
        source: Jinja.
        name: for messages.
        special_tokens: what the template may name besides the conversation: `bos_token`, `eos_token` and others, as
            in a `tokenizer_config.json`.

    Raises:
        InvalidInput: it is not a template, or the extra is missing; the user's fault.
    """

    def __init__(self, source: str, name: str, special_tokens: Mapping[str, str] | None = None) -> None:
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise InvalidInput(f"chat template {name} has more than {MAX_TEMPLATE_CHARACTERS} characters")
        self.name = name
        self.source = source
        self._special_tokens = {"bos_token": "", "eos_token": "", **(special_tokens or {})}
        self._render = _compiled(source, name)

    @cached_property
    def marks_what_is_learnt(self) -> bool:
        """Whether the template has `{% generation %}` blocks."""
        return _GENERATION.search(self.source) is not None

    @cached_property
    def markers(self) -> frozenset[str]:
        """The texts like `<|…|>` that the template itself writes: a message that holds one could end its own turn."""
        return frozenset(_MARKER.findall(self.source))

    def render(self, conversation: Conversation) -> RenderedChat:
        """Return the conversation's text, and the places in it that are learnt.

        Raises:
            CorruptData: the template refuses the conversation, or it is not clear which tokens are learnt.
        """
        _check_reserved(conversation)
        if self.marks_what_is_learnt:
            return self._marked(conversation)
        return self._compared(conversation)

    def prompt(self, conversation: Conversation) -> str:
        """Return the text that asks for the assistant's next message. Raises `CorruptData` as `render` does."""
        _check_reserved(conversation)
        text = self._text(conversation, conversation.messages, prompts=True)
        return text.replace(_START, "").replace(_STOP, "")

    def _marked(self, conversation: Conversation) -> RenderedChat:
        parts = re.split(f"([{_START}{_STOP}])", self._text(conversation, conversation.messages))
        blocks = [number for number, one in enumerate(conversation.messages) if one["role"] == ASSISTANT]
        text, stretches = parts[0], []
        begin: int | None = None
        for mark, part in zip(parts[1::2], parts[2::2], strict=True):
            if (mark == _START) != (begin is None):
                raise CorruptData(f"chat template {self.name} has a generation block within another")
            if begin is None:
                begin = len(text)
            else:
                stretches.append((begin, len(text)))
                begin = None
            text += part
        if len(stretches) != len(blocks):
            raise CorruptData(
                f"chat template {self.name} made {len(stretches)} generation blocks of {len(blocks)} messages of the "
                "assistant's; allowed: one for each"
            )
        learnt = set(conversation.learnt)
        return RenderedChat(text, tuple(one for one, at in zip(stretches, blocks, strict=True) if at in learnt))

    def _compared(self, conversation: Conversation) -> RenderedChat:
        text = self._text(conversation, conversation.messages)
        stretches: list[tuple[int, int]] = []
        for position in conversation.learnt:
            before = self._text(conversation, conversation.messages[:position], prompts=True)
            upto = self._text(conversation, conversation.messages[: position + 1])
            if not upto.startswith(before) or not text.startswith(upto):
                raise CorruptData(
                    f"chat template {self.name} writes messages[{position}] otherwise once others follow or precede "
                    "it, so that what is learnt is ambiguous; allowed: a template with {% generation %} blocks "
                    "around the assistant's messages"
                )
            stretches.append((len(before), len(upto)))
        return RenderedChat(text, tuple(stretches))

    def _text(self, conversation: Conversation, messages: Sequence[Mapping[str, Any]], prompts: bool = False) -> str:
        try:
            return self._render(
                **self._special_tokens,
                messages=[dict(message) for message in messages],
                tools=conversation.tools,
                documents=None,
                add_generation_prompt=prompts,
            )
        except Exception as error:  # a template's expressions may raise anything
            raise CorruptData(f"chat template {self.name}: {type(error).__name__}: {error}") from error


def _check_reserved(conversation: Conversation) -> None:
    for place, part in conversation.parts:
        if found := next(filter(None, map(_RESERVED.search, texts_in(part))), None):
            raise CorruptData(f"{place} has U+{ord(found[0]):X}, which Unicode reserves for programs")


def _compiled(source: str, name: str) -> Callable[..., str]:
    try:
        import jinja2
        from jinja2 import nodes
        from jinja2.ext import Extension
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise ExtraMissing(f"chat templates need jinja2: {EXTRA}") from error

    class Generation(Extension):  # type: ignore[misc]  # jinja2 is not there for all who check types
        """`{% generation %} … {% endgeneration %}`: marks what the assistant wrote."""

        tags = {"generation"}  # noqa: RUF012 (jinja2's own form)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Callable[[], str]) -> str:
            return f"{_START}{caller()}{_STOP}"

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = _to_json
    try:
        render: Callable[..., str] = environment.from_string(source).render
    except jinja2.TemplateError as error:
        line = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise InvalidInput(f"chat template {name}{line}: {error.message}") from error
    return render


def _to_json(value: Any, indent: int | None = None) -> str:
    """Return JSON as chat templates want it: without the escapes that jinja2's own filter makes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
