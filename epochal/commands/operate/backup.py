"""`epochal backup`: copy a run while it runs."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.options.shared import JsonOption, local_path
from epochal.cli.output.printing import say
from epochal.coordinator.proof.backup import back_up
from epochal.coordinator.store.open import DATABASE_SCHEMES
from epochal.state.errors import InvalidInput
from epochal.state.text.amounts import counted

DATABASES = tuple((f"{scheme}:",) for scheme in DATABASE_SCHEMES)
"""First parts of a path that is the URL of a database."""


def backup(
    store: Annotated[
        str, typer.Argument(metavar="STORE", help="Folder or URL that keeps the run: the coordinator's --store.")
    ],
    to: Annotated[
        Path,
        typer.Argument(
            metavar="TO", parser=local_path, help="New folder for the copy; it appears when the copy is complete."
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Copy a run to a new folder while it runs; `epochal audit` reads a copy back completely.

    To use the copy: put it in the run directory's place and start the coordinator with --restored.
    """
    if to.parts[:1] in DATABASES:
        raise InvalidInput("backup: TO is a database; allowed: a new folder. `epochal move` moves a run into one")
    report = asyncio.run(back_up(store, to, (lambda _: None) if as_json else say))
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
        return
    blobs = f"{counted(report.blobs, 'blob')}, {report.blob_bytes:,} bytes"
    say(f"Backup of run {report.run_id}: {counted(report.journal_records, 'record')}, {blobs}")
