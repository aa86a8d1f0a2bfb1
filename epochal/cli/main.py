"""The `epochal` command. Each subcommand is a thin wrapper around one function of the layer that does the work."""

import sys

import typer

from epochal import __version__
from epochal.commands import audit, check, client, data, evaluate, operator, servers, trainer_service, up
from state.errors import EpochalError, InvalidInput, Unsupported

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2

app = typer.Typer(
    name="epochal",
    help="Train one model together on machines that nobody owns together.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"epochal {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Show the version."),
) -> None:
    """Train one model together on machines that nobody owns together."""


for module in (up, servers, trainer_service, client, check, operator, audit, evaluate, data):
    module.register(app)


def main() -> None:
    """Run the command line; a known error is one message and an exit code, never a traceback."""
    try:
        app()
    except EpochalError as error:
        typer.echo(f"epochal: {error}", err=True)
        sys.exit(EXIT_BAD_INPUT if isinstance(error, InvalidInput | Unsupported) else EXIT_FAILED)
