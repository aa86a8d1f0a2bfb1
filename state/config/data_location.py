"""The places of a run's data: the variants of `model.LLM.data_location`, field for field as in Psyche's files."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from epochal.state.config.file_urls import path_of
from epochal.state.config.schema import Natural, PathText, Positive, Section, SingleValue, TaggedEnum, TokenSize

SEED_BYTES = 32
MAX_PORT = 65_535
MAX_PAD_ZEROS = 255
MAX_FILES = 100_000
"""Maximum number of files of one location."""
MAX_SERVERS = 64
"""Maximum number of TCP data servers of one location."""
TLS_SCHEME = "tls"
SERVER_SCHEMES = ("tcp", TLS_SCHEME)
ROWS_SCHEMES = ("http", "https", "s3", "gs", "az", "hf")
"""Schemes of the URLs of parquet and Arrow files."""
MIX_PIN = "#sha256="
"""Separates the place of a mix from its SHA-256 in hex."""
PINNED_LINE = f'`data_location = {{{{ WeightedHttp = "{{place}}{MIX_PIN}SHA-256-IN-HEX" }}}}`, which pins its bytes'
"""The line that pins a mix on another machine, with a placeholder for the digest."""
_PINNED = re.compile(r"(?P<place>.+)#sha256=(?P<sha256>[0-9a-f]{64})", re.DOTALL)
_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:/\[\]]+)):(?P<port>[0-9]{1,5})")


def _split_address(address: str) -> tuple[str, int]:
    match = _ADDRESS.fullmatch(address)
    if match is None or not 1 <= int(match["port"]) <= MAX_PORT:
        raise ValueError("not host:port")
    return match["v6"] or match["name"], int(match["port"])


def _split_servers(text: str) -> tuple[bool, tuple[tuple[str, int], ...]]:
    """Return whether the servers speak TLS, and their hosts and ports."""
    scheme, separator, rest = text.rpartition("://")
    if (separator and scheme not in SERVER_SCHEMES) or not 1 <= rest.count(",") + 1 <= MAX_SERVERS:
        raise ValueError("not host:port")
    return scheme == TLS_SCHEME, tuple(_split_address(address) for address in rest.split(","))


def _check_servers(text: str) -> str:
    _split_servers(text)
    return text


def _check_url_or_path(place: str) -> str:
    if MIX_PIN in place and not _PINNED.fullmatch(place):
        raise ValueError("not the SHA-256 of a mix")
    file, pin, digest = place.partition(MIX_PIN)
    place = f"{path_of(file)}{pin}{digest}"
    scheme, separator, _ = place.partition("://")
    if not place or (separator and scheme not in ("http", "https")):
        raise ValueError("neither a URL nor a path")
    return place


def _check_rows_place(place: str) -> str:
    place = path_of(place)
    scheme, separator, rest = place.partition("://")
    if not place or (separator and (scheme not in ROWS_SCHEMES or not rest)):
        raise ValueError("neither a path nor a place of rows")
    return place


def _check_template(template: str) -> str:
    if template.count("{}") != 1:
        raise ValueError("not one {}")
    return template


ServerAddresses = Annotated[
    str,
    AfterValidator(_check_servers),
    Field(
        description='"host:port" with a port from 1 to 65535, an IPv6 host in brackets; "host:port,host:port" for '
        'up to 64 servers with the same data; before them "tls://" where the servers have certificates'
    ),
]
Url = Annotated[str, Field(pattern=r"^https?://[^\s/]+\S*$", description="a URL that starts with http:// or https://")]
UrlList = Annotated[
    tuple[Url, ...], Field(min_length=1, max_length=MAX_FILES, strict=False, description="a list of URLs, at least one")
]
UrlOrPath = Annotated[
    str,
    AfterValidator(_check_url_or_path),
    Field(
        description="a URL that starts with http:// or https://, or a path; after it `#sha256=` and 64 hex digits in "
        "lower case, which a URL needs"
    ),
]
LocalPath = Annotated[
    PathText,
    Field(
        description="a path on the client's machine, as a string, or file:///PATH; another URL goes into "
        "{ Http = … }, and what another package's provider opens is named by each client with `--data name://…`"
    ),
]
RowsPlace = Annotated[
    str,
    AfterValidator(_check_rows_place),
    Field(
        description="a path, a URL that starts with http:// or https://, a folder of a bucket (s3://…, gs://…, az://…) "
        "or a dataset of the Hugging Face Hub (hf://datasets/NAME)"
    ),
]
UrlTemplate = Annotated[
    str,
    AfterValidator(_check_template),
    Field(
        pattern=r"^https?://[^\s/]+\S*$",
        description='a URL that starts with http:// or https:// and holds "{}" once, for the file\'s number',
    ),
]
BucketName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,221}$",
        description='the name of a bucket: letters, digits, ".", "_" and "-"',
    ),
]
Region = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$", description='the name of a region, such as "eu-west-1"')
]
"""It becomes a part of a host's name, as an account's does: nothing in it may end that."""
AccountName = Annotated[
    str, Field(pattern=r"^[a-z0-9]{1,24}$", description="the name of an account: up to 24 small letters and digits")
]
ContainerName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9$][A-Za-z0-9_-]{0,62}$", description='the name of a container: letters, digits and "-"'),
]
Endpoint = Annotated[
    str,
    Field(
        pattern=r"^https?://([0-9A-Za-z._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[0-9A-Za-z._~/-]*)?$",
        description="a URL that starts with http:// or https://, of a host, maybe a port, and maybe a path",
    ),
]
"""Nothing in it reads differently to two libraries: one decides whether a host gets credentials, another connects."""
SeedBytes = Annotated[
    tuple[Annotated[int, Field(ge=0, le=255)], ...],
    Field(
        min_length=SEED_BYTES, max_length=SEED_BYTES, strict=False, description="a list of 32 integers from 0 to 255"
    ),
]
AnyTokenSize = Annotated[
    TokenSize, Field(strict=False, description='"TwoBytes" or "FourBytes"')  # a file holds the name, not the member
]


class DontShuffle(Section):
    """Data indices follow the files' own order."""


class Seeded(SingleValue[SeedBytes]):
    """Data indices are permuted, keyed by 32 bytes."""

    @property
    def seed(self) -> bytes:
        return bytes(self.root)


Shuffle = Annotated[DontShuffle | Seeded, TaggedEnum()]


class SingleUrl(SingleValue[Url]):
    """One token file at one URL."""

    @property
    def url(self) -> str:
        return self.root


class Urls(SingleValue[UrlList]):
    """Several token files, each at its URL. Epochal's addition."""

    @property
    def urls(self) -> tuple[str, ...]:
        return self.root


class NumberedFiles(Section):
    """`num_files` token files whose URLs differ in a number, counted from `start_index`."""

    url_template: UrlTemplate
    start_index: Natural
    n_left_pad_zeros: Annotated[int, Field(ge=0, le=MAX_PAD_ZEROS)]
    num_files: Positive

    @property
    def urls(self) -> tuple[str, ...]:
        """Every file's URL: the `{}` replaced by its number, padded with zeros to `n_left_pad_zeros` digits."""
        numbers = range(self.start_index, self.start_index + self.num_files)
        return tuple(self.url_template.replace("{}", str(number).zfill(self.n_left_pad_zeros)) for number in numbers)


class Gcp(Section):
    """The token files of a Google Cloud Storage bucket; `filter_directory` "" takes all of them."""

    bucket_name: BucketName
    filter_directory: str


class S3(Section):
    """The token files of a bucket of Amazon S3, or of any server that speaks its protocol. Epochal's addition.

    Attributes:
        region: None takes `AWS_REGION`, or us-east-1.
        endpoint: the server's URL, where it is not Amazon's.
    """

    bucket_name: BucketName
    filter_directory: str = ""
    region: Region | None = None
    endpoint: Endpoint | None = None


class Azure(Section):
    """The token files of a container of Azure Blob Storage. Epochal's addition.

    Attributes:
        endpoint: the server's URL, where it is not Azure's.
    """

    account_name: AccountName
    container_name: ContainerName
    filter_directory: str = ""
    endpoint: Endpoint | None = None


HttpLocation = Annotated[SingleUrl | Urls | NumberedFiles | Gcp | S3 | Azure, TaggedEnum()]


class DummyData(Section, variant="Dummy"):
    """Made-up tokens, for tests of everything else."""


class Server(SingleValue[ServerAddresses]):
    """A TCP data server, or several with the same data."""

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """The servers' hosts and ports."""
        return _split_servers(self.root)[1]

    @property
    def tls(self) -> bool:
        """Whether they are asked over TLS."""
        return _split_servers(self.root)[0]


class Local(SingleValue[LocalPath]):
    """A token file, or a folder of them, on the client's own machine."""

    @property
    def path(self) -> str:
        return self.root


class Http(Section):
    """Token files on an HTTP server or in a bucket."""

    location: HttpLocation
    token_size_in_bytes: AnyTokenSize
    shuffle: Shuffle


class WeightedHttp(SingleValue[UrlOrPath]):
    """The URL or path of a JSON list of `{"location": <data_location>, "weight": <number>}`: a mix of locations.

    After it `#sha256=` and the SHA-256 of the list's bytes, Epochal's addition: nobody can then change the run's mix.
    """

    @property
    def place(self) -> str:
        """The URL or path, without the digest."""
        return self.root.partition(MIX_PIN)[0]

    @property
    def sha256(self) -> str | None:
        return self.root.partition(MIX_PIN)[2] or None

    @property
    def is_unpinned(self) -> bool:
        """Whether it is on another machine, and may be another one tomorrow."""
        return "://" in self.place and self.sha256 is None


class Preprocessed(SingleValue[RowsPlace]):
    """Parquet or Arrow files of samples that are already cut, labelled and maybe packed: a path, or a URL of them."""

    @property
    def path(self) -> str:
        return self.root


DataLocation = Annotated[DummyData | Server | Local | Http | WeightedHttp | Preprocessed, TaggedEnum()]
HeldOutLocation = Annotated[DummyData | Local | Http | WeightedHttp | Preprocessed | None, TaggedEnum()]
"""No server: those of members serve nobody who only evaluates."""
