"""Webhooks: where notices are sent, and the shapes in which Slack, Discord, ntfy and others take them.

Sources: Slack, "Sending messages using incoming webhooks" and "Formatting text" (`&`, `<`, `>` are escaped);
Discord, "Execute Webhook" (`content` of at most 2,000 characters; `allowed_mentions`); ntfy, "Publishing" (the text as
the body, title, priority and tags as headers). A signature is HMAC-SHA256 over the time, a dot and the body, as hex.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from epochal.runtime.visible_text import visible
from epochal.state.config.notify_table import NoticeKind, NotifyConfig, Webhook, WebhookShape, variable_of
from epochal.state.errors import InvalidInput
from epochal.state.messages.notices import Notice

SIGNATURE_HEADER = "X-Epochal-Signature"
TIME_HEADER = "X-Epochal-Time"
ID_HEADER = "X-Epochal-Id"
NAME_DIGITS = 16
_MARKDOWN = re.compile(r"([\\*_~`|>#\[\]()@:])")
_PRIORITIES: Mapping[NoticeKind, str] = {"checkpoint": "low", "end": "default"}
_TAGS: Mapping[NoticeKind, str] = {"checkpoint": "floppy_disk", "end": "checkered_flag"}
_TITLES: Mapping[NoticeKind, str] = {
    "members": "too few members",
    "no-outcome": "rounds without an outcome",
    "loss": "the loss",
    "quarantine": "batches in quarantine",
    "room": "little room",
    "checkpoint": "a checkpoint",
    "end": "the run has ended",
}


@dataclass(frozen=True, slots=True)
class Address:
    """A webhook with what the environment holds of it.

    Attributes:
        name: identifies it in the journal; it tells nothing of the URL.
        place: in the state file, for messages.
    """

    name: str
    place: str
    url: str = field(repr=False)
    shape: WebhookShape
    on: tuple[NoticeKind, ...]
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Sent:
    """A request to a webhook: its body and headers."""

    body: bytes
    headers: Mapping[str, str]


def webhook_name(webhook: Webhook) -> str:
    """Return the name of a webhook in the journal: a digest of its lines in the state file."""
    told = f"{webhook.shape}\0{webhook.url}".encode()
    return f"{webhook.shape}-{hashlib.sha256(told).hexdigest()[:NAME_DIGITS]}"


def addresses_of(notify: NotifyConfig, environment: Mapping[str, str]) -> tuple[Address, ...]:
    """Return the webhooks of a state file, each name once.

    Args:
        notify: the table of the state file.
        environment: holds the variables that it names.

    Raises:
        InvalidInput: a variable is missing, or holds no URL of a webhook. The message does not show its value.
    """
    found: dict[str, Address] = {}
    for number, webhook in enumerate(notify.webhooks):
        place = f"notify.webhooks.{number}"
        url = _value_of(webhook.url, f"{place}.url", environment)
        if re.fullmatch(r"https?://[^\s/][^\s]*", url) is None:
            raise InvalidInput(f"{place}.url: {webhook.url} holds no URL; allowed: https://… or http://…")
        secret = None if webhook.secret is None else _value_of(webhook.secret, f"{place}.secret", environment)
        address = Address(webhook_name(webhook), place, url, webhook.shape, webhook.on, secret)
        found.setdefault(address.name, address)
    return tuple(found.values())


def variables_of(notify: NotifyConfig) -> tuple[str, ...]:
    """Return the environment variables that the webhooks name."""
    texts = [text for webhook in notify.webhooks for text in (webhook.url, webhook.secret) if text is not None]
    return tuple(name for name in map(variable_of, texts) if name is not None)


def _value_of(text: str, place: str, environment: Mapping[str, str]) -> str:
    name = variable_of(text)
    if name is None:
        return text
    value = environment.get(name, "").strip()
    if not value:
        raise InvalidInput(
            f"{place} is {text!r}, and the environment variable {name} is not set; allowed: {name}, or {name}_FILE "
            "with the path of a file that holds it"
        )
    return value


def request_of(address: Address, run_id: str, notice: Notice, *, is_test: bool = False) -> Sent:
    """Return the request that tells a webhook of a notice. The same notice gives the same bytes."""
    title = f"Epochal run {run_id}: {'a test' if is_test else _TITLES[notice.kind]}"
    identity = f"{run_id}-{notice.kind}-{round(notice.raised_s * 1000)}"
    match address.shape:
        case "slack":
            return _json({"text": f"*{_slack(title)}*\n{_slack(notice.message)}"})
        case "discord":
            content = f"**{_discord(title)}**\n{_discord(notice.message)}"[:2000]
            return _json({"content": content, "allowed_mentions": {"parse": []}})
        case "ntfy":
            headers = {
                "Content-Type": "text/plain; charset=utf-8",
                "X-Title": _ascii(title),
                "X-Priority": _PRIORITIES.get(notice.kind, "high"),
                "X-Tags": _TAGS.get(notice.kind, "warning"),
            }
            return Sent(notice.message.encode(), headers)
        case "json":
            told = {
                "id": identity,
                "run_id": run_id,
                "kind": notice.kind,
                "title": title,
                "message": notice.message,
                "raised_s": notice.raised_s,
            }
            sent = _json(told)
            time = str(int(notice.raised_s))
            headers = {**sent.headers, ID_HEADER: _ascii(identity), TIME_HEADER: time}
            if address.secret is not None:
                signature = signature_of(address.secret, time, sent.body)
                headers[SIGNATURE_HEADER] = f"sha256={signature}"
            return Sent(sent.body, headers)


def signature_of(secret: str, time: str, body: bytes) -> str:
    """Return the HMAC-SHA256, in hex, of `time`, a dot and the body, with the secret's UTF-8 bytes as its key."""
    return hmac.new(secret.encode(), time.encode() + b"." + body, hashlib.sha256).hexdigest()


def _json(value: object) -> Sent:
    body = json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()
    return Sent(body, {"Content-Type": "application/json"})


def _slack(text: str) -> str:
    return visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _discord(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", visible(text))


def _ascii(text: str) -> str:
    return visible(text).encode("ascii", "replace").decode()
