"""The object stores that may hold a run's results and checkpoints: the variants of `blobs.store`.

Each names a folder of a bucket, in the words of `model.LLM.data_location`. Epochal's addition.
"""

import re
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field

from state.config.data_location import S3, Azure, Gcp, Url
from state.config.schema import Section, TaggedEnum, Text

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


class S3Blobs(Section, variant="S3"):
    """A bucket of Amazon S3, or of any server that speaks its protocol.

    Attributes:
        folder: below it, the run has a folder of its own.
        region: None takes `AWS_REGION`, or us-east-1.
        endpoint: the server's URL, where it is not Amazon's; clients must reach it under the same one.
    """

    bucket_name: Text
    folder: Folder = ""
    region: Text | None = None
    endpoint: Url | None = None

    @property
    def bucket(self) -> S3:
        return S3(
            bucket_name=self.bucket_name, filter_directory=self.folder, region=self.region, endpoint=self.endpoint
        )


class GcsBlobs(Section, variant="Gcs"):
    """A bucket of Google Cloud Storage."""

    bucket_name: Text
    folder: Folder = ""

    @property
    def bucket(self) -> Gcp:
        return Gcp(bucket_name=self.bucket_name, filter_directory=self.folder)


class AzureBlobs(Section, variant="Azure"):
    """A container of Azure Blob Storage."""

    account_name: Text
    container_name: Text
    folder: Folder = ""
    endpoint: Url | None = None

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
