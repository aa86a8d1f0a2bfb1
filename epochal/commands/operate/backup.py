"""`epochal backup`: copy a run while it runs, and read a copy back."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.options.shared import JsonOption
from epochal.cli.output.printing import say
from epochal.coordinator.proof.backup import BackupReport, back_up, verify_backup
from epochal.coordinator.store.open import DATABASE_SCHEMES, is_database
from epochal.runtime.http.redacted_urls import without_password
from epochal.state.errors import InvalidInput
from epochal.view.check_report import print_checks

DATABASES = tuple((f"{scheme}:",) for scheme in DATABASE_SCHEMES)
"""First parts of a path that is the URL of a database."""


def backup(
    store: Annotated[
        str,
        typer.Argument(
            metavar="STORE",
            help="Folder or URL that keeps the run: the coordinator's --store. Alone with --verify: a copy.",
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Argument(metavar="[TO]", help="New folder for the copy; it appears when the copy is complete."),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Read the copy back: each file, record and blob (exit code 1 if one is wrong)."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Copy a run to a new folder while it runs; with --verify, read a copy back completely.

    To use the copy: put it in the run directory's place and start the coordinator with --restored.
    """
    if to is None and not verify:
        raise InvalidInput("backup: where to? Allowed: epochal backup STORE TO, or epochal backup --verify COPY")
    if to is not None and to.parts[:1] in DATABASES:
        raise InvalidInput("backup: TO is a database; allowed: a new folder. `epochal move` moves a run into one")
    if to is None and is_database(store):
        raise InvalidInput(
            f"backup: {without_password(store)} is no copy of a run; allowed: epochal backup --verify COPY. "
            "A database that PostgreSQL's own tools have restored is checked by `epochal audit`"
        )
    report = None
    if to is not None:
        report = asyncio.run(back_up(store, to, (lambda _: None) if as_json else say))
    if verify:
        report = asyncio.run(verify_backup(Path(store) if to is None else to))
    assert report is not None
    _show(report, as_json=as_json, is_verified=verify)
    raise typer.Exit(1 if report.problems else 0)


def _show(report: BackupReport, *, as_json: bool, is_verified: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
        return
    fields = asdict(report)
    title = f"Backup of run {fields.pop('run_id')}"
    if is_verified:
        print_checks(title, fields, report.problems)
    else:
        say(f"{title}: {report.journal_records:,} records, {report.blobs:,} blobs, {report.blob_bytes:,} bytes")
