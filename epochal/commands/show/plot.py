"""`epochal plot`: a run's charts as files."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.options.admin_token import AdminToken, given_token
from epochal.cli.options.shared import CoordinatorCaOption
from epochal.cli.output.printing import say
from epochal.runtime.visible_text import visible
from epochal.state.errors import InvalidInput
from epochal.tools.checkpoints.run_address import RunArgument


def plot(
    run: RunArgument,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the files; it is made if needed.")],
    admin_token: AdminToken = None,
    tls_ca: CoordinatorCaOption = None,
) -> None:
    """Draw a run's loss, members, throughput, bytes, waits and its last round as SVG and PNG (epochal\\[plot])."""
    from epochal.view.figures.charts import charts_of
    from epochal.view.figures.plots import draw_files, ensure_matplotlib
    from epochal.view.figures.run_record import read_record

    ensure_matplotlib("epochal plot")
    record = asyncio.run(read_record(run, given_token(admin_token), tls_ca))
    charts = charts_of(record)
    if not charts:
        raise InvalidInput(f"no round of run {visible(record.run_id)} has ended yet, so there is nothing to draw")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path in draw_files(charts, out):
            say(str(path))
    except OSError as error:
        raise InvalidInput(f"--out {out} cannot be written: {error.strerror or error}") from error
