"""`epochal export`: a run's checkpoint as a Hugging Face folder, on this machine, on the Hub or in a bucket."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.admin_token import AdminToken
from epochal.cli.logs import LogFormat, start_logging
from epochal.cli.options import CoordinatorCaOption
from epochal.cli.run import run_to_end, say
from epochal.cli.run_address import DEFAULT_RECONNECT_S, ReconnectOption, RunAddress, RunArgument, following_policy
from epochal.export.destinations import ALLOWED, parse_destination
from epochal.export.exporter import Exporter, ExportOptions
from state.config.model import LocalCheckpoint
from state.config.state_file import StateFile
from state.errors import InvalidInput, ModelUnavailable
from trainers.sources.float_types import FloatType
from trainers.sources.opening import names_a_source, open_source, parse_source
from trainers.sources.protocol import ModelSource

NO_TOKENIZER = "none"


def export(
    run: RunArgument,
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
    reconnect_s: ReconnectOption = DEFAULT_RECONNECT_S,
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
    policy = following_policy(reconnect_s, follows=follow)

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
