"""The `epochal` command: the list of its commands, and exit codes."""

import os
import sys
from typing import Any

import typer
import typer.core

from epochal import __version__
from epochal.cli.lazy import lazy_app
from epochal.cli.options.secret_files import take_secret_files
from epochal.cli.output.logs import show_warnings
from epochal.cli.output.progress import progress_shown
from epochal.runtime.explanations import kind_name, kind_of
from epochal.state.errors import EpochalError, InvalidInput, StoreLost, Unsupported
from epochal.state.text.visible import visible

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_STORE_LOST = 74
"""A coordinator could keep nothing more while it served a run (`EX_IOERR` of sysexits.h)."""
SUMMARY = "Train one model together on machines that belong to different people."

PANELS = {
    "Start a run": (
        "design.init:init",
        "data.prepare:prepare",
        "design.check:check",
        "design.plan:plan",
        "serve.up:up",
        "serve.coordinator:coordinator",
        "operate.genesis:genesis",
    ),
    "Join a run": ("serve.client:client", "design.doctor:doctor"),
    "Watch, evaluate, export": (
        "operate.status:status",
        "show.watch:watch",
        "show.report:report",
        "show.evaluate:evaluate",
        "show.export:export",
        "show.sample:sample",
        "operate.runs:runs",
        "show.explain:explain",
    ),
    "Operate a run": (
        "operate.invite:invite",
        "operate.status:pause",
        "operate.status:resume",
        "operate.status:finish",
        "operate.rewind:rewind",
        "operate.change:change",
        "operate.status:eject",
        "operate.status:absolve",
        "operate.status:fingerprint",
        "operate.notify:notify",
        "operate.move:move",
        "operate.backup:backup",
    ),
    "More machines for a run": (
        "serve.data_server:data_server",
        "serve.trainer_service:trainer_service",
        "serve.checker:checker",
        "serve.verifier:verifier",
    ),
    "Check what a run has done": ("operate.audit:audit", "operate.publish:publish"),
}
"""The panels of `epochal --help`, by who needs the commands, and the `module:function` of each command."""
GROUPS = {
    "data": ("Start a run", "Inspect and check data."),
    "service": ("Join a run", "Run a client as a service of this machine's user."),
    "key": ("Join a run", "Make and show a client's key, and forget coordinators that it knows."),
    "access": ("Operate a run", "Say whose keys may join a run (admin token)."),
    "quarantine": ("Operate a run", "Show and release the batches that left a run."),
    "token": ("More machines for a run", "Make tokens for a run's other programs."),
    "receipt": ("Check what a run has done", "Get and check signed receipts of members' work."),
}
"""Commands that have commands of their own: the panel and the summary of each."""
COMMANDS_OF = {
    "data": ("data.inspect:inspect", "data.inspect:manifest", "data.inspect:verify"),
    "service": ("serve.service:install", "serve.service:remove", "serve.service:status"),
    "key": ("operate.key:new", "operate.key:show", "operate.key:forget"),
    "access": ("operate.access:add", "operate.access:remove", "operate.access:list_"),
    "quarantine": ("operate.quarantine:list_", "operate.quarantine:release"),
    "token": ("operate.token:data_server", "operate.token:checker", "operate.token:verifier", "operate.token:mirror"),
    "receipt": ("show.receipt:get", "show.receipt:check"),
}

OTHER_WORDS = {
    "demo": "up",
    "join": "client URL",
    "plot": "report RUN",
    "serve": "coordinator STATE.toml",
    "start": "coordinator STATE.toml",
    "train": "client URL",
}
"""What people type for a command, and the command."""


class _Group(typer.core.TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in OTHER_WORDS:
            raise InvalidInput(f"there is no command {args[0]!r}; did you mean `epochal {OTHER_WORDS[args[0]]}`?")
        return super().resolve_command(ctx, args)


app = lazy_app(
    PANELS.items(),
    cls=_Group,
    name="epochal",
    help=SUMMARY,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name, (panel, summary) in GROUPS.items():
    app.add_typer(lazy_app([(None, COMMANDS_OF[name])], help=summary), name=name, rich_help_panel=panel)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"epochal {__version__}")
        raise typer.Exit


@app.callback(help=SUMMARY)
def _options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Show the version."),
) -> None: ...


def main() -> None:
    """Run the command line; a known error is one message and an exit code, never a traceback."""
    try:
        show_warnings()
        take_secret_files(os.environ)
        with progress_shown():
            app()
    except EpochalError as error:
        message = "\n".join(map(visible, str(error).split("\n")))  # a coordinator's words may be in it
        typer.echo(f"epochal: {message}\nsee: epochal explain {kind_of(error)}", err=True)
        sys.exit(exit_code_of(error))
    except SystemExit as ended:
        if ended.code == EXIT_BAD_INPUT and not _has_said_all(ended.__context__):
            typer.echo(f"see: epochal explain {kind_name(InvalidInput.__name__)}", err=True)
        raise


def _has_said_all(cause: BaseException | None) -> bool:
    """Return whether a command ended by itself, or printed its help because it was given nothing."""
    return isinstance(cause, typer.Exit) or type(cause).__name__ == "NoArgsIsHelpError"


def exit_code_of(error: EpochalError) -> int:
    """Return the exit code of a command that ended with this error (docs/operations.md lists them)."""
    if isinstance(error, StoreLost):
        return EXIT_STORE_LOST
    return EXIT_BAD_INPUT if isinstance(error, InvalidInput | Unsupported) else EXIT_FAILED
