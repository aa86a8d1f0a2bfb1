"""`epochal report`: a run as one page."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.options.admin_token import AdminToken, given_token
from epochal.cli.options.shared import CoordinatorCaOption
from epochal.cli.output.printing import say
from epochal.state.errors import InvalidInput
from epochal.tools.checkpoints.run_address import RunArgument


def report(
    run: RunArgument,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File to write; an older one is replaced.")] = Path(
        "report.html"
    ),
    admin_token: AdminToken = None,
    tls_ca: CoordinatorCaOption = None,
) -> None:
    """Write a run as one page of HTML: figures, charts, audit, members and configuration. It needs no network."""
    from epochal.view.figures.report_page import write_report
    from epochal.view.figures.run_record import read_record

    if out.is_dir() or not out.absolute().parent.is_dir():
        raise InvalidInput(f"--out {out}: allowed: a file in a folder that exists")
    write_report(asyncio.run(read_record(run, given_token(admin_token), tls_ca, audits=True)), out)
    say(f"the report: {out}")
