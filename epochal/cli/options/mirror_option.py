"""The option of clients that names mirrors, and what opens them."""

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from epochal.coordinator_client.mirrors import Mirror
from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.http.http_client import check_url
from epochal.state.config.state_file import StateFile

MirrorOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="Fetch checkpoints from this copy of the coordinator's folder of blobs too; may be given several times.",
    ),
]


def mirror_opener(
    urls: Sequence[str], verify: bool | str, reach: Reach | None
) -> Callable[[StateFile], Sequence[Mirror]]:
    """Return what opens the mirrors that the user names, and those of the run's state file, which `reach` may limit."""
    for url in urls:
        check_url(url, "mirror")  # a mistake ends the command before it asks the coordinator

    def open_mirrors(state: StateFile) -> Sequence[Mirror]:
        own = dict.fromkeys(url.rstrip("/") for url in urls)
        others = dict.fromkeys(url.rstrip("/") for url in state.client.mirrors)
        opened = [Mirror.at(url, verify, None if reach is None else reach.of_named(url)) for url in own]
        return [*opened, *(Mirror.at(url, verify, reach) for url in others if url not in own)]

    return open_mirrors
