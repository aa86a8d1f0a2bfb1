"""Requests and answers in the shapes of OpenAI's HTTP API, as far as a run's checkpoint can serve them.

The rule kept here: a field that would change the answer, and is not understood, is refused by name. Fields that only
describe the request are ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from epochal.state.errors import InvalidInput
from epochal.tools.sample.sampler import ModelAnswer, Prompt
from epochal.trainers.continuation import ChoiceOptions

_DESCRIBING = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    **{"n": (1,), "best_of": (1,), "presence_penalty": (0,), "frequency_penalty": (0,), "logprobs": (False,)},
    **{"echo": (False,), "suffix": ("",), "logit_bias": ({},), "tools": ([],), "response_format": ({"type": "text"},)},
}
"""Fields that are taken with these values, and null, alone."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request, read.

    Attributes:
        model: the name that it asks for; None for any.
        streams: whether the answer is sent while it is made.
        counts: whether a streamed answer ends with the number of tokens.
    """

    prompt: Prompt
    model: str | None
    streams: bool
    counts: bool


def completion_request(body: Any, *, chat: bool) -> CompletionRequest:
    """Return the request in a JSON body.

    Args:
        body: the parsed document.
        chat: whether it has `messages`, and not a `prompt`.

    Raises:
        InvalidInput: a field is missing, wrong or not understood; the message names it.
    """
    if not isinstance(body, dict):
        raise InvalidInput("the body is no JSON object")
    fields = _Fields({name: value for name, value in body.items() if value is not None and name not in _DESCRIBING})
    text = fields.take("messages", list, None) if chat else fields.prompt()
    if not text and chat:
        raise InvalidInput("messages is missing or empty; allowed: a list of objects with role and content")
    stops = fields.take("stop", (str, list), [])
    stream_options = fields.take("stream_options", dict, {})
    default = ChoiceOptions()
    most = fields.take("max_tokens", int, default.max_tokens)
    choice = ChoiceOptions(
        fields.take("max_completion_tokens", int, most) if chat else most,
        fields.take("temperature", (int, float), default.temperature),
        fields.take("top_p", (int, float), default.top_p),
        fields.take("seed", int, None),
    )
    stop_texts = [stops] if isinstance(stops, str) else stops
    if not all(isinstance(one, str) for one in stop_texts):
        raise InvalidInput("stop is no text or list of texts")
    found = CompletionRequest(
        Prompt(text, choice, tuple(stop_texts)),
        fields.take("model", str, None),
        fields.take("stream", bool, False),
        stream_options.get("include_usage") is True,
    )
    fields.check_rest()
    return found


class _Fields:
    def __init__(self, left: dict[str, Any]) -> None:
        self._left = left

    def take(self, name: str, kind: type | tuple[type, ...], default: Any) -> Any:
        value = self._left.pop(name, default)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if value is not default and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
            raise InvalidInput(
                f"{name} is a {type(value).__name__}; allowed: {' or '.join(one.__name__ for one in kinds)}"
            )
        return value

    def prompt(self) -> str:
        value = self.take("prompt", (str, list), "")
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        if not isinstance(value, str):
            raise InvalidInput("prompt is no text; allowed: one text")
        return value

    def check_rest(self) -> None:
        for name, value in self._left.items():
            allowed = _WITHOUT_EFFECT.get(name)
            if allowed is None or value not in allowed:
                shown = "" if allowed is None else f"; allowed: {' or '.join(map(repr, allowed))}"
                raise InvalidInput(f"{name[:64]!a} is not understood{shown or ' here; leave it out'}")


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """The parts that every message of an answer has.

    Attributes:
        id: of the answer.
        created_s: time of the request, in seconds since 1970.
        model: the run's id.
        chat: whether messages were asked for.
    """

    id: str
    created_s: int
    model: str
    chat: bool

    def whole(self, answer: ModelAnswer, text: str) -> dict[str, Any]:
        """Return a whole answer."""
        content = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        kind = "chat.completion" if self.chat else "text_completion"
        return self._message(kind, answer, content) | {"usage": _usage(answer)}

    def piece(self, answer: ModelAnswer, text: str, *, is_first: bool = False) -> dict[str, Any]:
        """Return a piece of an answer, or its end, which has a `finish_reason`."""
        delta = ({"role": "assistant"} if is_first else {}) | ({"content": text} if text or is_first else {})
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return self._message(kind, answer, {"delta": delta} if self.chat else {"text": text})

    def count(self, answer: ModelAnswer) -> dict[str, Any]:
        """Return the message after the last piece, with the number of tokens."""
        return self.piece(answer, "") | {"choices": [], "usage": _usage(answer)}

    def _message(self, kind: str, answer: ModelAnswer, content: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": f"step-{answer.step}",
            "choices": [{"index": 0, **content, "logprobs": None, "finish_reason": answer.finish_reason}],
        }


def _usage(answer: ModelAnswer) -> dict[str, int]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.tokens,
        "total_tokens": answer.prompt_tokens + answer.tokens,
        "cut_prompt_tokens": answer.cut_tokens,
    }
