"""The body of the site's page of commands, made from the commands themselves, as `--help` shows them."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from epochal.cli.main import app

LONGEST_DEFAULT_CHARS = 40


def body() -> str:
    """Return the page's body: every command with its usage, its arguments and its options."""
    root: Any = get_command(app)
    return "\n\n".join(_commands("epochal", root))


def _commands(name: str, command: Any) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield from _command(name, command)
        return
    if " " in name:
        yield f"## {name}\n\n{_plain(command.help)}"
    for word, each in inner.items():
        yield from _commands(f"{name} {word}", each)


def _command(name: str, command: Any) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    real = context.command
    usage = " ".join(real.collect_usage_pieces(context))
    yield f"{'###' if name.count(' ') > 1 else '##'} {name}\n\n`{name} {usage}`"
    yield _plain(real.help)
    rows = [row for parameter in real.params if not parameter.hidden for row in [_row(parameter)] if row]
    if rows:
        yield "\n".join(["| argument or option | meaning |", "|---|---|", *rows])


def _row(parameter: Any) -> str | None:
    if parameter.name in ("help", "install_completion", "show_completion"):
        return None
    if parameter.param_type_name == "argument":
        shown = f"`{parameter.metavar or parameter.name.upper()}`"
    else:
        value = "" if parameter.is_flag else f" {parameter.metavar or parameter.opts[0].rpartition('-')[2].upper()}"
        shown = ", ".join(f"`{option}{value}`" for option in (*parameter.opts, *parameter.secondary_opts))
    default = parameter.default
    simple = isinstance(default, str | int | float) and not isinstance(default, bool)
    is_said = "Default" in (parameter.help or "") or not str(default) or len(str(default)) > LONGEST_DEFAULT_CHARS
    meaning = _plain(parameter.help) + (f" Default: `{default}`." if simple and not is_said else "")
    return f"| {shown.replace('|', '&#124;')} | {meaning}{' Required.' if parameter.required else ''} |"


def _plain(text: str | None) -> str:
    """Return a help text for markdown: without rich's escapes, and with nothing that a table or HTML would take."""
    found = re.sub(r"\\\[", "[", inspect.cleandoc(text or ""))
    return found.replace("<", "&lt;").replace("|", "&#124;").replace("[", "\\[")
