"""`epochal audit`: check a run from what its store holds."""

import asyncio
import json
from dataclasses import asdict
from typing import Annotated

import typer

from coordinator.audit import audit_store
from epochal.cli.checks import print_checks
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
        fields = asdict(report)
        print_checks(f"Audit of run {fields.pop('run_id')}", fields, report.problems, report.remarks)
    raise typer.Exit(0 if report.passed else 1)
