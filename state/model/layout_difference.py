"""Describes how two layouts differ."""

from epochal.state.model.tensors import TensorLayout

MAX_DIFFERENCES_SHOWN = 3
"""Maximum number of tensors that a message about two layouts names."""
MAX_NAME_SHOWN = 64
"""Maximum number of characters of a tensor's name in such a message."""


def layout_difference(found: TensorLayout, expected: TensorLayout) -> str | None:
    """Return how a layout differs from the expected one, as a short text; None if it does not."""
    has, needs = dict(found.entries), dict(expected.entries)
    parts = [f"no {_shown(name)} of shape {needs[name]}" for name in needs if name not in has]
    parts += [f"an unknown {_shown(name)}" for name in has if name not in needs]
    parts += [
        f"{_shown(name)} of shape {has[name]} instead of {needs[name]}"
        for name in needs
        if has.get(name, needs[name]) != needs[name]
    ]
    if not parts:
        return None
    shown, more = parts[:MAX_DIFFERENCES_SHOWN], len(parts) - MAX_DIFFERENCES_SHOWN
    return ", ".join(shown) + (f", and {more} more differences" if more > 0 else "")


def _shown(name: str) -> str:
    return ascii(name if len(name) <= MAX_NAME_SHOWN else name[:MAX_NAME_SHOWN] + "…")
