"""`epochal genesis`: make the model that a run starts from, and deliver it to its coordinator."""

import asyncio
from typing import Annotated

import typer

from epochal.cli.options.coordinators import OwnCoordinator
from epochal.coordinator_client.http import CoordinatorClient
from epochal.coordinator_client.operator import config_of
from epochal.state.documents import CheckpointRef
from epochal.state.errors import InvalidDocument, InvalidInput
from epochal.state.model.first_model import FirstDigest, FirstModel, first_checkpoint
from epochal.state.model.tensors import Float32Array
from epochal.trainers.first_parameters import make_first_model
from epochal.trainers.sources.open_model import parse_source


def genesis(
    at: OwnCoordinator,
    seed: Annotated[
        int | None, typer.Option(help="Make the parameters with this seed. Default: a seed from the run's id.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="Read the model from this folder or safetensors file, hf://ORG/NAME, s3://… or gs://….",
        ),
    ] = None,
) -> None:
    """Make the model that a run starts from and deliver it, where the coordinator's machine could not make it."""
    if seed is not None and file is not None:
        raise InvalidInput("give --seed or --file, not both")

    token = at.token

    async def deliver(operator: CoordinatorClient) -> CheckpointRef:
        document, state = await config_of(operator)
        source = None if file is None else await asyncio.to_thread(parse_source, file)
        first = await asyncio.to_thread(make_first_model, state, document.step - 1, seed, source)
        operator.use_token(token)
        return await _provide_genesis(operator, first)

    held = at.ask(deliver)
    typer.echo(f"the run starts from replica {held.step}, digest {held.replica_digest}")


async def _provide_genesis(operator: CoordinatorClient, first: FirstModel) -> CheckpointRef:
    """Deliver the run's model and first replica; raise `InvalidDocument` if the coordinator computed another digest."""
    digest = FirstDigest(first)

    def look(name: str, values: Float32Array) -> None:
        digest.add(name, values)

    sha256 = await asyncio.to_thread(first_checkpoint(first, look).sha256)  # read twice, and never held as a whole
    held = await operator.put_genesis(sha256, first_checkpoint(first))
    made = digest.hexdigest()
    if held.replica_digest != made:
        raise InvalidDocument(f"the coordinator holds replica {held.replica_digest}; this machine made {made}")
    return held
