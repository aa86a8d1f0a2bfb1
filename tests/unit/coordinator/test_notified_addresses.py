"""Addresses of `[notify]`: what they may be, what the environment holds of them, and that no message shows it."""

import pytest

from epochal.coordinator.notify.addresses import address_name, addresses_of
from epochal.state.config.notify_table import NotifyConfig, Webhook
from epochal.state.config.state_file import dump_state, parse_state
from epochal.state.errors import InvalidConfig, InvalidInput
from tests.support.data.states import state_file


def test_addresses_come_from_the_environment_and_are_not_shown() -> None:
    notify = NotifyConfig(webhooks=(Webhook(url="env:HOOK", secret="env:KEY"), Webhook(url="ntfy://b.example/y")))
    found = addresses_of(notify, {"HOOK": "https://a.example/secret\n", "KEY": "k"})
    assert [(one.url, one.secret, one.takes_json) for one in found] == [
        ("https://a.example/secret", "k", True),
        ("ntfy://b.example/y", None, False),
    ]
    assert "secret" not in repr(found[0])
    assert found[0].name == address_name(notify.webhooks[0]) != found[1].name


def test_addresses_of_one_url_are_one() -> None:
    assert len(addresses_of(NotifyConfig(webhooks=(Webhook(url="https://a.example/x"),) * 2), {})) == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "notify.webhooks.0.url names the environment variable HOOK, which is not set; allowed: HOOK, or"),
        ("secret-of-mine", "notify.webhooks.0.url holds no URL; allowed: https://"),
        ("slack://secret-of-mine", "notify.webhooks.0.url: apprise cannot use this slack:// URL; allowed: https://"),
        ("ntfy://secret-of-mine", "notify.webhooks.0.secret: ntfy:// takes no signature; allowed: no secret"),
    ],
)
def test_wrong_address_is_named_without_its_value(value: str | None, expected: str) -> None:
    environment = {"KEY": "k"} if value is None else {"KEY": "k", "HOOK": value}
    secret = "env:KEY" if value is not None and value.startswith("ntfy") else None
    with pytest.raises(InvalidInput) as error:
        addresses_of(NotifyConfig(webhooks=(Webhook(url="env:HOOK", secret=secret),)), environment)
    assert expected in str(error.value)
    assert "secret-of-mine" not in str(error.value)


@pytest.mark.parametrize(
    ("webhooks", "expected"),
    [
        ([{"url": "hooks.example/x"}], ["notify.webhooks.0.url", "(not shown)", "env:NAME"]),
        ([{"url": "https://x", "onn": ["end"]}], ["notify.webhooks.0.onn", "`on`"]),
        ([{"url": "https://x", "on": ["death"]}], ["notify.webhooks.0.on", "no-outcome"]),
        ([{"url": "slack://x", "secret": "env:K"}], ["notify.webhooks", 'only where url is "https://…"']),
        ([{"url": "https://x", "secret": "in the file"}], ["notify.webhooks.0.secret", "(not shown)", "env:NAME"]),
        ([{"url": "https://x", "secret": 4711}], ["notify.webhooks.0.secret", "(not shown)", "env:NAME"]),
        ([{"url": "https://x"}] * 9, ["notify.webhooks", "up to 8 tables"]),
    ],
    ids=["url", "key", "kind", "secret-of-slack", "secret-in-file", "secret-of-digits", "too-many"],
)
def test_wrong_table_is_named_with_what_is_allowed(webhooks: list[dict[str, object]], expected: list[str]) -> None:
    with pytest.raises(InvalidConfig) as error:
        state_file(notify__webhooks=webhooks)
    assert [text for text in expected if text not in str(error.value)] == []
    assert "4711" not in str(error.value)


def test_file_with_addresses_is_written_as_it_was_read() -> None:
    state = state_file(notify__webhooks=[{"url": "https://x"}, {"url": "env:A", "secret": "env:B", "on": ["end"]}])
    assert parse_state(dump_state(state), "state.toml") == state
