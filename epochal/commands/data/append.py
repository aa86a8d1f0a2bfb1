"""`epochal data append`: report to a run that files were appended to its data."""

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from epochal.batching.data_check import DataNeeds, look_at_appended
from epochal.batching.packing.packed_batches import Packing
from epochal.cli.options.admin_token import AdminToken, required_token
from epochal.cli.options.shared import CoordinatorCaOption, UrlArgument, trusted
from epochal.coordinator_client.operator import config_of, connect_operator
from epochal.data_providers.description import description_of
from epochal.data_providers.open_data import OpenOptions, open_location, run_data
from epochal.data_providers.protocol import DataProvider
from epochal.data_providers.providers.growing_data import found_among, order_of
from epochal.runtime.permissions import OWNERS
from epochal.runtime.worker_thread import WorkerThread
from epochal.state.config.data_location import Server
from epochal.state.config.model_table import DataType, ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.dataset_descriptions import dataset_difference
from epochal.state.errors import DataError, InvalidInput
from epochal.state.generations import DataAppend, Generations, SizedDataset
from epochal.state.intervals import MAX_INDEX
from epochal.state.messages.requests import RunStatus
from epochal.tools.run_inputs import vocabulary_of_model


def append(
    url: UrlArgument,
    location: Annotated[
        str | None,
        typer.Argument(
            metavar="[LOCATION]",
            help="The data with the appended files, as `epochal client --data` takes them. Default: the run's own.",
        ),
    ] = None,
    not_before: Annotated[
        int,
        typer.Option(
            "--from",
            min=0,
            max=MAX_INDEX - 1,
            help="Begin with the first pass from this data index on, or a later one.",
        ),
    ] = 0,
    undo: Annotated[
        bool, typer.Option("--undo", help="Take the last append back, which is possible until it is reached.")
    ] = False,
    admin_token: AdminToken = None,
    tls_ca: CoordinatorCaOption = None,
) -> None:
    """Tell a run that files were appended to its data; they count from a later pass on, which is shown.

    The names of the new files must come after those of all others, and those must not have changed.
    """
    if undo and (location is not None or not_before):
        raise InvalidInput("--undo takes the last append back; it goes with no location and no --from")
    asyncio.run(_append(url, location, not_before, undo, required_token(admin_token), tls_ca))


async def _append(url: str, location: str | None, not_before: int, undo: bool, token: str, tls_ca: Path | None) -> None:
    request = None
    async with await connect_operator(url, None, trusted(tls_ca)) as reader:
        status, (document, state) = await reader.status(), await config_of(reader)
        spec = state.model.LLM.spec if document.model_sha256 is None else await reader.model(document.model_sha256)
    if not undo:
        try:
            request = await _request(_Run(status, state, spec), location, not_before)
        except DataError as error:
            raise InvalidInput(error.message, **error.context) from error
    async with await connect_operator(url, token, trusted(tls_ca)) as operator:
        found = (await operator.append_data(request)).generations
    if request is not None:
        _show(found, status)
    else:
        typer.echo("the last append was taken back" if found else "the run's data are those that it began with")


@dataclass(frozen=True, slots=True)
class _Run:
    """A run as its coordinator has it: its status, configuration and model."""

    status: RunStatus
    state: StateFile
    model: ModelSpec


async def _request(run: _Run, text: str | None, not_before: int) -> DataAppend:
    """Open the data, find the run's among their first files, and return what they have grown from and to.

    Raises `InvalidInput` if the run's model cannot take the other files, of which some are read.
    """
    state = run.state
    location, spec = run_data(state, text)
    if isinstance(location, Server):
        raise InvalidInput("a data server serves only a run's members; name the folder or the data.toml that it serves")
    options = OpenOptions(state.run_id, None, OWNERS, packs=state.model.LLM.data_type is DataType.FINETUNING)
    async with contextlib.aclosing(await open_location(location, spec, options)) as provider:
        growth = await asyncio.to_thread(_growth_of, provider, run.status, not_before)
        await _check_appended(run, provider, growth.grown_from.file_count)
        return growth


async def _check_appended(run: _Run, provider: DataProvider, file_count: int) -> None:
    """Raise `InvalidInput` if the run's model cannot take the files after the first ones."""
    vocabulary = vocabulary_of_model(run.model)
    async with contextlib.aclosing(WorkerThread("epochal-append")) as worker:
        packing = Packing.of(run.state, vocabulary, worker, OWNERS)
        findings = await look_at_appended(provider, DataNeeds.of(run.state, vocabulary, packing), file_count)
    for note in findings.notes:
        typer.echo(f"note: {note}", err=True)
    if findings.problems:
        raise InvalidInput(
            f"the run cannot be trained on the appended files: {'; '.join(findings.problems)}. Nothing was appended"
        )


def _growth_of(provider: DataProvider, status: RunStatus, not_before: int) -> DataAppend:
    known = status.data_generations
    newest = known[-1].fingerprint if known else status.data_fingerprint
    if newest is None:
        raise InvalidInput("it is not decided yet which data are the run's; pin them: `epochal fingerprint`")
    order = order_of(provider)
    if order is None:
        raise InvalidInput(
            "only data in files can grow. The sources of a mix, and every phase of its schedule, stay what they were "
            "when the run began; allowed: a schedule that names all of them from the beginning, or another run that "
            "begins with this one's model (`epochal export`, then `checkpoint = { Local = … }` in its state.toml)"
        )
    found = found_among(provider, newest)
    if found is None:
        described = {item.data_fingerprint: item.dataset for item in status.datasets}
        difference = dataset_difference(description_of(provider), described.get(newest))
        raise InvalidInput(
            f"the first files here are not the run's data, which have fingerprint {newest}. The names of appended "
            f"files must come after those of all others, and those must not change. Here {difference}"
        )
    if found.file_count == len(order.files):
        raise InvalidInput(f"no file was appended: these are the run's {found.file_count} files")
    is_by_content = newest == order.fingerprint_of_first(found.file_count)
    grown = order.fingerprint_of_first(len(order.files), by_content=is_by_content)
    return DataAppend(
        SizedDataset(newest, found.sample_count, found.file_count),
        SizedDataset(grown, order.sequence_count, len(order.files)),
        not_before,
    )


def _show(generations: Generations, status: RunStatus) -> None:
    newest = generations[-1]
    typer.echo(
        f"from data index {newest.first_data_index} on, where a pass begins, the run's data are {newest.sample_count} "
        f"samples in {newest.file_count} file{'s' * (newest.file_count != 1)}, with fingerprint {newest.fingerprint}"
    )
    typer.echo(
        f"clients and data servers need the new files before the run comes there, and look for them by themselves; it "
        f"has assigned the data indices below {status.next_data_index}"
    )
