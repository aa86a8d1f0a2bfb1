"""`epochal publish`: a run as files that anybody may copy and check."""

import asyncio
from typing import Annotated

import typer

from epochal import __version__
from epochal.cli.options.shared import JsonOption, StoreArgument
from epochal.cli.output.printing import say
from epochal.state.text.amounts import counted, shown_bytes
from epochal.state.wire import canonical_json
from epochal.tools.published_place import ALLOWED, published_files


def publish(
    store: StoreArgument,
    to: Annotated[str, typer.Argument(metavar="DEST", help=f"Where the files are to lie: {ALLOWED}.")],
    as_json: JsonOption = False,
) -> None:
    """Publish a run: all that anybody needs to check it, without the coordinator and without its secrets.

    Repeat it after a failure, or when the run has gone on: files that are there and right are not written again. A
    round under way is published with the results that have arrived; pause the run first if nobody is to see those.
    """
    from epochal.coordinator.proof.publishing import Versions, publish

    files = published_files(to)
    made = asyncio.run(publish(store, files, Versions.here(__version__), (lambda _: None) if as_json else say))
    if as_json:
        typer.echo(canonical_json(made).decode())
        return
    size_bytes = sum(file.size_bytes for file in made.files)
    size = f"{counted(len(made.files), 'file')}, {shown_bytes(size_bytes)}"
    say(f"published run {made.run_id} at step {made.step}: {size} in {files.name}")
    say(f"check it as its README.md says, or here: epochal audit {to}")
