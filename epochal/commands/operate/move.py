"""`epochal move`: move a run into a database, or out of one."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.options.shared import JsonOption, StoreArgument
from epochal.cli.output.printing import say
from epochal.coordinator.store.open import check_is_move, need_driver


def move(
    store: StoreArgument,
    to: Annotated[str, typer.Argument(metavar="TO", help="postgresql:// URL of a database, or a new folder.")],
    blobs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With TO in a database: folder for blobs that all its coordinators share."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Move a run that nobody serves from a folder into a database, or back; its audit is the same before and after.

    A folder stays as it was, marked as moved; rows of a database are removed.
    """
    check_is_move(store, to)
    for url in (store, to):
        need_driver(url)
    from epochal.coordinator.proof.migrate_store import move as move_run

    report = asyncio.run(move_run(store, to, blobs, (lambda _: None) if as_json else say))
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
    else:
        say(f"run {report.run_id} is in {report.store} now; its audit there is that of before")
