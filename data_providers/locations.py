"""Parses the data locations that users write: `--data`, and the entries of a mix.

`--data LOCATION` is `dummy`, `tcp://host:port`, `http://…` or `https://…` of one token file, `s3://bucket/folder`,
`gs://bucket/folder` or `az://account/container/folder`, the path of a token file, of a folder of them, of a parquet or
JSON-lines file or of a `data.toml`, the path or URL of a mix (`….json`), or `name://…` for a provider that another
package registers (`data_providers/opening.py`).
"""

import codecs
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from data_providers.mixture import MAX_SOURCES
from data_providers.protocol import DatasetSpec
from state.config.data_location import (
    MAX_FILES,
    S3,
    Azure,
    DataLocation,
    DummyData,
    Gcp,
    Http,
    HttpLocation,
    Local,
    NumberedFiles,
    Seeded,
    Server,
    SingleUrl,
    WeightedHttp,
)
from state.config.schema import Section
from state.errors import InvalidInput
from state.wire import strict_json

MIX_SUFFIX = ".json"
DEFAULT_TOKEN_SIZE_BYTES = 2
"""For locations that cannot specify a token size, such as `Local = "path"`."""

BUILT_IN_SCHEMES = frozenset({"dummy", "tcp", "http", "https", "s3", "gs", "az"})


@dataclass(frozen=True, slots=True)
class Registered:
    """A location for a provider of another package: `name://location`."""

    name: str
    location: str


Override: TypeAlias = DummyData | Server | SingleUrl | Gcp | S3 | Azure | Local | WeightedHttp | Registered
AnyLocation: TypeAlias = DataLocation | HttpLocation | Registered


def parse_location(text: str) -> Override:
    """Parse the value of `--data`; `InvalidInput` if it has none of the forms that this module's docstring lists."""
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


def spec_for(location: AnyLocation, sequence_length: int) -> DatasetSpec:
    """Return the token size and order of a location's files: its own, or two bytes and the files' order."""
    if not isinstance(location, Http):
        return DatasetSpec(DEFAULT_TOKEN_SIZE_BYTES, sequence_length)
    seed = location.shuffle.seed if isinstance(location.shuffle, Seeded) else None
    return DatasetSpec(location.token_size_in_bytes.size_bytes, sequence_length, seed)


class MixEntry(Section):
    """One source of a mix."""

    location: DataLocation
    weight: Annotated[float, Field(gt=0)]


_MIX = TypeAdapter(Annotated[list[MixEntry], Field(min_length=1, max_length=MAX_SOURCES)])


def parse_mix(text: bytes, place: str) -> list[MixEntry]:
    """Parse a mix: a JSON list of `{"location": …, "weight": …}`. `place` is its path or URL, for messages.

    Raises:
        InvalidInput: it is not such a list; the fault of its author.
    """
    try:
        entries = _MIX.validate_python(strict_json(text.removeprefix(codecs.BOM_UTF8)))
    except ValidationError as error:
        mistakes = "; ".join(
            f"{'.'.join(str(part) for part in mistake['loc']) or 'the list'}: {mistake['msg']}"
            for mistake in error.errors(include_url=False)[:10]
        )
        raise InvalidInput(f"mix {place}: {mistakes}", place=place) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"mix {place} is not JSON: {error}", place=place) from error
    for entry in entries:
        if isinstance(entry.location, WeightedHttp):
            raise InvalidInput(f"mix {place} names another mix; give its locations themselves", place=place)
        files = entry.location.location if isinstance(entry.location, Http) else None
        if isinstance(files, NumberedFiles) and files.num_files > MAX_FILES:  # before the list of URLs is made
            raise InvalidInput(f"mix {place}: {files.num_files} files; at most {MAX_FILES}", place=place)
    return entries
