"""Commands that are imported when they run, so that `epochal --help` and each command load only what they need."""

import importlib
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from epochal.cli.options.groups import flattened
from epochal.runtime.garbage import no_collections

FOLDER = Path(__file__).parents[1] / "commands"


def lazy_app(panels: Iterable[tuple[str | None, Sequence[str]]], **settings: Any) -> typer.Typer:
    """Return a Typer application of commands, none of which is imported yet.

    Args:
        panels: the panels of the help, None for the usual one, and the `module:function` below `epochal.commands` of
            each command. The function's name, signature and docstring make the command.
        settings: arguments of `typer.Typer`.
    """
    app = typer.Typer(no_args_is_help=True, **settings)
    for panel, targets in panels:
        for target in targets:
            kind, summary = _importing_command(target), summary_of(target)
            app.command(command_name(target), cls=kind, help=summary, rich_help_panel=panel)(_not_imported)
    return app


def summary_of(target: str) -> str:
    """Return the first paragraph of a command's docstring, as its source has it, which is not imported for that."""
    module, _, name = target.partition(":")
    source = FOLDER.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    found = re.search(rf'^def {name}\(.*?\) -> None:\n    """(.*?)(?:\n\n|""")', source, re.DOTALL | re.MULTILINE)
    assert found is not None, f"{target} has a docstring"
    return " ".join(found[1].split())


def command_name(target: str) -> str:
    """Return the name of the command that `module:function` makes: `list_` makes `list`."""
    return target.partition(":")[2].rstrip("_").replace("_", "-")


def command_function(target: str) -> Callable[..., Any]:
    """Import the module of `module:function` and return the function, with its groups of options as options."""
    module, _, name = target.partition(":")
    with no_collections():
        return flattened(getattr(importlib.import_module(f"epochal.commands.{module}"), name))


def _importing_command(target: str) -> type[TyperCommand]:
    class ImportingCommand(TyperCommand):
        def make_context(self, *args: Any, **options: Any) -> Any:
            app = typer.Typer(add_completion=False)
            function = command_function(target)
            app.command(command_name(target), context_settings=getattr(function, "settings", None))(function)
            return get_command(app).make_context(*args, **options)

    return ImportingCommand


def _not_imported() -> None:
    raise AssertionError("an ImportingCommand makes the context of the command that it imports")
