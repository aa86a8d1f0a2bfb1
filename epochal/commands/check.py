"""`epochal check`: find every mistake in the files before anything starts."""

from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.state_files import read_data_config, read_state
from state.config.data_file import check_together
from state.config.state_file import ensure_supported
from state.errors import InvalidConfig, InvalidInput, Unsupported
from trainers.architectures import ARCHITECTURES

StatePath = Annotated[Path, typer.Argument(metavar="STATE.toml", help="State file of a run.")]
DataPath = Annotated[
    Path | None,
    typer.Option(
        "--data-config", metavar="DATA.toml", help="Also check this file of a data server, and whether it fits the run."
    ),
]


def check(state_path: StatePath, data_config: DataPath = None) -> None:
    """Check a state file, and a data file with it. Every mistake is reported at once (exit code 2)."""
    reports: list[str] = []
    state = data = None
    try:
        state = read_state(state_path)
        ensure_supported(state, str(state_path), ARCHITECTURES)
    except (InvalidInput, Unsupported) as error:
        reports.append(str(error))
    if data_config is not None:
        try:
            data = read_data_config(data_config)
        except InvalidInput as error:
            reports.append(str(error))
    if state is not None and data is not None and data_config is not None:
        try:
            check_together(state, str(state_path), data, str(data_config))
        except InvalidConfig as error:
            reports.append(str(error))
    if reports:
        typer.echo("\n".join(reports), err=True)
        raise typer.Exit(2)
    typer.echo(f"{state_path} is valid" + (f", and {data_config} fits it" if data_config else ""))
