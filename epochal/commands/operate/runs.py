"""`epochal runs`: list the runs in a database."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from epochal.cli.options.shared import STORE_VARIABLE, JsonOption
from epochal.coordinator.store.open import runs_in


def runs(
    database: Annotated[
        str,
        typer.Argument(metavar="URL", envvar=STORE_VARIABLE, help="Database, such as postgresql://user@host/database."),
    ],
    as_json: JsonOption = False,
) -> None:
    """List the runs in a database: each one's id, its document's version, its journal and its coordinators."""
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
        for served in run.coordinators:
            version = served.program or "of an unknown version"
            rules = "" if served.rules is None else f", rules version {served.rules}"
            ticks = ", ticks" if served.is_ticking else ""
            typer.echo(f"  served at {served.url or 'an unknown address'} by Epochal {version}{rules}{ticks}")
    if not found:
        typer.echo("no runs")
