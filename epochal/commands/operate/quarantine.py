"""`epochal quarantine list` and `release`: the batches that left a run because clients failed on them."""

from typing import Annotated

import typer

from epochal.cli.options.coordinators import AskedCoordinator, OwnCoordinator
from epochal.cli.options.shared import JsonOption
from epochal.coordinator_client.operator import parse_batches
from epochal.state.intervals import BatchId, total_batches
from epochal.state.messages.requests import FailedBatches
from epochal.state.text.amounts import counted
from epochal.state.text.visible import visible
from epochal.state.wire import canonical_json

SHOWN_ID_DIGITS = 12


def list_(at: AskedCoordinator, as_json: JsonOption = False) -> None:
    """List quarantined batches, and batches that wait for another attempt, with the reason of each."""
    found = at.ask(lambda operator: operator.failed_data())
    if as_json:
        typer.echo(canonical_json(found).decode())
        return
    if not found.quarantined and not found.waiting:
        typer.echo("no batch has failed")
    for title, items in (("quarantined", found.quarantined), ("waiting for another attempt", found.waiting)):
        if items:
            typer.echo(f"{title}: {counted(total_batches(item.batch_id for item in items), 'batch', 'batches')}")
        for item in items:
            typer.echo(f"  {_line(item)}")


def _line(item: FailedBatches) -> str:
    clients = ", ".join(client_id[:SHOWN_ID_DIGITS] for client_id in item.clients)
    return f"{_numbers(item.batch_id)}  {visible(item.message)}" + (f"  (clients {clients})" if clients else "")


def _numbers(interval: BatchId) -> str:
    """Return the interval as `release` takes it."""
    return f"{interval.start}" if interval.count == 1 else f"{interval.start}-{interval.end}"


def release(
    at: OwnCoordinator,
    batches: Annotated[
        list[str], typer.Argument(metavar="BATCHES", help="Numbers of batches, such as 17 or 17-20, or all.")
    ],
) -> None:
    """Attempt quarantined batches again, once their data are mended. A finished run continues for this."""
    wanted = parse_batches(batches)
    released = at.order(lambda operator: operator.release(wanted))
    typer.echo(f"released {counted(total_batches(released), 'batch', 'batches')}: {', '.join(map(_numbers, released))}")
