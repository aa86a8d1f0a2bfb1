"""`epochal check`: find every mistake in the files before anything starts."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.state_files import read_data_config, read_state
from state.config.data_file import check_together
from state.config.state_file import ensure_supported
from state.errors import InvalidInput, Unsupported
from trainers.architectures import ARCHITECTURES


def check(
    state_path: Annotated[Path, typer.Argument(metavar="STATE.toml", help="State file of a run.")],
    data_config: Annotated[
        Path | None,
        typer.Option(metavar="DATA.toml", help="Also check this file of a data server, and whether it fits the run."),
    ] = None,
) -> None:
    """Check a state file, and a data file with it. Every mistake is reported at once (exit code 2)."""
    reports: list[str] = []
    state = None
    with _collecting(reports):
        state = read_state(state_path)
        ensure_supported(state, str(state_path), ARCHITECTURES)
    if data_config is not None:
        with _collecting(reports):
            data = read_data_config(data_config)
            if state is not None:
                check_together(state, str(state_path), data, str(data_config))
    if reports:
        typer.echo("\n".join(reports), err=True)
        raise typer.Exit(2)
    typer.echo(f"{state_path} is valid" + (f", and {data_config} fits it" if data_config else ""))


@contextlib.contextmanager
def _collecting(reports: list[str]) -> Iterator[None]:
    try:
        yield
    except (InvalidInput, Unsupported) as error:
        reports.append(str(error))
