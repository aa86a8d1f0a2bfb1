"""`epochal audit`: check a run from what its store holds."""

import asyncio
import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coordinator.audit import AuditReport, audit_store
from epochal.cli.options import JsonOption, StoreArgument


def audit(
    store: StoreArgument,
    as_json: JsonOption = False,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Also compute the parameters again, from a checkpoint and the results.")
    ] = False,
) -> None:
    """Replay a run's journal and check that each batch was applied once; report what is wrong (exit code 1)."""
    report = asyncio.run(audit_store(store, recompute=recompute))
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
    console.print("[green]all checks passed[/green]" if report.clean else "[red]the audit failed[/red]")
