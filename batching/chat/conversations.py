"""Conversations in JSON records: which messages they have, and which of them are learnt.

A record is `{"messages": [{"role": …, "content": …}, …]}`, of which the assistant's messages are learnt, or
`{"prompt": …, "completion": …}`, of which the completion is. Prompt and completion are texts, or lists of messages. An
assistant's message with `"weight": 0` is not learnt. `"tools"` are passed on to the template.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from epochal.data_providers.protocol import CorruptData

MAX_MESSAGES = 1024
"""Maximum number of messages of a conversation; a template may be rendered twice for each."""
ASSISTANT = "assistant"
ALLOWED = "messages; or prompt and completion"
Learn = Literal["assistant", "last"]
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation.

    Attributes:
        messages: with `role` and `content`, and whatever else the record's author put into them for the template.
        learnt: positions of the messages that are learnt, ascending; none where the assistant is asked.
        tools: the record's own, for the template; None for none.
    """

    messages: tuple[Mapping[str, Any], ...]
    learnt: tuple[int, ...]
    tools: Sequence[Any] | None = None

    @property
    def parts(self) -> Iterator[tuple[str, Any]]:
        """The parts that its author wrote, by their places in the record: the messages, and the tools."""
        yield from ((f"messages[{number}]", message) for number, message in enumerate(self.messages))
        yield "tools", self.tools


def conversation_of(record: Any, learn: Learn = "assistant") -> Conversation:
    """Return the conversation of a JSON record.

    Args:
        record: the parsed document.
        learn: all of the assistant's messages, or the last one only.

    Raises:
        CorruptData: the record is no conversation, or nothing in it is learnt; the message names the field.
    """
    fields = record if isinstance(record, dict) else {}
    if "messages" in fields:
        messages, first_learnt = _messages(fields["messages"], "messages"), 0
    elif "prompt" in fields and "completion" in fields:
        prompt = _messages_or_text(fields["prompt"], "prompt", "user")
        messages, first_learnt = prompt + _messages_or_text(fields["completion"], "completion", ASSISTANT), len(prompt)
    else:
        shown = ", ".join(sorted(map(str, fields))[:8]) or type(record).__name__
        raise CorruptData(f"a record of {shown}; allowed: {ALLOWED}")
    if len(messages) > MAX_MESSAGES:
        raise CorruptData(f"{len(messages)} messages; at most {MAX_MESSAGES}")
    learnt = [
        number
        for number, message in enumerate(messages)
        if number >= first_learnt and message["role"] == ASSISTANT and message.get("weight", 1)
    ]
    if not learnt:
        raise CorruptData("no message of the assistant's is to be learnt")
    return Conversation(tuple(messages), tuple(learnt[-1:] if learn == "last" else learnt), _tools(fields))


def asked(messages: Any) -> Conversation:
    """Return the conversation that the assistant is to continue. Raise `CorruptData` if they are no messages."""
    found = _messages(messages, "messages")
    if len(found) > MAX_MESSAGES:
        raise CorruptData(f"{len(found)} messages; at most {MAX_MESSAGES}")
    return Conversation(tuple(found), ())


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text that a template may write of a JSON value, names of fields included, in no certain order."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, str):
            yield found
        elif isinstance(found, Mapping):
            waiting += [*found, *found.values()]
        elif isinstance(found, list | tuple):
            waiting += found


def _messages_or_text(value: Any, name: str, role: str) -> list[dict[str, Any]]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return _messages(value, name)


def _messages(value: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise CorruptData(f"{name} is {_shown(value)}; allowed: a list of one or more messages")
    return [_message(message, f"{name}[{number}]") for number, message in enumerate(value)]


def _message(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CorruptData(f"{place} is {_shown(value)}; allowed: an object with role and content")
    role, content, weight = value.get("role", _MISSING), value.get("content", _MISSING), value.get("weight", 1)
    if not isinstance(role, str) or not role:
        raise CorruptData(f"{place}.role is {_shown(role)}; allowed: a text, such as user or assistant")
    if type(weight) not in (int, float) or weight not in (0, 1):
        raise CorruptData(f"{place}.weight is {_shown(weight)}; allowed: 0 or 1")
    if isinstance(content, list):
        content = "".join(_part(part, f"{place}.content[{number}]") for number, part in enumerate(content))
    if content in (None, _MISSING) and value.get("tool_calls"):
        content = ""
    if not isinstance(content, str):
        raise CorruptData(f"{place}.content is {_shown(content)}; allowed: a text, or a list of parts of type text")
    return {**value, "content": content}


def _part(value: Any, place: str) -> str:
    text = value.get("text") if isinstance(value, dict) and value.get("type") == "text" else None
    if not isinstance(text, str):
        if isinstance(value, dict) and value.get("type") == "text":
            raise CorruptData(f"{place}.text is {_shown(value.get('text', _MISSING))}; allowed: a text")
        kind = (
            f"a part whose type is {_shown(value.get('type', _MISSING))}" if isinstance(value, dict) else _shown(value)
        )
        raise CorruptData(f"{place} is {kind}; allowed: a part of type text")
    return text


def _tools(fields: Mapping[str, Any]) -> Sequence[Any] | None:
    tools = fields.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise CorruptData(f"tools is {_shown(tools)}; allowed: a list")
    return tools or None


def _shown(value: Any) -> str:
    if value is _MISSING:
        return "missing"
    if value is None:
        return "null"
    if isinstance(value, str):
        return repr(value[:40])
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    kind = "a list" if isinstance(value, list) else "an object"
    return kind if value else f"an empty {kind.split()[1]}"
