"""Commands that are imported when they run, so that `epochal --help` and each command load only what they need."""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand
from typer.main import get_command


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command whose function is imported when it runs.

    Attributes:
        target: `module:function`, below `epochal.commands`. The function's signature and docstring make the command.
        summary: First paragraph of the function's docstring, for the list of commands.
    """

    name: str
    target: str
    summary: str

    def function(self) -> Callable[..., Any]:
        """Import the module and return the function."""
        module, _, name = self.target.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(f"epochal.commands.{module}"), name)
        return function

    def stand_in(self) -> type[TyperCommand]:
        """Return a command class that is listed as this command and imports the function when it is called."""

        class StandIn(TyperCommand):
            def make_context(stand_in, *args: Any, **options: Any) -> Any:  # noqa: N805
                app = typer.Typer(add_completion=False)
                app.command(self.name)(self.function())
                return get_command(app).make_context(*args, **options)

        return StandIn


def lazy_app(commands: Iterable[LazyCommand], **settings: Any) -> typer.Typer:
    """Return a Typer application of these commands, none of which is imported yet."""
    app = typer.Typer(no_args_is_help=True, **settings)
    for command in commands:
        app.command(command.name, cls=command.stand_in(), help=command.summary)(_not_imported)
    return app


def _not_imported() -> None:
    raise AssertionError("a stand-in runs nothing")
