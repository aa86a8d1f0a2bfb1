"""`epochal audit`: prove or disprove a run from its directory."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coordinator.audit import AuditReport, audit
from coordinator.store.directory.blobs import DirectoryBlobs
from coordinator.store.directory.journal import JOURNAL_FOLDER, RunDirectory
from epochal.cli.options import JsonOption

MAX_AUDITS = 10


async def audit_run_directory(run_dir: Path, *, recompute: bool) -> AuditReport:
    """Audit a run directory without locking it.

    A coordinator that serves it meanwhile may sweep blobs that were needed when the journal was read. So what is found
    wrong while the journal grows is looked at again, until it is found twice, or not.

    Raises:
        StoreFailed: there is no readable journal.
    """
    problems: tuple[str, ...] = ()
    for _ in range(MAX_AUDITS):
        before = _journal_sizes(run_dir)
        blobs = await DirectoryBlobs.open_readonly(run_dir) if recompute else None
        report = await audit(RunDirectory.read_history(run_dir), blobs)
        if report.clean or report.problems == problems or _journal_sizes(run_dir) == before:
            break
        problems = report.problems
    return report


def _journal_sizes(run_dir: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (run_dir / JOURNAL_FOLDER).glob("*.log")}


def audit_command(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The coordinator's run directory.")],
    as_json: JsonOption = False,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Also rebuild the parameters from checkpoint and outcomes.")
    ] = False,
) -> None:
    """Replay a run's journal and prove that every batch was applied once, or name what is wrong (exit 1)."""
    report = asyncio.run(audit_run_directory(run_dir, recompute=recompute))
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
    else:
        _print(report)
    raise typer.Exit(0 if report.clean else 1)


def _print(report: AuditReport) -> None:
    table = Table(title=escape(f"Audit of run {report.run_id}"), show_header=False)
    for name, value in asdict(report).items():
        if name not in ("run_id", "problems") and value is not None:
            table.add_row(name.replace("_", " "), str(value))
    console = Console()
    console.print(table)
    for problem in report.problems:
        console.print(f"[red]wrong:[/red] {escape(problem)}")
    console.print("[green]the ledger is clean[/green]" if report.clean else "[red]the run is disproved[/red]")
