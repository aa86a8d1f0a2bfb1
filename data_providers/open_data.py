"""Opens the provider of a location: of a state file's `data_location`, or of `--data` instead.

Another package's provider opens `name://…` by the entry point *name* in the group `epochal.data_providers`: an
asynchronous callable `(location: str, spec: DatasetSpec)` that returns the provider.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeAlias

from epochal.data_providers.description import description_of
from epochal.data_providers.file_names import LINES_SUFFIXES, RECORD_FILES, ROW_SUFFIXES, TAR_SUFFIXES, TOKEN_SUFFIXES
from epochal.data_providers.locations import (
    BUILT_IN_SCHEMES,
    DEFAULT_TOKEN_SIZE_BYTES,
    AnyLocation,
    Registered,
    parse_location,
    permissions_of_owner,
    spec_for,
)
from epochal.data_providers.mixes.mix_file import parse_mix
from epochal.data_providers.mixes.weighted import Weighted, WeightedDataProvider, of_source
from epochal.data_providers.protocol import CorruptData, DataProvider, DatasetSpec, Rejected
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.providers.local_places import allowed_path, cannot_open
from epochal.data_providers.providers.local_source import LocalSource
from epochal.data_providers.providers.preprocessed import PreprocessedDataProvider, chosen_rows
from epochal.data_providers.providers.ranged import RangedDataProvider
from epochal.data_providers.providers.record_files import RecordsDataProvider
from epochal.data_providers.sources.byte_source import ByteSource, closed_on_failure, read
from epochal.data_providers.sources.cache import BlockCache
from epochal.data_providers.sources.cached_source import CachedSource
from epochal.data_providers.sources.http.manifests import open_checked
from epochal.data_providers.sources.http.source import HttpOptions, HttpSource, without_secrets
from epochal.data_providers.sources.hub_dataset import HubDataset, downloaded
from epochal.data_providers.sources.manifest import VerifiedSource
from epochal.data_providers.sources.object_store import ObjectStoreSource
from epochal.data_providers.sources.unpacked import DEFAULT_UNPACKED_BYTES
from epochal.data_providers.splits import DEFAULT_SPLIT, names_of_split
from epochal.data_providers.tcp.client_connection import DataServerAccess, DataServerAddress, TicketOrAccess
from epochal.data_providers.tcp.data_client import TcpDataProvider
from epochal.data_providers.tcp.payloads import AnyLength, Shape
from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.files.spool import Spool
from epochal.runtime.hub import HUB_HOST
from epochal.runtime.permissions import OWNERS, Permissions
from epochal.state.config.data_file import DataConfig, parse_data_config
from epochal.state.config.data_location import (
    MAX_FILES,
    PINNED_LINE,
    S3,
    Azure,
    DummyData,
    Gcp,
    Http,
    Local,
    NumberedFiles,
    Preprocessed,
    Server,
    SingleUrl,
    Urls,
    WeightedHttp,
)
from epochal.state.config.state_file import LaterMixes, StateFile
from epochal.state.errors import DataError, EpochalError, InvalidInput, NotAllowed
from epochal.state.reader_limits import MAX_MIX_BYTES
from epochal.state.wire import sha256_hex

ENTRY_POINT_GROUP = "epochal.data_providers"
DATA_CONFIG_SUFFIX = ".toml"
ONLY_FOR_MEMBERS = "a TCP data server serves only a run's members; name the data's files or URL with --data"
ONLY_PACKED = (
    '{place} holds records, which are packed; allowed: with model.LLM.data_type = "Finetuning", or "Multimodal" where '
    "they hold images"
)

OpenRegistered: TypeAlias = Callable[[str, DatasetSpec], Awaitable[DataProvider]]


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """The client's options for opening its data.

    Attributes:
        run_id: names the run to a data server.
        ticket: returns the client's current ticket for data servers, or says in full how they are asked; None for who
            is no member of the run.
        permissions: what the location may use of this machine: hosts, files, credentials, packages.
        cache: keeps the blocks from HTTP servers and buckets; None keeps nothing.
        packs: whether samples are packed, or of text and images; then they are JSON records, or rows of parquet files
            of any length.
        split: the split to use of a folder of JSON lines or parquet files.
    """

    run_id: str
    ticket: TicketOrAccess | None
    permissions: Permissions
    cache: BlockCache | None = None
    packs: bool = False
    split: str = DEFAULT_SPLIT

    def spool(self) -> Spool:
        """Return a place for unpacked files: beside the cache, with as much room again, or the temporary folder."""
        if self.cache is not None:
            return Spool(self.cache.folder, self.cache.max_bytes)
        folder = Path(tempfile.gettempdir())
        return Spool(folder, min(DEFAULT_UNPACKED_BYTES, shutil.disk_usage(folder).free // 2))


async def open_provider(
    state: StateFile,
    ticket: TicketOrAccess,
    permissions: Permissions,
    override: str | None = None,
    cache: BlockCache | None = None,
) -> DataProvider:
    """Open the provider of a run's data for one client. The caller closes it.

    The size of tokens and the shuffle of token files are those of the run's `Http` location or of a `data.toml`; by
    default two bytes and no shuffle.

    Args:
        state: the run's state file.
        ticket, cache: as in `OpenOptions`.
        permissions: what the run's documents may use of this machine.
        override: location to use instead of the run's, as in `epochal client --data`, which the owner wrote himself.

    Raises:
        SourceUnavailable: the source does not answer now; retry.
        CorruptData: the source does not hold the run's data; do not retry.
        Rejected: the source refuses this client.
        NotAllowed: the run names a file that the owner of this machine did not allow, or a mix that is not pinned.
        InvalidInput: `override`, or a file that a location names, is wrong, or an extra is missing; the user's fault.
    """
    location, spec = run_data(state, override)
    packs = state.model.LLM.data_type.reads_records
    if override is not None:
        permissions = permissions_of_owner(location, permissions)
    else:
        check_pinned(location)
    options = OpenOptions(state.run_id, ticket, permissions, cache, packs)
    async with AsyncExitStack() as opened:
        provider = await open_location(location, spec, options)
        opened.push_async_callback(provider.aclose)
        await follow_mix(provider, state.later_mixes)
        opened.pop_all()
    return provider


async def follow_mix(provider: DataProvider, mixes: LaterMixes) -> None:
    """Let a mix have the weights to which the run has changed (`StateFile.later_mixes`)."""
    if isinstance(provider, WeightedDataProvider):
        await provider.follow(mixes)


def check_pinned(location: AnyLocation) -> None:
    """Raise `NotAllowed` for a run's mix on another machine that its state file does not pin; the operator's fault."""
    if isinstance(location, WeightedHttp) and location.is_unpinned:
        place = without_secrets(location.place)
        line = PINNED_LINE.format(place=place)
        raise NotAllowed(f"the run's mix {place} may change at any time; allowed in its state file: {line}", path=place)


def run_data(
    state: StateFile, override: str | None = None, *, held_out: bool = False
) -> tuple[AnyLocation, DatasetSpec]:
    """Return the location of a run's data, or the one that `override` names instead, and the shape of its samples.

    With `held_out` that of its held-out data, where it has some.

    Raises:
        InvalidInput: `override` is no location; the user's fault.
    """
    run_location = state.model.LLM.data_location
    named = (held_out and state.model.LLM.held_out_location) or run_location
    location: AnyLocation = named if override is None else parse_location(override)
    if isinstance(location, Local | SingleUrl | Gcp | S3 | Azure) and isinstance(run_location, Preprocessed):
        location = Preprocessed(location.path if isinstance(location, Local) else override or "")
    return location, spec_for(run_location, state.model.LLM.max_seq_len)


async def open_location(location: AnyLocation, spec: DatasetSpec, options: OpenOptions) -> DataProvider:
    """Open the provider of one location's data. Raises what `open_provider` raises."""
    if isinstance(location, Http):
        return await open_location(location.location, spec_for(location, spec.sequence_length), options)
    if isinstance(location, DummyData):
        return DummyDataProvider(spec)
    if isinstance(location, Server):
        if options.ticket is None:
            raise InvalidInput(ONLY_FOR_MEMBERS)
        addresses = [DataServerAddress(*place, options.run_id, location.tls) for place in location.addresses]
        access = options.ticket if isinstance(options.ticket, DataServerAccess) else DataServerAccess(options.ticket)
        reach = options.permissions.reach
        return await _open_tcp(addresses, replace(access, reach=reach), None if options.packs else spec)
    if isinstance(location, SingleUrl | Urls | NumberedFiles | Gcp | S3 | Azure):
        source, listed = await _remote_source(location, options), isinstance(location, Gcp | S3 | Azure)
        return await open_files(source, spec, options, listed=listed)
    if isinstance(location, HubDataset):
        return await _open_hub(location, spec, options)
    if isinstance(location, Preprocessed) and "://" in location.path:
        return await _open_rows_behind(location.path, spec, options)
    if isinstance(location, Local | Preprocessed):
        are_rows = isinstance(location, Preprocessed)
        return await _open_path(await _allowed(Path(location.path), options), spec, options, are_rows=are_rows)
    if isinstance(location, WeightedHttp):
        return await _open_mix(location, spec, options)
    return await _open_registered(location, spec)


async def open_files(
    source: ByteSource, spec: DatasetSpec, options: OpenOptions, *, listed: bool, are_rows: bool = False
) -> DataProvider:
    """Open the files of a source by their names: tokens, or where the run packs, samples. Closes the source.

    Args:
        source: holds the files.
        spec: the shape of tokens; where the run packs, its shuffle alone counts.
        options: the client's.
        listed: whether the source is a folder; of files that were named one by one all are used.
        are_rows: whether the files are known to hold rows.

    Raises:
        CorruptData: there are no samples, or they are damaged; the fault of the data's owner.
        InvalidInput: there is no such split, the run does not take such files, or an extra is missing; the user's
            fault.
        SourceUnavailable, Rejected: as `ByteSource.read_into`.
    """
    async with closed_on_failure(source):
        place, names = source.location, [file.name for file in source.files]
        is_named = not listed and options.split == DEFAULT_SPLIT

        def holds(suffixes: tuple[str, ...]) -> bool:
            return any(name.endswith(suffixes) for name in names)

        if not (options.packs or are_rows):
            if holds(TOKEN_SUFFIXES) or not holds((*ROW_SUFFIXES, *LINES_SUFFIXES, *TAR_SUFFIXES)):
                return await RangedDataProvider.open(source, spec)
            if not holds(ROW_SUFFIXES):
                raise InvalidInput(ONLY_PACKED.format(place=place), path=place, holds_records=True)
        elif not are_rows:
            for suffixes in filter(holds, (LINES_SUFFIXES, TAR_SUFFIXES)):
                of_kind = [name for name in names if name.endswith(suffixes)]
                chosen = of_kind if is_named else names_of_split(names, suffixes, place, options.split)
                return await RecordsDataProvider.open(source, chosen, spec.shuffle_seed, options.spool(), options.cache)
            if not holds(ROW_SUFFIXES):
                allowed = f"allowed: {RECORD_FILES}"
                if holds(TOKEN_SUFFIXES) and not listed:
                    raise InvalidInput(f"{place} holds tokens, which are not packed; {allowed}")
                raise CorruptData(f"{place} holds no samples to pack; {allowed}", path=place)
        chosen = names if is_named else chosen_rows(source, options.split)
        longest = None if options.packs else spec.sequence_length
        return await PreprocessedDataProvider.open(source, chosen, longest, records=options.packs)


async def _remote_source(
    location: SingleUrl | Urls | NumberedFiles | Gcp | S3 | Azure, options: OpenOptions
) -> ByteSource:
    if isinstance(location, Gcp | S3 | Azure):
        source = await VerifiedSource.where_listed(await ObjectStoreSource.open(location, options.permissions))
    else:
        if isinstance(location, NumberedFiles) and location.num_files > MAX_FILES:  # before the list of URLs is made
            raise InvalidInput(f"the run's data are {location.num_files} files; at most {MAX_FILES}")
        source = await open_checked(
            (location.url,) if isinstance(location, SingleUrl) else location.urls, options.permissions.reach
        )
    return source if options.cache is None else CachedSource(source, options.cache)


async def _open_rows_behind(url: str, spec: DatasetSpec, options: OpenOptions) -> DataProvider:
    location = parse_location(url)
    if isinstance(location, HubDataset):
        return await _open_hub(location, spec, options)
    if not isinstance(location, SingleUrl | Gcp | S3 | Azure):
        raise InvalidInput(f"{without_secrets(url)} is no place of parquet or Arrow files")
    source, listed = await _remote_source(location, options), isinstance(location, Gcp | S3 | Azure)
    return await open_files(source, spec, options, listed=listed, are_rows=True)


async def _open_hub(location: HubDataset, spec: DatasetSpec, options: OpenOptions) -> DataProvider:
    with_token = options.permissions.lends_credentials(HUB_HOST)
    files = await asyncio.to_thread(downloaded, location, options.split, with_token=with_token)
    source = await asyncio.to_thread(LocalSource.of_paths, str(location), files.files, files.paths)
    return await open_files(source, spec, replace(options, split=DEFAULT_SPLIT), listed=False, are_rows=True)


async def open_described(config: DataConfig, folder: Path) -> DataProvider:
    """Open the files that a `data.toml` in `folder` describes.

    Raises as `LocalDataProvider.open`, or where samples have any length, as `open_files`.
    """
    spec, path = _spec_of(config), folder / config.dir
    if config.seq_len is not None:
        return await asyncio.to_thread(LocalDataProvider.open, path, spec)
    return await _open_path(path, spec, OpenOptions("", None, OWNERS, packs=True))


def served_shape(config: DataConfig, provider: DataProvider) -> Shape:
    """Return the shape of the samples of `open_described`."""
    if config.seq_len is not None:
        return _spec_of(config)
    described = description_of(provider)
    total_bytes = (described and described.total_bytes) or 0
    return AnyLength(max(1, total_bytes // (provider.sequence_count or 1)))


def _spec_of(config: DataConfig) -> DatasetSpec:
    """Return the shape and order of samples; the order alone counts where they have any length."""
    size = DEFAULT_TOKEN_SIZE_BYTES if config.token_size is None else config.token_size.size_bytes
    return DatasetSpec(size, config.seq_len or 1, _seed_of(config))


def _seed_of(config: DataConfig) -> bytes | None:
    return None if config.shuffle_seed is None else bytes(config.shuffle_seed)


async def _allowed(path: Path, options: OpenOptions) -> Path:
    return await asyncio.to_thread(allowed_path, path, options.permissions)


async def _open_mix(location: WeightedHttp, spec: DatasetSpec, options: OpenOptions) -> DataProvider:
    is_remote = "://" in location.place
    place = location.place if is_remote else str(await _allowed(Path(location.place), options))
    shown = without_secrets(place) if is_remote else place
    text = await mix_text(place, options.permissions.reach)
    if location.sha256 not in (None, sha256_hex(text)):
        raise CorruptData(f"mix {shown} has SHA-256 {sha256_hex(text)}; the run's is {location.sha256}", path=shown)
    mix = parse_mix(text, shown)
    folder = None if is_remote else Path(place).parent
    sources: list[Weighted] = []
    async with AsyncExitStack() as opened:
        for number, source in enumerate(mix.sources):
            held = source.location
            if isinstance(held, Local | Preprocessed) and "://" not in held.path:
                if folder is None:
                    raise NotAllowed(
                        f"mix {shown}: source {source.name} is a path of the machine that reads it, {held.path!a}; a "
                        "mix from elsewhere names URLs only",
                        path=held.path,
                    )
                held = type(held)(str(folder / held.path))  # relative to the mix's own folder
            try:
                provider = await open_location(held, spec_for(held, spec.sequence_length), options)
            except DataError as error:
                raise of_source(source.name, error) from error
            opened.push_async_callback(provider.aclose)
            sources.append(Weighted(source.name, provider, mix.phases[0].weights[number]))
        # The order of many phases takes a while to compute.
        provider = await asyncio.to_thread(WeightedDataProvider, sources, mix.phases)
        opened.pop_all()  # the mix closes them from now on
    return provider


async def mix_text(place: str, reach: Reach | None) -> bytes:
    """Return the text of a mix at a path or a URL. Raises what `open_provider` raises."""
    if "://" not in place:
        return await asyncio.to_thread(mix_file, Path(place))
    source = await HttpSource.open([place], HttpOptions.from_environment(reach))
    try:
        (file,) = source.files
        if file.size_bytes > MAX_MIX_BYTES:
            raise Rejected(f"mix {file.place} has {file.size_bytes} bytes; at most {MAX_MIX_BYTES}")
        return await read(source, file.name, 0, file.size_bytes)
    finally:
        await source.aclose()


def mix_file(path: Path) -> bytes:
    """Return the text of a mix in a file. Raises `InvalidInput` if it cannot be read or is too large."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_MIX_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"mix {path}: {error.strerror or error}", path=str(path)) from error
    if len(text) > MAX_MIX_BYTES:
        raise InvalidInput(f"mix {path} has more than {MAX_MIX_BYTES} bytes", path=str(path))
    return text


async def _open_path(path: Path, spec: DatasetSpec, options: OpenOptions, *, are_rows: bool = False) -> DataProvider:
    """Open a file, a folder, or what a `data.toml` describes."""
    if path.suffix == DATA_CONFIG_SUFFIX:
        config = await asyncio.to_thread(_data_config, path, None if options.packs else spec.sequence_length)
        spec, path = _spec_of(config), await _allowed(path.parent / config.dir, options)  # a link may lead elsewhere
    if are_rows or options.packs or path.name.endswith((*ROW_SUFFIXES, *LINES_SUFFIXES, *TAR_SUFFIXES)):
        source = await asyncio.to_thread(LocalSource.open, path)
        return await open_files(source, spec, options, listed=path.is_dir(), are_rows=are_rows)
    return await asyncio.to_thread(LocalDataProvider.open, path, spec)


def _data_config(path: Path, length: int | None) -> DataConfig:
    try:
        config = parse_data_config(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise cannot_open(path, error) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 at byte {error.start}", path=str(path)) from error
    if config.seq_len != length:
        allowed = "no such line: the run packs samples" if length is None else f"{length}, the run's max_seq_len"
        raise InvalidInput(f"{path}: seq_len is {config.seq_len}; allowed: {allowed}", path=str(path))
    return config


async def _open_tcp(
    addresses: Sequence[DataServerAddress], access: DataServerAccess, spec: DatasetSpec | None
) -> DataProvider:
    provider = await TcpDataProvider.open(addresses, access)
    asked, served = None if spec is None else spec.sequence_length, provider.sequence_length
    if served != asked:
        await provider.aclose()
        shown, wanted = (("any length" if one is None else f"{one} tokens") for one in (served, asked))
        raise CorruptData(f"{addresses[0]} serves samples of {shown}, the run's have {wanted}")
    return provider


async def _open_registered(location: Registered, spec: DatasetSpec) -> DataProvider:
    """Open a location by another package's entry point. Raises `InvalidInput` or the opener's own `EpochalError`."""
    found = entry_points(group=ENTRY_POINT_GROUP)
    if location.name not in found.names:
        known = ", ".join(sorted(BUILT_IN_SCHEMES | found.names))
        raise InvalidInput(f"no data provider is called {location.name!r}; allowed: {known}", name=location.name)
    shown = f"data provider {location.name!r} ({found[location.name].value})"
    try:
        opener: OpenRegistered = found[location.name].load()
        provider = await opener(location.location, spec)
    except EpochalError:
        raise
    except Exception as error:  # the other package's code may raise anything
        raise InvalidInput(f"{shown} cannot be opened: {type(error).__name__}: {error}", name=location.name) from error
    parts = ("sequence_count", "fingerprint", "get_samples", "aclose")
    missing = [part for part in parts if not hasattr(provider, part)]
    if missing:
        raise InvalidInput(f"{shown} opened a {type(provider).__name__} without {', '.join(missing)}")
    return provider
