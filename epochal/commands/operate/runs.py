"""`epochal runs`: list the runs in a folder or a database."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from epochal.cli.options.shared import RUNS_FOLDER, STORE_VARIABLE, JsonOption
from epochal.coordinator.store.open import runs_in
from epochal.state.text.amounts import counted, shown_bytes


def runs(
    place: Annotated[
        str,
        typer.Argument(
            metavar="DIR|URL",
            envvar=STORE_VARIABLE,
            help="Folder of runs, or a database such as postgresql://user@host/database.",
        ),
    ] = str(RUNS_FOLDER),
    as_json: JsonOption = False,
) -> None:
    """List the runs in a folder or a database: each one's id, when it changed, and where it is served."""
    found = runs_in(place) if place != str(RUNS_FOLDER) or RUNS_FOLDER.is_dir() else ()
    if as_json:
        typer.echo(json.dumps([asdict(run) for run in found], indent=2))
        return
    for run in found:
        changed = datetime.fromtimestamp(run.changed_s, UTC).isoformat(timespec="seconds")
        held = f"version {run.version}, {counted(run.records, 'record')} of {shown_bytes(run.journal_bytes)}, the last "
        typer.echo(f"{run.run_id}: {held}one at {changed}")
        for served in run.coordinators:
            version = served.program or "of an unknown version"
            rules = "" if served.rules is None else f", rules version {served.rules}"
            ticks = ", ticks" if served.is_ticking else ""
            typer.echo(f"  served at {served.url or 'an unknown address'} by Epochal {version}{rules}{ticks}")
    if not found:
        typer.echo("no runs")
