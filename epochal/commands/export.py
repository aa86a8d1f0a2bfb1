"""`epochal export`: a run's checkpoint as a Hugging Face folder, on this machine, on the Hub or in a bucket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from coordinator.store.open import open_store_reader
from coordinator_client.http import CoordinatorClient
from coordinator_client.operator import check_admin_token
from epochal.cli.logs import LogFormat, start_logging
from epochal.cli.options import CoordinatorCaOption, trusted
from epochal.cli.run import run_to_end, say
from epochal.commands.operator import AdminToken, required_token
from epochal.export.destinations import ALLOWED, parse_destination
from epochal.export.exporter import Exporter, ExportOptions
from epochal.export.runs import ExportedRun, ServedRun, StoredRun
from runtime.retry import DEFAULT_BOUND_S, RetryPolicy
from state.config.model import LocalCheckpoint
from state.config.state_file import StateFile
from state.errors import InvalidInput, ModelUnavailable
from trainers.sources.float_types import FloatType
from trainers.sources.opening import names_a_source, open_source, parse_source
from trainers.sources.protocol import ModelSource

NO_TOKENIZER = "none"


@dataclass(frozen=True, slots=True)
class RunAddress:
    """How to reach the run: a store or a coordinator's URL, and what the latter needs."""

    place: str
    admin_token: str | None
    tls_ca: Path | None

    @contextlib.asynccontextmanager
    async def open(self, policy: RetryPolicy) -> AsyncIterator[ExportedRun]:
        """Yield the run. `policy` says how long to wait for a coordinator that does not answer yet."""
        if not self.place.startswith(("http://", "https://")):
            yield StoredRun(open_store_reader(self.place))
            return
        token = required_token(self.admin_token)
        check_admin_token(token)
        async with await CoordinatorClient.connect(self.place, policy, trusted(self.tls_ca)) as client:
            yield ServedRun(client, token)


def export(
    run: Annotated[
        str,
        typer.Argument(
            metavar="STORE|URL",
            help="Folder that keeps the run (the coordinator's --store), or the coordinator's address.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="New folder; it appears when it is complete.")],
    step: Annotated[
        int | None, typer.Option(min=0, help="Export the checkpoint of this step. Default: the newest.")
    ] = None,
    dtype: Annotated[FloatType, typer.Option(help="Type of the stored numbers.")] = FloatType.FLOAT32,
    to: Annotated[str | None, typer.Option(metavar="URL", help=f"Upload the folder: {ALLOWED}.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Export every new checkpoint to DIR/step-…, until the run has finished.")
    ] = False,
    keep: Annotated[
        int | None, typer.Option(min=1, help="With --follow: keep the last K. Default: all.", metavar="K")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Copy the tokenizer of this folder (a path, hf://…, s3://… or gs://…); none copies none. Default: "
            "that of the run's `checkpoint`.",
        ),
    ] = None,
    reconnect_s: Annotated[
        float,
        typer.Option("--reconnect", min=0, help="With --follow: seconds to go on while something does not answer."),
    ] = DEFAULT_BOUND_S,
    admin_token: AdminToken = None,
    tls_ca: CoordinatorCaOption = None,
) -> None:
    """Write a run's checkpoint as a Hugging Face folder, which `from_pretrained` loads, and upload it with --to."""
    if follow and step is not None:
        raise InvalidInput("--follow exports every new checkpoint; leave --step out")
    if keep is not None and not follow:
        raise InvalidInput("--keep says how many checkpoints --follow keeps; give both or neither")
    start_logging(LogFormat.TEXT, verbose=False)
    destination = None if to is None else parse_destination(to, by_step=follow)
    policy = RetryPolicy(bound_s=reconnect_s) if follow else RetryPolicy(attempts=1)

    async def main() -> None:
        async with RunAddress(run, admin_token, tls_ca).open(policy) as exported:
            state = (await exported.now()).state
            files = await asyncio.to_thread(_tokenizer_files, state, tokenizer)
            exporter = Exporter(exported, ExportOptions(out, dtype, files, destination, keep), say)
            await (exporter.follow(policy) if follow else exporter.once(step))

    run_to_end(main())


def _tokenizer_files(state: StateFile, place: str | None) -> Mapping[str, bytes]:
    """Return the tokenizer's files: those at the place, or those of the source that the run's parameters come from."""
    source = _tokenizer_source(state, place)
    if source is None:
        return {}
    try:
        found = dict(source.tokenizer_files())
    except (InvalidInput, ModelUnavailable) as error:
        hint = "--tokenizer names another place, and --tokenizer none copies no tokenizer"
        raise type(error)(f"the tokenizer cannot be read: {error.message}; {hint}") from error
    if not found and place is not None:
        raise InvalidInput(f"--tokenizer {place}: there is no tokenizer")
    return found


def _tokenizer_source(state: StateFile, place: str | None) -> ModelSource | None:
    if place == NO_TOKENIZER:
        return None
    if place is not None:
        return parse_source(place)
    checkpoint = state.model.LLM.checkpoint
    if isinstance(checkpoint, LocalCheckpoint) and not Path(checkpoint.path).exists():
        return None  # it is on the machine that made the first checkpoint
    return open_source(checkpoint) if names_a_source(checkpoint) else None
