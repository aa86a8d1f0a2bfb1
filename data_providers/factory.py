"""From a location to an open provider: what a state file's `data_location` says, or `--data` in its place.

`--data LOCATION` is `dummy`, `tcp://host:port`, `http://…` or `https://…` of one token file, the path of a token file,
of a folder of them or of a `data.toml`, or `name://…` for a provider that another package registers as the entry point
*name* in the group `epochal.data_providers`: a callable `(location: str, spec: DatasetSpec)` that is awaited for the
provider.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeAlias

from pydantic import ValidationError

from data_providers.dummy import DummyDataProvider
from data_providers.http.source import HttpSource
from data_providers.local import LocalDataProvider
from data_providers.protocol import CorruptData, DataProvider, DatasetSpec, SourceUnavailable
from data_providers.ranged import RangedDataProvider
from data_providers.tcp.client import DataServerAddress, TcpDataProvider
from state.config import StateFile, parse_data_config
from state.data_location import (
    DataConfig,
    DataLocation,
    DummyData,
    Http,
    HttpLocation,
    Local,
    Seeded,
    Server,
    SingleUrl,
)
from state.errors import InvalidInput, Mistake, Unsupported

ENTRY_POINT_GROUP = "epochal.data_providers"
DATA_CONFIG_SUFFIX = ".toml"
DEFAULT_TOKEN_SIZE_BYTES = 2
"""Of files whose location does not say: `Local = "path"` has no place for it."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A location that another package's provider reads: `name://location`."""

    name: str
    location: str


Override: TypeAlias = DummyData | Server | SingleUrl | Local | Registered
OpenRegistered: TypeAlias = Callable[[str, DatasetSpec], Awaitable[DataProvider]]


async def open_provider(state: StateFile, ticket: Callable[[], str], override: str | None = None) -> DataProvider:
    """The provider of the run's data for one client; it is the caller's to close.

    The size of tokens and the shuffle of token files are those of the run's `Http` location, or of a `data.toml`; else
    two bytes, and none.

    Args:
        state: the run's state file.
        ticket: gives the client's current ticket for data servers.
        override: what `--data` says, in place of the run's location.

    Raises:
        SourceUnavailable: the source does not answer now; retry.
        CorruptData: what the source holds is not the run's data; nothing will change by itself.
        Rejected: the source refuses this client.
        InvalidInput: `override`, or the `data.toml` that it names, is wrong; the user's fault.
        Unsupported: this version does not carry out this kind of location.
    """
    run_location = state.model.LLM.data_location
    spec = _spec_for(run_location, state.model.LLM.max_seq_len)
    location = _without_format(run_location) if override is None else parse_location(override)
    if isinstance(location, DummyData):
        return DummyDataProvider(spec)
    if isinstance(location, Server):
        return await _open_tcp(DataServerAddress(location.host, location.port, state.run_id), ticket, spec)
    if isinstance(location, SingleUrl):
        return await RangedDataProvider.open(await HttpSource.open([location.url]), spec)
    if isinstance(location, Local):
        return await asyncio.to_thread(_open_local, Path(location.path), spec)
    if isinstance(location, Registered):
        return await _registered(location.name)(location.location, spec)
    found = Mistake("model.LLM.data_location", location.variant, "another kind of location")
    raise Unsupported(state.run_id, (found,))


def parse_location(text: str) -> Override:
    """The location that `--data` names; this module's head lists the forms.

    Raises:
        InvalidInput: it has none of the forms; the user's fault.
    """
    scheme, separator, rest = text.partition("://")
    try:
        if text == "dummy":
            return DummyData()
        if scheme in ("http", "https") and separator:
            return SingleUrl(text)
        if scheme == "tcp" and separator:
            return Server(rest)
        return Registered(scheme, rest) if separator else Local(text)
    except ValidationError as error:
        raise InvalidInput(f"data location {text!r}: {error.errors()[0]['msg']}", location=text) from error


def open_described(config: DataConfig, folder: Path) -> LocalDataProvider:
    """The provider of the files that a `data.toml` describes; `provider.order.spec` is how they are read. Blocks.

    Args:
        config: the `data.toml`.
        folder: where the file lies; its `dir` is relative to it.

    Raises:
        SourceUnavailable, CorruptData: as `LocalDataProvider.open`.
    """
    seed = bytes(config.shuffle_seed) if config.shuffle_seed is not None else None
    spec = DatasetSpec(config.token_size.size_bytes, config.seq_len, seed)
    return LocalDataProvider.open(folder / config.dir, spec)


def _spec_for(location: DataLocation, sequence_length: int) -> DatasetSpec:
    if not isinstance(location, Http):
        return DatasetSpec(DEFAULT_TOKEN_SIZE_BYTES, sequence_length)
    seed = location.shuffle.seed if isinstance(location.shuffle, Seeded) else None
    return DatasetSpec(location.token_size_in_bytes.size_bytes, sequence_length, seed)


def _without_format(location: DataLocation) -> DataLocation | HttpLocation:
    return location.location if isinstance(location, Http) else location


def _open_local(path: Path, spec: DatasetSpec) -> DataProvider:
    if path.suffix != DATA_CONFIG_SUFFIX:
        return LocalDataProvider.open(path, spec)
    try:
        config = parse_data_config(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise SourceUnavailable(f"{path} cannot be read: {error}", path=str(path)) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 at byte {error.start}", path=str(path)) from error
    if config.seq_len != spec.sequence_length:
        raise InvalidInput(
            f"{path}: seq_len is {config.seq_len}; allowed: {spec.sequence_length}, the run's max_seq_len",
            path=str(path),
        )
    return open_described(config, path.parent)


async def _open_tcp(address: DataServerAddress, ticket: Callable[[], str], spec: DatasetSpec) -> DataProvider:
    provider = await TcpDataProvider.open(address, ticket)
    if provider.sequence_length != spec.sequence_length:
        await provider.aclose()
        raise CorruptData(
            f"{address} serves sequences of {provider.sequence_length} tokens, the run's have {spec.sequence_length}"
        )
    return provider


def _registered(name: str) -> OpenRegistered:
    found = entry_points(group=ENTRY_POINT_GROUP)
    if name not in found.names:
        known = ", ".join(sorted({"dummy", "tcp", "http", "https"} | found.names))
        raise InvalidInput(f"no data provider is called {name!r}; there are {known}", name=name)
    opener: OpenRegistered = found[name].load()
    return opener
