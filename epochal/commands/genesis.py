"""`epochal genesis`: make the model that a run starts from, and deliver it to its coordinator."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from coordinator_client.http import CoordinatorClient
from coordinator_client.operator import config_of
from epochal.cli.options import CoordinatorCaOption, UrlArgument
from epochal.commands.operator import AdminToken, ask, required_token
from state.documents import CheckpointRef
from state.errors import InvalidDocument, InvalidInput
from state.replica import Replica, checkpoint_bytes, replica_digest
from state.wire import sha256_hex
from trainers.genesis import make_first_replica


def genesis(
    url: UrlArgument,
    seed: Annotated[
        int | None, typer.Option(help="Make the parameters with this seed. Default: a seed from the run's id.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Load the parameters from this safetensors file, or a run's checkpoint."),
    ] = None,
    admin_token: AdminToken = None,
    tls_ca: CoordinatorCaOption = None,
) -> None:
    """Make the model that a run starts from and deliver it, where the coordinator's machine could not make it."""
    if seed is not None and file is not None:
        raise InvalidInput("give --seed or --file, not both")

    token = required_token(admin_token)

    async def deliver(operator: CoordinatorClient) -> CheckpointRef:
        document, state = await config_of(operator)
        replica = await asyncio.to_thread(make_first_replica, state, document.step - 1, seed, file)
        operator.use_token(token)
        return await _provide_genesis(operator, replica)

    held = ask(url, tls_ca, deliver)
    typer.echo(f"the run starts from replica {held.step}, digest {held.replica_digest}")


async def _provide_genesis(operator: CoordinatorClient, replica: Replica) -> CheckpointRef:
    """Deliver the run's first replica, and return the reference under which the coordinator keeps it.

    Raises:
        Refused: the run has a first checkpoint already, or cannot start from this one; or the token is wrong.
        InvalidDocument: the coordinator computed another digest than this machine; do not use the run.
    """
    data = checkpoint_bytes(replica)
    held = await operator.put_genesis(sha256_hex(data), data)
    if held.replica_digest != replica_digest(replica):
        raise InvalidDocument(
            f"the coordinator holds replica {held.replica_digest}; this machine made {replica_digest(replica)}"
        )
    return held
