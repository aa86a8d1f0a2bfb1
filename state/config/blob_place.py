"""The object stores that may hold a run's results and checkpoints: the variants of `blobs.store`.

Each names a folder of a bucket, in the words of `model.LLM.data_location`. Epochal's addition.
"""

import re
from collections.abc import Collection
from typing import Annotated, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from epochal.state.config.data_location import S3, AccountName, Azure, BucketName, ContainerName, Endpoint, Gcp, Region
from epochal.state.config.schema import Section, TaggedEnum

_REGIONAL = r"https://s3\.[a-z0-9-]+\.amazonaws\.com"
_FOLDER = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._=-]*(/[A-Za-z0-9_-][A-Za-z0-9._=-]*)*")


def _check_folder(folder: str) -> str:
    if folder and not _FOLDER.fullmatch(folder):
        raise ValueError("not a folder")
    return folder


Folder = Annotated[
    str,
    AfterValidator(_check_folder),
    Field(
        description='names of letters, digits, "-", "_", "." and "=", separated by "/", none of which begins with "."; '
        '"" for the whole bucket'
    ),
]


MAX_ORIGINS = 8
ANY_REGION = "https://s3.*.amazonaws.com"
"""The origin of Amazon's S3 where the coordinator's environment names the region."""
_Origin = Annotated[
    str,
    Field(
        pattern=r"^(https://s3\.\*\.amazonaws\.com|https?://([0-9A-Za-z._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?)$",
        description="scheme, host and port, such as https://store.example.org",
    ),
]
Origins = Annotated[
    tuple[_Origin, ...],
    Field(
        max_length=MAX_ORIGINS,
        strict=False,
        description=f"a list of up to {MAX_ORIGINS} URLs of scheme, host and port, such as https://store.example.org",
    ),
]


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL, without the scheme's usual port."""
    parts = urlsplit(url)
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}" + ("" if parts.port in (None, usual) else f":{parts.port}")


def is_of_origin(url: str, origins: Collection[str]) -> bool:
    """Return whether a URL is of one of these origins."""
    found = origin_of(url)
    return found in origins or (ANY_REGION in origins and re.fullmatch(_REGIONAL, found) is not None)


class S3Blobs(Section, variant="S3"):
    """A bucket of Amazon S3, or of any server that speaks its protocol.

    Attributes:
        folder: below it, the run has its own folder.
        region: None takes `AWS_REGION`, or us-east-1.
        endpoint: the server's URL, where it is not Amazon's; clients must reach it under the same one.
    """

    bucket_name: BucketName
    folder: Folder = ""
    region: Region | None = None
    endpoint: Endpoint | None = None

    @property
    def origin(self) -> str:
        """Scheme, host and port of the store's URLs."""
        if self.endpoint is not None:
            return origin_of(self.endpoint)
        return ANY_REGION if self.region is None else f"https://s3.{self.region}.amazonaws.com"

    @property
    def bucket(self) -> S3:
        return S3(
            bucket_name=self.bucket_name, filter_directory=self.folder, region=self.region, endpoint=self.endpoint
        )


class GcsBlobs(Section, variant="Gcs"):
    """A bucket of Google Cloud Storage."""

    bucket_name: BucketName
    folder: Folder = ""

    @property
    def origin(self) -> str:
        """Scheme, host and port of the store's URLs."""
        return "https://storage.googleapis.com"

    @property
    def bucket(self) -> Gcp:
        return Gcp(bucket_name=self.bucket_name, filter_directory=self.folder)


class AzureBlobs(Section, variant="Azure"):
    """A container of Azure Blob Storage."""

    account_name: AccountName
    container_name: ContainerName
    folder: Folder = ""
    endpoint: Endpoint | None = None

    @property
    def origin(self) -> str:
        """Scheme, host and port of the store's URLs."""
        if self.endpoint is not None:
            return origin_of(self.endpoint)
        return f"https://{self.account_name}.blob.core.windows.net"

    @property
    def bucket(self) -> Azure:
        return Azure(
            account_name=self.account_name,
            container_name=self.container_name,
            filter_directory=self.folder,
            endpoint=self.endpoint,
        )


BlobPlace: TypeAlias = S3Blobs | GcsBlobs | AzureBlobs
OptionalBlobPlace = Annotated[S3Blobs | GcsBlobs | AzureBlobs | None, TaggedEnum()]
