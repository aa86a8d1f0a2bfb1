"""The `epochal` command: the list of its commands (each with the first paragraph of its docstring), and exit codes."""

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

COMMANDS = {
    "design.init:init": (
        "Write state.toml and data.toml of a new run, with timers and sizes that its planner finds sensible."
    ),
    "data.prepare:prepare": "Turn text into shards of tokens, and write the files of a run that trains on them.",
    "design.check:check": (
        "Check a state file, a data file, and what they name. Every mistake is reported at once (exit code 2)."
    ),
    "design.plan:plan": (
        "Say how a run will go before it starts: time of a round, bytes, machines, days, bottleneck, what to change."
    ),
    "serve.up:up": (
        "Run a coordinator, a data server and clients on this machine, and check the result (exit code 1 if it fails)."
    ),
    "serve.coordinator:coordinator": (
        "Serve a run: keep its state, assign its data, collect its results. Started again, it resumes the run."
    ),
    "operate.genesis:genesis": (
        "Make the model that a run starts from and deliver it, where the coordinator's machine could not make it."
    ),
    "serve.client:client": (
        "Join a run and train until it ends. Ctrl-C finishes the round and leaves; a second Ctrl-C stops at once."
    ),
    "design.doctor:doctor": (
        "Check whether this machine can train, and the way to a coordinator (exit code 1 if there is a problem)."
    ),
    "operate.status:status": "Show a run: phase, progress, clients, loss.",
    "show.watch:watch": "Show a run as a live screen, or with --to write its figures to where you keep yours.",
    "show.report:report": (
        "Write a run as one page of HTML: figures, charts, audit, members and configuration. It needs no network."
    ),
    "show.evaluate:evaluate": (
        "Compute the loss of a run's checkpoint, or benchmarks (--tasks), and record them in the run's history."
    ),
    "show.export:export": (
        "Write a run's checkpoint as a Hugging Face folder, which `from_pretrained` loads, and upload it with --to."
    ),
    "show.sample:sample": (
        "Let a run's newest checkpoint continue text (--prompt), answer a chat (--chat), or serve both (--serve)."
    ),
    "operate.runs:runs": (
        "List the runs in a folder or a database: each one's id, when it changed, and where it is served."
    ),
    "show.explain:explain": (
        "Explain a refusal, an error, a warning of the log, or a word of a run's views. Without KIND, list them."
    ),
    "operate.invite:invite": "Invite clients to a run that asks for invitations; list and revoke them.",
    "operate.status:pause": "Pause a run: finish the round, save a checkpoint, and wait.",
    "operate.status:resume": "Let a paused run continue.",
    "operate.status:finish": "End a run after a step, with its last checkpoint; or take that back, or move it.",
    "operate.rewind:rewind": (
        "Take a run back to a kept checkpoint, as after a spike of the loss. Without --to, list the kept ones."
    ),
    "operate.change:change": (
        "Change settings of a run from a step on, without a restart; without options, list its changes."
    ),
    "operate.status:eject": "Remove a client from a run. Its key cannot join again.",
    "operate.status:absolve": (
        "Let a client join again that replays had convicted, or trust one again of which each result is replayed."
    ),
    "operate.status:fingerprint": (
        "Show which data a run trains on and which data its members have, or pin the right data."
    ),
    "operate.notify:notify": (
        "Send a test message to each address of a state file, and show what each answers (exit code 1 if one fails)."
    ),
    "operate.move:move": (
        "Move a run that nobody serves from a folder into a database, or back; its audit is the same before and after."
    ),
    "operate.backup:backup": "Copy a run to a new folder while it runs; `epochal audit` reads a copy back completely.",
    "serve.data_server:data_server": (
        "Serve a run's data over TCP: to each client the samples that the coordinator assigned to it."
    ),
    "serve.trainer_service:trainer_service": (
        "Compute for clients that cannot train themselves: they send examples, this machine trains on them."
    ),
    "serve.checker:checker": (
        "Check results that arrive in a run's object store and add them up, so that the coordinator need not read them."
    ),
    "serve.verifier:verifier": (
        "Compute results of a run's members again, and report how far apart the two are; or score them."
    ),
    "operate.audit:audit": (
        "Replay a run's journal and check that each batch was applied once; report what is wrong (exit code 1)."
    ),
    "operate.publish:publish": (
        "Publish a run: all that anybody needs to check it, without the coordinator and without its secrets."
    ),
}
PANELS = {
    "design.init:init": "Start a run",
    "serve.client:client": "Join a run",
    "operate.status:status": "Watch, evaluate, export",
    "operate.invite:invite": "Operate a run",
    "serve.data_server:data_server": "More machines for a run",
    "operate.audit:audit": "Check what a run has done",
}
"""The panels of `epochal --help`, by who needs the commands; each one by its first command."""
DATA_COMMANDS = {
    "data.inspect:inspect": (
        "Show what a location holds: files, sequences, tokens, fingerprint, and the first sample decoded."
    ),
    "data.inspect:manifest": (
        "Write a manifest of hashes beside a folder's files, so that clients can check each block that they fetch."
    ),
    "data.inspect:verify": "Compare every byte of a folder's files with its manifest.",
}
QUARANTINE_COMMANDS = {
    "operate.quarantine:list_": (
        "List quarantined batches, and batches that wait for another attempt, with the reason of each."
    ),
    "operate.quarantine:release": (
        "Attempt quarantined batches again, once their data are mended. A finished run continues for this."
    ),
}
KEY_COMMANDS = {
    "operate.key:new": "Make a client's key in a new file, and print its public key.",
    "operate.key:show": "Print the public key of a key file, for the run's operator.",
    "operate.key:forget": (
        "Forget the keys of the coordinators at an address, so that the next join there takes the one that it is shown."
    ),
}
RECEIPT_COMMANDS = {
    "show.receipt:get": "Get a receipt of what a key has contributed to a run, signed by the coordinator.",
    "show.receipt:check": "Check a receipt, without the coordinator (exit code 1 if it is not what it says).",
}
ACCESS_COMMANDS = {
    "operate.access:add": "Let the owners of public keys join a run that asks for known keys, without a restart.",
    "operate.access:remove": "Keep the owners of public keys out; those who are members leave.",
    "operate.access:list_": "List the keys whose owners may join.",
}
SERVICE_COMMANDS = {
    "serve.service:install": (
        "Write a service that runs `epochal client` with these options, and start it where systemd or launchd runs."
    ),
    "serve.service:remove": "Stop a service, which finishes its round, and remove its file. Its key stays.",
    "serve.service:status": "Show whether a service is installed, its command, and how it does.",
}
TOKEN_COMMANDS = {
    "operate.token:data_server": (
        "Print a token for `epochal data-server --token`; a coordinator's address needs the admin token."
    ),
    "operate.token:checker": (
        "Print a token for `epochal checker --token`; a coordinator's address needs the admin token."
    ),
    "operate.token:verifier": (
        "Print a token for `epochal verifier --token`; a coordinator's address needs the admin token."
    ),
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
    COMMANDS,
    PANELS,
    cls=_Group,
    name="epochal",
    help=SUMMARY,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name, panel, commands, summary in (
    ("data", "Start a run", DATA_COMMANDS, "Inspect, check and append data."),
    ("service", "Join a run", SERVICE_COMMANDS, "Run a client as a service of this machine's user."),
    ("key", "Join a run", KEY_COMMANDS, "Make and show a client's key, and forget coordinators that it knows."),
    ("access", "Operate a run", ACCESS_COMMANDS, "Say whose keys may join a run (admin token)."),
    ("quarantine", "Operate a run", QUARANTINE_COMMANDS, "Show and release the batches that left a run."),
    ("token", "More machines for a run", TOKEN_COMMANDS, "Make tokens for a run's other programs."),
    ("receipt", "Check what a run has done", RECEIPT_COMMANDS, "Get and check signed receipts of members' work."),
):
    app.add_typer(lazy_app(commands, help=summary), name=name, rich_help_panel=panel)


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
