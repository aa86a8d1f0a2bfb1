"""`epochal up`: a whole run on this machine, live in the terminal, checked at the end."""

import asyncio
import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from epochal.cli.options.shared import RUNS_FOLDER
from epochal.cli.output.printing import say
from epochal.cli.shutdown import Interrupts
from epochal.runtime.long_work import shown_on
from epochal.state.errors import EpochalError
from epochal.state.messages.requests import RunStatus
from epochal.tools.testnet.demos import demo_of
from epochal.tools.testnet.local_run import LocalRun, LocalRunOptions, Report, Show
from epochal.trainers.registry import NULL
from epochal.view.check_report import print_checks
from epochal.view.figures.report_page import REPORT_NAME
from epochal.view.status_panel import status_line, status_panel, status_words

FIGURES_NAME = "report.json"
"""Name of the file in the run's folder with the figures that are printed at the end."""


def up(
    clients: Annotated[int, typer.Option(min=1, max=64, help="Number of clients to start.")] = 3,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Number of rounds to train. Default: as the demo's state file says.")
    ] = None,
    trainer: Annotated[
        str,
        typer.Option(
            help="numpy (the embedded model), torch (a Llama of a million parameters, a few minutes on two idle cores; "
            "needs epochal\\[torch]), or null (computes nothing, to see the coordination alone)."
        ),
    ] = "numpy",
    run_dir: Annotated[
        Path | None, typer.Option(help="Empty folder for everything that the run writes. Default: a new one in runs/.")
    ] = None,
    no_chaos: Annotated[bool, typer.Option("--no-chaos", help="Do not kill a client, and start none late.")] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds after which the run counts as failed.")
    ] = 1800.0,
) -> None:
    """Run a coordinator, a data server and clients on this machine, and check the result (exit code 1 if it fails)."""
    demo_of(trainer)
    directory = run_dir or RUNS_FOLDER / datetime.now(UTC).strftime("up-%Y%m%d-%H%M%S-%f")
    options = LocalRunOptions(directory, clients, rounds, trainer, not no_chaos, timeout_s)
    console = Console()
    found = _run_live(options, console) if console.is_terminal else _run_plain(options, console)
    fields = found.fields()
    (directory / FIGURES_NAME).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    print_checks(f"What happened in run {fields.pop('run_id')}", fields, found.problems, note=f" · kept in {directory}")
    say(f"the report: {directory / REPORT_NAME}")
    if trainer != NULL:
        say(f"the model: epochal export {shlex.quote(str(directory))} --out DIR")
    raise typer.Exit(1 if found.problems else 0)


def _run_live(options: LocalRunOptions, console: Console) -> Report:
    with Live(console=console, refresh_per_second=8) as live, shown_on(None):  # a bar would be drawn over the panel

        def show(status: RunStatus, notes: list[str]) -> None:
            live.update(status_panel(status, notes, explains=True))

        return _run(LocalRun(options, show, lambda url: _print_head(live.console, url)))


def _run_plain(options: LocalRunOptions, console: Console) -> Report:
    return _run(LocalRun(options, plain_lines(console), lambda url: say(_page_at(url))))


def _print_head(console: Console, url: str) -> None:
    """Print once, above the panel, where the run is seen and what the panel's words mean."""
    console.print(_page_at(url), highlight=False, soft_wrap=True)
    console.print(status_words())


def _page_at(url: str) -> str:
    return f"watch the run in a browser: {url}/\nor in another terminal: epochal watch {url}"


def plain_lines(console: Console) -> Show:
    """Return a function that prints each new note and each new status on one line, however long it is."""
    noted, last = 0, ""

    def show(status: RunStatus, notes: list[str]) -> None:
        nonlocal noted, last
        line = status_line(status)
        lines = [f"* {note}" for note in notes[noted:]]
        if lines or line != last:
            lines.append(line)
        for text in lines:
            console.print(text, highlight=False, markup=False, soft_wrap=True)
        noted, last = len(notes), line

    return show


def _run(local_run: LocalRun) -> Report:
    """Run to the end. Ctrl-C and SIGTERM raise `EpochalError` once every process has ended."""

    async def main() -> Report:
        running = asyncio.current_task()
        assert running is not None
        interrupts = Interrupts(running.cancel, lambda: None)
        try:
            return await local_run.run()
        except asyncio.CancelledError:
            raise EpochalError("stopped before the run ended") from None
        finally:
            interrupts.restore()

    return asyncio.run(main())
