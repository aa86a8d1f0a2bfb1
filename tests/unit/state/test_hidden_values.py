"""No message names a webhook's address or secret, wherever in a state file it stands, and whatever is wrong there."""

import traceback

import pytest

from epochal.state.config.changes import runtime_changes
from epochal.state.config.state_file import StateFile, dump_state, parse_state
from epochal.state.errors import InvalidConfig
from tests.support.data.states import state_file, state_text

SECRET = "T00PLANTED"
URL = f"https://hooks.slack.com/services/{SECRET}"
HOOK = '[[notify.webhooks]]\nurl = "https://x"\n'
WRONG = {
    "url": f'[[notify.webhooks]]\nurl = "hooks.slack.com/{SECRET}"\n',
    "url with a space": f'[[notify.webhooks]]\nurl = "{URL} "\n',
    "secret": f'{HOOK}secret = "{SECRET}"\n',
    "secret as a list": f'{HOOK}secret = ["{SECRET}"]\n',
    "misspelt url": f'[[notify.webhooks]]\nulr = "{URL}"\n',
    "misspelt secret": f'{HOOK}secert = "{SECRET}"\n',
    "url as kind": f'{HOOK}on = "{URL}"\n',
    "secret as kind": f'{HOOK}on = "{SECRET}"\n',
    "url among kinds": f'{HOOK}on = ["{URL}"]\n',
    "url as a webhook": f'[notify]\nwebhooks = ["{URL}"]\n',
    "url of the table": f'[notify]\nurl = "{URL}"\n',
    "url as the table": f'notify = "{URL}"\n',
    "url as a key": f'[notify]\n"{URL}" = true\n',
    "two rules": f'[[notify.webhooks]]\nurl = "slack://{SECRET}"\nsecret = "env:K"\n',
    "too many": f'[[notify.webhooks]]\nurl = "{URL}"\n' * 9,
    "misspelt table": f'[[notfy.webhooks]]\nurl = "{URL}"\nsecert = "{SECRET}"\n',
    "table of another name": f'[[webhooks]]\naddress = "{SECRET}"\n',
    "table at the wrong place": f'[client.notify]\nkey = "{SECRET}"\n',
    "line at the wrong place": f'[client]\nwebhook_url = "{URL}"\n',
    "address at the wrong place": f'[client]\ntell = "{URL}"\n',
    "list at the wrong place": f'[client]\ntell = [{{ whom = "{URL}" }}]\n',
    "no quote": f"[[notify.webhooks]]\nurl = {URL}\n",
    "no end": f'[[notify.webhooks]]\nurl = "{URL}\n',
    "secret without a quote": f"{HOOK}secret = {SECRET}-\n",
    "any line of the table": f"{HOOK}key {SECRET}\n",
    "after the table": f'{HOOK}\n[client]\nwebhooks = "{SECRET}\n',
    "quoted table": f'[["notify".webhooks]]\nkey {SECRET}\n',
    "dotted lines": f'notify.webhooks = [{{ url = "{SECRET}, }}]\n',
    "a line twice": f'{HOOK}secret = "env:K"\nsecret = "{SECRET}"\n',
}


def wrong_text(lines: str) -> str:
    """Return a state file with these lines: a value before the first table, and tables at the end."""
    return state_text() + lines if lines.startswith("[") else lines + state_text()


@pytest.mark.parametrize("lines", WRONG.values(), ids=WRONG)
def test_error_shows_no_secret_of_a_webhook(lines: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        parse_state(wrong_text(lines), "state.toml")
    shown = "".join(traceback.format_exception(raised.value)) + repr(raised.value) + repr(raised.value.mistakes)
    assert SECRET not in shown


def test_changed_webhooks_are_told_without_their_addresses() -> None:
    before, after = (state_file(notify__webhooks=[{"url": f"{URL}{number}", "on": ["end"]}]) for number in (1, 2))
    applied, _ = runtime_changes(before, after)
    assert [change.path for change in applied] == ["notify.webhooks"]
    assert SECRET not in "".join(map(str, applied))


def test_state_file_as_text_of_a_program_shows_no_secret() -> None:
    state = state_file(notify__webhooks=[{"url": URL}])
    assert SECRET not in f"{state!r} {state} {state.notify.webhooks[0]!r}"
    assert SECRET in dump_state(state)
    assert parse_state(dump_state(state), "state.toml") == state


def test_error_of_another_part_shows_no_secret() -> None:
    tree = state_file(notify__webhooks=[{"url": URL}]).to_plain()
    with pytest.raises(ValueError, match="validation error") as raised:
        StateFile.model_validate(tree | {"run_id": 3})
    assert SECRET not in str(raised.value)
