"""The saved state of a packer: the samples that it holds, and the settings under which it may go on."""

from collections.abc import Mapping
from typing import Any

from state.errors import InvalidInput
from state.wire import document_digest

STATE_FORMAT = "epochal/packer/v1"


def indices_held(state: Mapping[str, Any]) -> list[int]:
    """The data indices of the samples that a saved packer holds, ascending; what `Packer.restored` needs.

    Raises:
        InvalidInput: the state is damaged.
    """
    try:
        return sorted({int(index) for places in (state["pool"], *state["pending"]) for index, _ in places})
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"a packer's saved state is damaged: {type(error).__name__}: {error}") from error


def check_same_settings(state: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` unless the state was saved under these settings; the message names those that differ."""
    if state.get("format") != STATE_FORMAT:
        raise InvalidInput(f"a packer's saved state has format {state.get('format')!r}; allowed: {STATE_FORMAT!r}")
    if state.get("settings_sha256") == document_digest(dict(settings)):
        return
    before = state.get("settings")
    before = before if isinstance(before, Mapping) else {}
    changed = ", ".join(
        f"{name} was {before.get(name)!r} and is {settings.get(name)!r}"
        for name in sorted({*before, *settings})
        if before.get(name) != settings.get(name)
    )
    raise InvalidInput(f"a packer cannot go on under another configuration: {changed or 'its digest differs'}")
