"""The `epochal` command: which subcommands there are, and what becomes of an error."""

import sys

import typer

from epochal import __version__
from epochal.cli.lazy import LazyCommand, lazy_app
from state.errors import EpochalError, InvalidInput, Unsupported

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
SUMMARY = "Train one model together on machines that nobody owns together."

COMMANDS = (
    LazyCommand(
        "up",
        "up:up",
        "Run a coordinator, a data server and clients on this machine, and prove the result (exit 0 only if it holds).",
    ),
    LazyCommand(
        "coordinator",
        "coordinator:coordinator",
        "Serve a run: hold its state, assign its data, keep its results. The same command resumes a run directory.",
    ),
    LazyCommand(
        "data-server",
        "data_server:data_server",
        "Serve a run's data over TCP, to each client what it is assigned.",
    ),
    LazyCommand(
        "trainer-service",
        "trainer_service:trainer_service",
        "Train for clients that cannot: they send examples, this machine computes.",
    ),
    LazyCommand(
        "client",
        "client:client",
        "Join a run and train until it ends. Ctrl-C finishes the round and withdraws; a second one stops at once.",
    ),
    LazyCommand(
        "check",
        "check:check",
        "Validate a state file, and a data file with it. Exit 0, or 2 with every mistake in one report.",
    ),
    LazyCommand("status", "operator:status", "Show a run: phase, progress, members, loss."),
    LazyCommand("pause", "operator:pause", "Finish the round, make a checkpoint, and hold."),
    LazyCommand("resume", "operator:resume", "Let a paused run go on."),
    LazyCommand("eject", "operator:eject", "Remove a client from the run; its key may not join again."),
    LazyCommand(
        "audit",
        "audit:audit_command",
        "Replay a run's journal and prove that every batch was applied once, or name what is wrong (exit 1).",
    ),
    LazyCommand(
        "evaluate",
        "evaluate:evaluate",
        "Compute the loss of a run's newest checkpoint; the run may go on meanwhile.",
    ),
)
DATA_COMMANDS = (
    LazyCommand(
        "inspect",
        "data:inspect",
        "Show what a location holds: files, sequences, tokens, fingerprint, a decoded sample.",
    ),
    LazyCommand(
        "manifest",
        "data:manifest",
        "Write the hashes of a folder's files beside them, so that whoever fetches them can check every block.",
    ),
    LazyCommand("verify", "data:verify", "Compare every byte of a folder's files with its manifest."),
    LazyCommand(
        "pack",
        "pack:pack",
        "Pack one pass over a location's samples; show how full the rows are, and keep them with --out.",
    ),
)

app = lazy_app(
    COMMANDS,
    name="epochal",
    help=SUMMARY,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(lazy_app(DATA_COMMANDS, help="Look into a data location, and check it."), name="data")


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
        app()
    except EpochalError as error:
        typer.echo(f"epochal: {error}", err=True)
        sys.exit(EXIT_BAD_INPUT if isinstance(error, InvalidInput | Unsupported) else EXIT_FAILED)
