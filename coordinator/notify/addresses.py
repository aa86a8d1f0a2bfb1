"""Where notices are sent: the addresses of `[notify]`, with the secrets that the environment holds."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from epochal.state.config.notify_table import NoticeKind, NotifyConfig, Webhook, variable_of
from epochal.state.errors import ExtraMissing, InvalidInput

NAME_DIGITS = 16
EXTRA = "pip install 'epochal[notify]'"
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s]+")


@dataclass(frozen=True, slots=True)
class Address:
    """An address that is notified.

    Attributes:
        name: identifies it in the journal; it reveals nothing of the URL.
        place: in the state file, for messages.
        url: `https://…` or `http://…` for a signed POST of JSON, another one for apprise.
        on: kinds of the notices that are sent there.
        secret: key of the signature.
    """

    name: str
    place: str
    url: str = field(repr=False)
    on: tuple[NoticeKind, ...]
    secret: str | None = field(default=None, repr=False)

    @property
    def scheme(self) -> str:
        """The scheme of its URL, which is no secret."""
        return self.url.partition("://")[0]

    @property
    def takes_json(self) -> bool:
        """Whether it takes a POST of JSON; apprise knows the others."""
        return self.scheme in ("http", "https")


def address_name(webhook: Webhook) -> str:
    """Return the name of an address in the journal: a digest of its line in the state file."""
    return hashlib.sha256(webhook.url.encode()).hexdigest()[:NAME_DIGITS]


def addresses_of(notify: NotifyConfig, environment: Mapping[str, str]) -> tuple[Address, ...]:
    """Return the addresses of a state file, each name once.

    Args:
        notify: the table of the state file.
        environment: holds the variables that it names.

    Raises:
        InvalidInput: a variable is missing, or holds no URL that can be notified. The message does not show its value.
        ExtraMissing: apprise is needed, and not installed.
    """
    found: dict[str, Address] = {}
    for number, webhook in enumerate(notify.webhooks):
        place = f"notify.webhooks.{number}"
        url = _value_of(webhook.url, f"{place}.url", environment)
        secret = None if webhook.secret is None else _value_of(webhook.secret, f"{place}.secret", environment)
        address = Address(address_name(webhook), place, url, webhook.on, secret)
        _check(address)
        found.setdefault(address.name, address)
    return tuple(found.values())


def _check(address: Address) -> None:
    allowed = "allowed: https://…, http://…, or a URL of apprise, such as slack://… or ntfy://…"
    if _URL.fullmatch(address.url) is None:
        raise InvalidInput(f"{address.place}.url holds no URL; {allowed}")
    if address.takes_json:
        return
    if address.secret is not None:
        raise InvalidInput(f"{address.place}.secret: {address.scheme}:// takes no signature; allowed: no secret")
    try:
        import apprise
    except ImportError as error:
        raise ExtraMissing(f"{address.place}: {address.scheme}:// needs apprise: {EXTRA}") from error
    if apprise.Apprise.instantiate(address.url, suppress_exceptions=True) is None:
        raise InvalidInput(f"{address.place}.url: apprise cannot use this {address.scheme}:// URL; {allowed}")


def variables_of(notify: NotifyConfig) -> tuple[str, ...]:
    """Return the environment variables that the addresses name."""
    texts = [text for webhook in notify.webhooks for text in (webhook.url, webhook.secret) if text is not None]
    return tuple(name for name in map(variable_of, texts) if name is not None)


def _value_of(text: str, place: str, environment: Mapping[str, str]) -> str:
    name = variable_of(text)
    if name is None:
        return text
    value = environment.get(name, "").strip()
    if not value:
        raise InvalidInput(
            f"{place} names the environment variable {name}, which is not set; allowed: {name}, or {name}_FILE with "
            "the path of a file that holds it"
        )
    return value
