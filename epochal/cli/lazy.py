"""Commands that are imported when they run, so that `epochal --help` and each command load only what they need."""

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from epochal.cli.options.groups import flattened
from epochal.runtime.garbage import no_collections


def lazy_app(
    commands: Mapping[str, str], panels: Mapping[str, str] = MappingProxyType({}), **settings: Any
) -> typer.Typer:
    """Return a Typer application of these commands, none of which is imported yet.

    Args:
        commands: the first paragraph of each command's docstring, by its `module:function` below `epochal.commands`.
            The function's name, signature and docstring make the command.
        panels: the panels of the help, each by its first command; by default there is one.
        settings: arguments of `typer.Typer`.
    """
    app = typer.Typer(no_args_is_help=True, **settings)
    panel = None
    for target, summary in commands.items():
        panel = panels.get(target, panel)
        command = app.command(command_name(target), cls=_importing_command(target), help=summary, rich_help_panel=panel)
        command(_not_imported)
    return app


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
