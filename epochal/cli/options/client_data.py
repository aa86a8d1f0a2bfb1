"""The options for the place of a client's data, and their opening."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from epochal.data_providers.locations import AnyLocation, parse_location
from epochal.data_providers.open_data import open_provider
from epochal.data_providers.protocol import DataProvider
from epochal.data_providers.sources.cache import DEFAULT_CACHE_BYTES, BlockCache
from epochal.data_providers.tcp.client_connection import DataServerAccess
from epochal.run_manager.context import RunAccess
from epochal.runtime.permissions import Permissions
from epochal.state.config.data_location import Local, WeightedHttp
from epochal.state.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class DataChoice:
    """The place of the run's data for this client (None: as in the state file), and the place of their cache."""

    data: Annotated[
        str | None,
        typer.Option(
            metavar="LOCATION",
            help="Where this machine finds the run's data: a path, a URL, or tcp://host:port."
            " Default: where the run's state file says.",
        ),
    ] = None
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Ask data servers on other machines also without TLS, so that the network can read the ticket.",
        ),
    ] = False
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder that keeps data downloaded over HTTP or from buckets; clients may share it."
        ),
    ] = None
    cache_bytes: Annotated[int, typer.Option(help="Maximum size of --cache in bytes.")] = DEFAULT_CACHE_BYTES

    def opener(self, trust: bool | str, permissions: Permissions) -> Callable[[RunAccess], Awaitable[DataProvider]]:
        """Return what opens a run's data. Raise `InvalidInput` where `--data` names nothing.

        Args:
            trust: how data servers are asked, as `DataServerAccess` takes it.
            permissions: what the run's documents may use of this machine.
        """
        if self.data is not None:
            check_place(parse_location(self.data))  # a mistake ends the command before it asks the coordinator
        cache = None if self.cache is None else BlockCache(self.cache, self.cache_bytes)

        async def open_data(access: RunAccess) -> DataProvider:
            servers = DataServerAccess(access.ticket, access.document_version, trust, self.insecure)
            return await open_provider(access.state, servers, permissions, self.data, cache)

        return open_data


def check_place(location: AnyLocation) -> None:
    """Raise `InvalidInput` for a path on this machine at which nothing is."""
    place = location.path if isinstance(location, Local) else ""
    if isinstance(location, WeightedHttp) and "://" not in location.place:
        place = location.place
    if place and not Path(place).exists():
        raise InvalidInput(f"--data {place}: there is no such file or folder ({Path(place).absolute()})", path=place)
