"""Webhooks: shapes of requests, signatures, and addresses from the environment."""

import json

import pytest

from epochal.coordinator.notify.webhooks import (
    ID_HEADER,
    SIGNATURE_HEADER,
    TIME_HEADER,
    Address,
    addresses_of,
    request_of,
    signature_of,
    webhook_name,
)
from epochal.state.config.notify_table import NOTICE_KINDS, NotifyConfig, Webhook, WebhookShape
from epochal.state.config.state_file import dump_state, parse_state
from epochal.state.errors import InvalidConfig, InvalidInput
from epochal.state.messages.notices import Notice
from tests.support.data.states import state_file

NOTICE = Notice("quarantine", "1", "<!channel> @everyone **bold** & \x1b[31m\u202e", 1234.5)


def address(shape: WebhookShape, secret: str | None = None) -> Address:
    return Address("name", "notify.webhooks.0", "https://hooks.example/x", shape, NOTICE_KINDS, secret)


def test_json_is_signed_over_time_and_body() -> None:
    sent = request_of(address("json", "key"), "run", NOTICE)
    # printf '1.{}' | openssl dgst -sha256 -hmac key
    assert signature_of("key", "1", b"{}") == "1ba6b8171186efc613e8bcc0cbdab2748f24984d7c5a84faa2637afa0e40d224"
    assert sent.headers[TIME_HEADER] == "1234"
    assert sent.headers[SIGNATURE_HEADER] == f"sha256={signature_of('key', '1234', sent.body)}"
    told = json.loads(sent.body)
    assert (told["kind"], told["message"], told["id"]) == ("quarantine", NOTICE.message, sent.headers[ID_HEADER])
    assert SIGNATURE_HEADER not in request_of(address("json"), "run", NOTICE).headers


def test_slack_and_discord_show_a_clients_text_as_text() -> None:
    slack = json.loads(request_of(address("slack"), "run", NOTICE).body)["text"]
    assert "&lt;!channel&gt;" in slack
    assert "\x1b" not in slack
    discord = json.loads(request_of(address("discord"), "run", NOTICE).body)
    assert r"\@everyone \*\*bold\*\*" in discord["content"]
    assert discord["allowed_mentions"] == {"parse": []}


def test_ntfy_has_the_text_as_body_and_an_ascii_title() -> None:
    sent = request_of(address("ntfy"), "läuf\r\nX-Evil: 1", NOTICE)
    assert sent.body == NOTICE.message.encode()
    assert sent.headers["X-Title"].isascii()
    assert "\n" not in sent.headers["X-Title"]


def test_addresses_come_from_the_environment_and_are_not_shown() -> None:
    notify = NotifyConfig(webhooks=(Webhook(url="env:HOOK", secret="env:KEY"), Webhook(url="https://b.example/y")))
    found = addresses_of(notify, {"HOOK": "https://a.example/secret\n", "KEY": "k"})
    assert [(one.url, one.secret) for one in found] == [
        ("https://a.example/secret", "k"),
        ("https://b.example/y", None),
    ]
    assert "secret" not in repr(found[0])
    assert found[0].name == webhook_name(notify.webhooks[0]) != found[1].name


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {},
            "notify.webhooks.0.url is 'env:HOOK', and the environment variable HOOK is not set; allowed: HOOK",
        ),
        ({"HOOK": "secret-of-mine"}, "notify.webhooks.0.url: env:HOOK holds no URL; allowed: https://"),
    ],
)
def test_wrong_variable_is_named_without_its_value(environment: dict[str, str], expected: str) -> None:
    with pytest.raises(InvalidInput) as error:
        addresses_of(NotifyConfig(webhooks=(Webhook(url="env:HOOK"),)), environment)
    assert expected in str(error.value)
    assert "secret-of-mine" not in str(error.value)


@pytest.mark.parametrize(
    ("webhooks", "expected"),
    [
        ([{"url": "ftp://x"}], ["notify.webhooks.0.url", "(not shown)", "env:NAME"]),
        ([{"url": "https://x", "shap": "slack"}], ["notify.webhooks.0.shap", "shape"]),
        ([{"url": "https://x", "on": ["death"]}], ["notify.webhooks.0.on", "no-outcome"]),
        (
            [{"url": "https://x", "shape": "slack", "secret": "env:K"}],
            ["notify.webhooks", 'only where shape is "json"'],
        ),
        ([{"url": "https://x", "secret": "in the file"}], ["notify.webhooks.0.secret", "env:NAME"]),
        ([{"url": "https://x"}] * 9, ["notify.webhooks", "up to 8 tables"]),
    ],
    ids=["url", "key", "kind", "secret-of-slack", "secret-in-file", "too-many"],
)
def test_wrong_table_is_named_with_what_is_allowed(webhooks: list[dict[str, object]], expected: list[str]) -> None:
    with pytest.raises(InvalidConfig) as error:
        state_file(notify__webhooks=webhooks)
    assert [text for text in expected if text not in str(error.value)] == []


def test_file_with_webhooks_is_written_as_it_was_read() -> None:
    state = state_file(notify__webhooks=[{"url": "https://x"}, {"url": "env:A", "secret": "env:B", "on": ["end"]}])
    assert parse_state(dump_state(state), "state.toml") == state
