"""`epochal status`, `pause`, `resume`, `eject`, `absolve` and `fingerprint`: the commands of a run's operator."""

import re
import sys
from typing import Annotated

import typer
from rich.console import Console

from epochal.cli.options.coordinators import AskedCoordinator, OwnCoordinator
from epochal.cli.options.shared import JsonOption
from epochal.coordinator_client.operator import check_client_id, finish_run, pause_run, resume_run
from epochal.coordinator_client.operator import eject as eject_client
from epochal.state.errors import InvalidInput
from epochal.state.phase_names import ROUND_PHASES, RunState
from epochal.state.text.amounts import counted
from epochal.state.text.visible import visible
from epochal.state.wire import ClientId, Sha256, canonical_json
from epochal.view.status_panel import status_panel

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def status(at: AskedCoordinator, as_json: JsonOption = False) -> None:
    """Show a run: phase, progress, clients, loss."""
    found = at.ask(lambda operator: operator.status())
    if as_json:
        typer.echo(canonical_json(found).decode())
    else:
        Console().print(status_panel(found))


def pause(at: OwnCoordinator) -> None:
    """Pause a run: finish the round, save a checkpoint, and wait."""
    before, after = at.order(pause_run)
    if before.run_state is RunState.PAUSED:
        typer.echo("the run is paused already")
    elif after.run_state is RunState.PAUSED:
        typer.echo("the run is paused")
    elif after.run_state in ROUND_PHASES:
        typer.echo("the run will pause after this round")
    else:
        typer.echo(f"the run will pause after {after.run_state.value}")


def resume(at: OwnCoordinator) -> None:
    """Let a paused run continue."""
    before, _ = at.order(resume_run)
    typer.echo("the run continues" if before.pausing else "the run is not paused")


def finish(
    at: OwnCoordinator,
    after_step: Annotated[
        int | None, typer.Option("--after-step", min=0, metavar="N", help="The last step that takes new data.")
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Take an earlier end back: the run ends after total_steps again.")
    ] = False,
) -> None:
    """End a run after a step, with its last checkpoint; or take that back, or move it."""
    if cancel == (after_step is not None):
        raise InvalidInput("give either --after-step N or --cancel")
    before, after = at.order(lambda operator: finish_run(operator, after_step))
    if after.run_state is RunState.FINISHED:
        typer.echo("the run is finished")
    elif after_step is not None:
        typer.echo(f"the run will end after step {after_step}")
    elif before.finish_after is None:
        typer.echo(f"no such end was set: the run ends after step {after.total_steps}")
    else:
        typer.echo(f"the run will not end early: it ends after step {after.total_steps}")


def eject(
    at: OwnCoordinator,
    client_id: Annotated[
        str, typer.Argument(metavar="CLIENT", help="Id of the client, or the beginning of it that `status` shows.")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask on a terminal: it cannot be taken back.")] = False,
) -> None:
    """Remove a client from a run. Its key cannot join again."""
    check_client_id(client_id)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Eject client {client_id} for ever?", abort=True)
    ejected = at.order(lambda operator: eject_client(operator, client_id))
    typer.echo(f"client {ejected} was ejected")


def absolve(
    at: OwnCoordinator,
    client_id: Annotated[str, typer.Argument(metavar="CLIENT", help="Whole id of the client, as the notice shows it.")],
) -> None:
    """Let a client join again that replays had convicted, or trust one again of which each result is replayed."""
    check_client_id(client_id, is_whole=True)
    at.order(lambda operator: operator.absolve(ClientId(client_id)))
    typer.echo(f"client {client_id} is absolved; if it was ejected it may join again, as a new one")


def fingerprint(
    at: OwnCoordinator,
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="FINGERPRINT", help="Fingerprint of the right data, as `epochal data inspect LOCATION` shows it."
        ),
    ] = None,
    free: Annotated[
        bool, typer.Option("--free", help="Take an earlier pin back: members decide until the first applied round.")
    ] = False,
) -> None:
    """Show which data a run trains on and which data its members have, or pin the right data."""
    if value is not None and (free or not _FINGERPRINT.fullmatch(value)):
        raise InvalidInput("give the 64 hex digits that `epochal data inspect` shows, or --free, or neither to show it")
    pinned = None if value is None else Sha256(value)
    if value is not None or free:
        at.order(lambda operator: operator.set_fingerprint(pinned))
        typer.echo("the pin was taken back" if value is None else f"the run's data must have fingerprint {value}")
        return
    found = at.ask(lambda operator: operator.status())
    typer.echo(f"{found.data_fingerprint or 'not decided'} ({found.data_decided_by})")
    for dataset in found.datasets:
        typer.echo(f"  {counted(dataset.member_count, 'member')}: {visible(dataset.data_fingerprint)}")
