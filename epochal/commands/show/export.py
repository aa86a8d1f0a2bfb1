"""`epochal export`: a run's checkpoint as a Hugging Face folder, on this machine and on the Hub."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.options.admin_token import AdminToken
from epochal.cli.options.shared import CoordinatorCaOption, local_path
from epochal.cli.output.logs import LogFormat, start_logging
from epochal.cli.output.printing import run_to_end, say
from epochal.state.errors import InvalidInput
from epochal.tools.checkpoints.run_address import (
    DEFAULT_RECONNECT_S,
    ReconnectOption,
    RunAddress,
    RunArgument,
    following_policy,
)
from epochal.tools.export.destinations import ALLOWED, parse_destination
from epochal.tools.export.exporter import Exporter, ExportOptions
from epochal.tools.export.tokenizer import find_tokenizer
from epochal.trainers.sources.float_types import FloatType


def export(
    run: RunArgument,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", parser=local_path, help="New folder; it appears when it is complete."),
    ],
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
    merged: Annotated[
        bool,
        typer.Option("--merged", help="Of a run that trains an adapter: write its base, changed by it, as a model."),
    ] = False,
    base: Annotated[
        Path | None,
        typer.Option(
            "--base",
            metavar="DIR",
            parser=local_path,
            help="With --merged: the base's folder. Default: the run's repository on the Hub.",
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
        raise InvalidInput("--keep goes with --follow: it says how many checkpoints to keep")
    if base is not None and not merged:
        raise InvalidInput("--base goes with --merged: an adapter alone is written without its base")
    start_logging(LogFormat.TEXT, verbose=False)
    destination = None if to is None else parse_destination(to)
    policy = following_policy(reconnect_s, follows=follow)

    async def main() -> None:
        async with RunAddress(run, admin_token, tls_ca).open(policy) as exported:
            found = await asyncio.to_thread(find_tokenizer, await exported.now(), tokenizer)
            if found.said:
                say(found.said)
            exporter = Exporter(exported, ExportOptions(out, dtype, found.files, destination, keep, merged, base), say)
            await (exporter.follow(policy) if follow else exporter.once(step))

    run_to_end(main())
