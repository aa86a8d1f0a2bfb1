"""Parses the data locations that users write for `--data`.

`--data LOCATION` is `dummy`, `tcp://host:port`, `http://…` or `https://…` of one token file, `s3://bucket/folder`,
`gs://bucket/folder` or `az://account/container/folder`, the path of a token file, of a folder of them, of a parquet or
JSON-lines file or of a `data.toml`, the path or URL of a mix (`….json`), `hf://datasets/NAME` of a dataset of the
Hugging Face Hub, or `name://…` for a provider that another package registers (`data_providers/open_data.py`). A path
may be written as `file:///PATH`. Where a run packs, the files hold records.
"""

from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from pydantic import ValidationError

from epochal.data_providers.protocol import DatasetSpec
from epochal.data_providers.sources.hub_dataset import HUB_SCHEME, HubDataset, parse_hub_dataset
from epochal.runtime.buckets import host_of
from epochal.runtime.hub import HUB_HOST
from epochal.runtime.permissions import OWNERS, Permissions
from epochal.state.config.data_location import (
    MIX_PIN,
    S3,
    SERVER_SCHEMES,
    Azure,
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
from epochal.state.config.file_urls import path_of
from epochal.state.errors import InvalidInput

MIX_SUFFIX = ".json"
DEFAULT_TOKEN_SIZE_BYTES = 2
"""For locations that cannot specify a token size, such as `Local = "path"`."""

BUILT_IN_SCHEMES = frozenset({"dummy", *SERVER_SCHEMES, "file", "http", "https", "s3", "gs", "az", HUB_SCHEME})


@dataclass(frozen=True, slots=True)
class Registered:
    """A location for a provider of another package: `name://location`."""

    name: str
    location: str


Override: TypeAlias = (
    DummyData | Server | SingleUrl | Gcp | S3 | Azure | Local | WeightedHttp | HubDataset | Preprocessed | Registered
)
AnyLocation: TypeAlias = DataLocation | HttpLocation | HubDataset | Registered


def parse_location(text: str) -> Override:
    """Parse the value of `--data`; `InvalidInput` if it has none of the forms that this module's docstring lists."""
    try:
        text = path_of(text)
        scheme, separator, rest = text.partition("://")
        if text == "dummy":
            return DummyData()
        if scheme in ("http", "https") and separator:
            is_mix = text.partition(MIX_PIN)[0].partition("?")[0].endswith(MIX_SUFFIX)
            return WeightedHttp(text) if is_mix else SingleUrl(text)
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
        if scheme == HUB_SCHEME and separator:
            return parse_hub_dataset(text)
        if scheme in SERVER_SCHEMES and separator:
            return Server(rest if scheme == "tcp" else text)
        return Registered(scheme, rest) if separator else Local(text)
    except ValidationError as error:
        raise InvalidInput(f"data location {text!r}: {error.errors()[0]['msg']}", location=text) from error
    except ValueError as error:
        raise InvalidInput(f"data location {text!r}: {error}", location=text) from error


def permissions_of_owner(location: AnyLocation, permissions: Permissions) -> Permissions:
    """Return what a location that the owner wrote himself may use: all, or if it is remote, the hosts that it names."""
    if isinstance(location, Http):
        return permissions_of_owner(location.location, permissions)
    if isinstance(location, Gcp | S3 | Azure):
        return permissions.naming([host_of(location)], lends_credentials=True)
    if isinstance(location, HubDataset):
        return permissions.naming([HUB_HOST], lends_credentials=True)
    if isinstance(location, SingleUrl | Urls | NumberedFiles):
        urls = (location.url,) if isinstance(location, SingleUrl) else location.urls
        return permissions.naming([urlsplit(url).hostname or "" for url in urls])
    if isinstance(location, Server):
        return permissions.naming([host for host, _ in location.addresses])
    place = location.place if isinstance(location, WeightedHttp) else getattr(location, "path", "")
    if isinstance(location, Preprocessed) and "://" in place:
        return permissions_of_owner(parse_location(place), permissions)
    return permissions.naming([urlsplit(place).hostname or ""]) if "://" in place else OWNERS


def spec_for(location: AnyLocation, sequence_length: int) -> DatasetSpec:
    """Return the token size and order of a location's files: its own, or two bytes and the files' order."""
    if not isinstance(location, Http):
        return DatasetSpec(DEFAULT_TOKEN_SIZE_BYTES, sequence_length)
    seed = location.shuffle.seed if isinstance(location.shuffle, Seeded) else None
    return DatasetSpec(location.token_size_in_bytes.size_bytes, sequence_length, seed)
