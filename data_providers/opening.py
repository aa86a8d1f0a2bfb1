"""From a location to an open provider: what a state file's `data_location` says, or `--data` in its place.

`--data LOCATION` is `dummy`, `tcp://host:port`, `http://…` or `https://…` of one token file, `s3://bucket/folder`,
`gs://bucket/folder` or `az://account/container/folder`, the path of a token file, of a folder of them, of a parquet or
JSON-lines file or of a `data.toml`, the path or URL of a mix (`….json`), or `name://…` for a provider that another
package registers as the entry point *name* in the group `epochal.data_providers`: a callable
`(location: str, spec: DatasetSpec)` that is awaited for the provider.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from data_providers.dummy import DummyDataProvider
from data_providers.formats.discovery import SUFFIXES
from data_providers.json_lines import SUFFIX as JSON_LINES_SUFFIX
from data_providers.json_lines import JsonLinesDataProvider
from data_providers.local import LocalDataProvider
from data_providers.mixture import MAX_SOURCES
from data_providers.preprocessed import SUFFIX as PARQUET_SUFFIX
from data_providers.preprocessed import PreprocessedDataProvider
from data_providers.protocol import CorruptData, DataProvider, DatasetSpec, Rejected, SourceUnavailable
from data_providers.ranged import RangedDataProvider
from data_providers.sources.cache import BlockCache, CachedSource
from data_providers.sources.http.manifests import open_checked
from data_providers.sources.http.source import HttpSource, without_secrets
from data_providers.sources.manifest import VerifiedSource
from data_providers.sources.object_store import ObjectStoreSource
from data_providers.sources.protocol import ByteSource, read
from data_providers.splits import DEFAULT_SPLIT
from data_providers.tcp.client import DataServerAddress, TcpDataProvider
from data_providers.weighted import Weighted, WeightedDataProvider, of_source
from state.config.data_location import (
    MAX_FILES,
    S3,
    Azure,
    DataConfig,
    DataLocation,
    DummyData,
    Gcp,
    Http,
    HttpLocation,
    Local,
    NumberedFiles,
    Preprocessed,
    Seeded,
    Server,
    SingleUrl,
    Urls,
    WeightedHttp,
)
from state.config.model import DataType
from state.config.schema import Section
from state.config.state_file import StateFile, parse_data_config
from state.errors import DataError, EpochalError, InvalidInput

ENTRY_POINT_GROUP = "epochal.data_providers"
DATA_CONFIG_SUFFIX = ".toml"
MIX_SUFFIX = ".json"
DEFAULT_TOKEN_SIZE_BYTES = 2
"""Of files whose location does not say: `Local = "path"` has no place for it."""
MAX_MIX_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class Registered:
    """A location that another package's provider reads: `name://location`."""

    name: str
    location: str


Override: TypeAlias = DummyData | Server | SingleUrl | Gcp | S3 | Azure | Local | WeightedHttp | Registered
AnyLocation: TypeAlias = DataLocation | HttpLocation | Registered
OpenRegistered: TypeAlias = Callable[[str, DatasetSpec], Awaitable[DataProvider]]


@dataclass(frozen=True, slots=True)
class Access:
    """What a client brings to open its data with.

    Attributes:
        run_id: names the run to a data server.
        ticket: gives the client's current ticket for data servers.
        cache: where what comes from HTTP servers and buckets is kept; None keeps nothing.
        packs: whether what comes is packed before it is trained on, so that samples are JSON records, or rows of
            parquet files of any length.
        split: which of a folder's splits is meant, of JSON lines and parquet files.
    """

    run_id: str
    ticket: Callable[[], str]
    cache: BlockCache | None = None
    packs: bool = False
    split: str = DEFAULT_SPLIT


async def open_provider(
    state: StateFile, ticket: Callable[[], str], override: str | None = None, cache: BlockCache | None = None
) -> DataProvider:
    """The provider of the run's data for one client; it is the caller's to close.

    The size of tokens and the shuffle of token files are those of the run's `Http` location, or of a `data.toml`; else
    two bytes, and none.

    Args:
        state: the run's state file.
        ticket: gives the client's current ticket for data servers.
        override: what `--data` says, in place of the run's location.
        cache: as in `Access`.

    Raises:
        SourceUnavailable: the source does not answer now; retry.
        CorruptData: what the source holds is not the run's data; nothing will change by itself.
        Rejected: the source refuses this client.
        InvalidInput: `override`, or a file that a location names, is wrong, or an extra is missing; the user's fault.
    """
    run_location = state.model.LLM.data_location
    spec = spec_for(run_location, state.model.LLM.max_seq_len)
    location: AnyLocation = run_location if override is None else parse_location(override)
    if isinstance(location, Local) and isinstance(run_location, Preprocessed):
        location = Preprocessed(location.path)
    packs = state.model.LLM.data_type is DataType.FINETUNING
    return await open_location(location, spec, Access(state.run_id, ticket, cache, packs))


async def open_location(location: AnyLocation, spec: DatasetSpec, access: Access) -> DataProvider:
    """The provider of one location's data. Raises what `open_provider` does."""
    if isinstance(location, Http):
        return await open_location(location.location, spec_for(location, spec.sequence_length), access)
    if isinstance(location, DummyData):
        return DummyDataProvider(spec)
    if isinstance(location, Server):
        return await _open_tcp(DataServerAddress(location.host, location.port, access.run_id), access.ticket, spec)
    if isinstance(location, SingleUrl | Urls | NumberedFiles):
        urls = (location.url,) if isinstance(location, SingleUrl) else location.urls
        return await _open_ranged(await open_checked(urls), spec, access)
    if isinstance(location, Gcp | S3 | Azure):
        source = await VerifiedSource.where_listed(await ObjectStoreSource.open(location))
        return await _open_ranged(source, spec, access)
    if isinstance(location, Local):
        opened = _open_samples if access.packs else _open_local
        return await asyncio.to_thread(opened, Path(location.path), spec, access)
    if isinstance(location, Preprocessed):
        return await asyncio.to_thread(_open_preprocessed, Path(location.path), spec, access)
    if isinstance(location, WeightedHttp):
        return await _open_mix(location.place, spec, access)
    return await _open_registered(location, spec)


async def _open_ranged(source: ByteSource, spec: DatasetSpec, access: Access) -> DataProvider:
    """A provider over a source, which is kept in the cache if there is one."""
    return await RangedDataProvider.open(source if access.cache is None else CachedSource(source, access.cache), spec)


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
            return WeightedHttp(text) if text.partition("?")[0].endswith(MIX_SUFFIX) else SingleUrl(text)
        if text.endswith(MIX_SUFFIX) and not separator:
            return WeightedHttp(text)
        if scheme in ("s3", "gs") and separator:
            bucket, _, folder = rest.partition("/")
            kind = S3 if scheme == "s3" else Gcp
            return kind(bucket_name=bucket, filter_directory=folder)
        if scheme == "az" and separator:
            account, _, path = rest.partition("/")
            container, _, folder = path.partition("/")
            return Azure(account_name=account, container_name=container, filter_directory=folder)
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


def spec_for(location: AnyLocation, sequence_length: int) -> DatasetSpec:
    """How the files of a location are read: what it says of them itself, or two-byte tokens in the files' order."""
    if not isinstance(location, Http):
        return DatasetSpec(DEFAULT_TOKEN_SIZE_BYTES, sequence_length)
    seed = location.shuffle.seed if isinstance(location.shuffle, Seeded) else None
    return DatasetSpec(location.token_size_in_bytes.size_bytes, sequence_length, seed)


class _MixEntry(Section):
    """One line of a mix."""

    location: DataLocation
    weight: Annotated[float, Field(gt=0)]


_MIX = TypeAdapter(Annotated[list[_MixEntry], Field(min_length=1, max_length=MAX_SOURCES)])


async def _open_mix(place: str, spec: DatasetSpec, access: Access) -> DataProvider:
    entries = _parse_mix(await _mix_text(place), without_secrets(place) if "://" in place else place)
    folder = None if "://" in place else Path(place).parent
    sources: list[Weighted] = []
    async with AsyncExitStack() as opened:
        for number, entry in enumerate(entries):
            location = entry.location
            if folder is not None and isinstance(location, Local | Preprocessed):
                location = type(location)(str(folder / location.path))  # relative to the list, as people expect
            name = f"{number} ({location.variant})"
            try:
                provider = await open_location(location, spec_for(location, spec.sequence_length), access)
            except DataError as error:
                raise of_source(name, error) from error
            opened.push_async_callback(provider.aclose)
            sources.append(Weighted(name, provider, entry.weight))
        mix = WeightedDataProvider(sources)
        opened.pop_all()  # they are the mix's to close now
    return mix


async def _mix_text(place: str) -> bytes:
    if "://" not in place:
        return await asyncio.to_thread(_mix_file, Path(place))
    source = await HttpSource.open([place])
    try:
        (file,) = source.files
        if file.size_bytes > MAX_MIX_BYTES:
            raise Rejected(f"mix {file.place} has {file.size_bytes} bytes; at most {MAX_MIX_BYTES}")
        return await read(source, file.name, 0, file.size_bytes)
    finally:
        await source.aclose()


def _mix_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_MIX_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"mix {path}: {error.strerror or error}", path=str(path)) from error
    if len(text) > MAX_MIX_BYTES:
        raise InvalidInput(f"mix {path} has more than {MAX_MIX_BYTES} bytes", path=str(path))
    return text


def _parse_mix(text: bytes, place: str) -> list[_MixEntry]:
    try:
        entries = _MIX.validate_python(json.loads(text))
    except ValidationError as error:
        mistakes = "; ".join(
            f"{'.'.join(str(part) for part in mistake['loc']) or 'the list'}: {mistake['msg']}"
            for mistake in error.errors(include_url=False)[:10]
        )
        raise InvalidInput(f"mix {place}: {mistakes}", place=place) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"mix {place} is no JSON: {error}", place=place) from error
    if any(isinstance(entry.location, WeightedHttp) for entry in entries):
        raise InvalidInput(f"mix {place} names another mix; give its locations themselves", place=place)
    for entry in entries:
        files = entry.location.location if isinstance(entry.location, Http) else None
        if isinstance(files, NumberedFiles) and files.num_files > MAX_FILES:  # before anybody writes down their URLs
            raise InvalidInput(f"mix {place}: {files.num_files} files; at most {MAX_FILES}", place=place)
    return entries


def _open_local(path: Path, spec: DatasetSpec, access: Access) -> DataProvider:
    if path.suffix == PARQUET_SUFFIX:
        return _open_preprocessed(path, spec, access)
    if path.suffix == JSON_LINES_SUFFIX:
        raise InvalidInput(
            f'{path} holds records, which are packed; allowed: with model.LLM.data_type = "Finetuning"', path=str(path)
        )
    if path.suffix != DATA_CONFIG_SUFFIX:
        return LocalDataProvider.open(path, spec)
    return open_described(_data_config(path, spec), path.parent)


def _open_preprocessed(path: Path, spec: DatasetSpec, access: Access) -> DataProvider:
    return PreprocessedDataProvider.open(path, None if access.packs else spec.sequence_length, access.split)


def _open_samples(path: Path, spec: DatasetSpec, access: Access) -> DataProvider:
    """Samples to be packed: JSON lines, or parquet files; a `data.toml` may give the former a shuffle."""
    seed = spec.shuffle_seed
    if path.suffix == DATA_CONFIG_SUFFIX:
        config = _data_config(path, spec)
        seed = None if config.shuffle_seed is None else bytes(config.shuffle_seed)
        path = path.parent / config.dir
    if path.suffix == PARQUET_SUFFIX:
        return _open_preprocessed(path, spec, access)
    if path.suffix in SUFFIXES and path.is_file():
        raise InvalidInput(
            f"{path} holds tokens, which are not packed; allowed: {JSON_LINES_SUFFIX} or {PARQUET_SUFFIX} files",
            path=str(path),
        )
    if path.is_dir() and not any(path.rglob("*" + JSON_LINES_SUFFIX)):
        if not any(path.rglob("*" + PARQUET_SUFFIX)):
            raise CorruptData(
                f"{path} holds no samples to pack ({JSON_LINES_SUFFIX} or {PARQUET_SUFFIX} files)", path=str(path)
            )
        return _open_preprocessed(path, spec, access)
    return JsonLinesDataProvider.open(path, seed, access.split)


def _data_config(path: Path, spec: DatasetSpec) -> DataConfig:
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
    return config


async def _open_tcp(address: DataServerAddress, ticket: Callable[[], str], spec: DatasetSpec) -> DataProvider:
    provider = await TcpDataProvider.open(address, ticket)
    if provider.sequence_length != spec.sequence_length:
        await provider.aclose()
        raise CorruptData(
            f"{address} serves sequences of {provider.sequence_length} tokens, the run's have {spec.sequence_length}"
        )
    return provider


async def _open_registered(location: Registered, spec: DatasetSpec) -> DataProvider:
    """What another package's opener makes of a location.

    Raises:
        InvalidInput: there is no such entry point, it cannot be imported, or it opened something else than a provider.
        EpochalError: what the opener raised, if it is one of ours.
    """
    found = entry_points(group=ENTRY_POINT_GROUP)
    if location.name not in found.names:
        known = ", ".join(sorted({"dummy", "tcp", "http", "https", "s3", "gs", "az"} | found.names))
        raise InvalidInput(f"no data provider is called {location.name!r}; there are {known}", name=location.name)
    shown = f"data provider {location.name!r} ({found[location.name].value})"
    try:
        opener: OpenRegistered = found[location.name].load()
        provider = await opener(location.location, spec)
    except EpochalError:
        raise
    except Exception as error:  # somebody else's code may raise anything; the user must see whose it is
        raise InvalidInput(f"{shown} cannot be opened: {type(error).__name__}: {error}", name=location.name) from error
    missing = [
        part for part in ("sequence_count", "fingerprint", "get_samples", "aclose") if not hasattr(provider, part)
    ]
    if missing:
        raise InvalidInput(f"{shown} opened a {type(provider).__name__} without {', '.join(missing)}")
    return provider
