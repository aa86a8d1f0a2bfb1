"""`epochal runs`: list the runs in a database."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from coordinator.store.open import runs_in
from epochal.cli.options import STORE_VARIABLE, JsonOption


def runs(
    database: Annotated[
        str,
        typer.Argument(metavar="URL", envvar=STORE_VARIABLE, help="Database, such as postgresql://user@host/database."),
    ],
    as_json: JsonOption = False,
) -> None:
    """List the runs in a database: each one's id, the version of its document, and the size and age of its journal."""
    found = runs_in(database)
    if as_json:
        typer.echo(json.dumps([asdict(run) for run in found], indent=2))
        return
    for run in found:
        changed = datetime.fromtimestamp(run.changed_s, UTC).isoformat(timespec="seconds")
        typer.echo(
            f"{run.run_id}: version {run.version}, {run.records} records of {run.journal_bytes:,} bytes, "
            f"the last one at {changed}"
        )
    if not found:
        typer.echo("no runs")
