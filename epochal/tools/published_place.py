"""Where a run is published: a folder, or a folder of a bucket, by the URL that a user writes."""

from pathlib import Path

from pydantic import ValidationError

from epochal.coordinator.store.object_store.objects import Objects
from epochal.coordinator.store.published_files import BucketFiles, FolderFiles, PublishedFiles
from epochal.state.config.blob_place import AzureBlobs, BlobPlace, GcsBlobs, S3Blobs
from epochal.state.config.file_urls import named_path
from epochal.state.errors import InvalidInput

ALLOWED = "a folder (also as file:///PATH), s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or az://ACCOUNT/CONTAINER/FOLDER"
BUCKETS = ("s3", "gs", "az")


def is_bucket(text: str) -> bool:
    """Return whether a place is in a bucket."""
    scheme, separator, _ = text.partition("://")
    return bool(separator) and scheme in BUCKETS


def published_files(text: str, *, is_public: bool = False) -> PublishedFiles:
    """Return the files of a place. No request is made.

    Args:
        text: a folder, or a URL of a bucket's folder.
        is_public: whether a bucket is read without credentials where the environment has none.

    Raises:
        InvalidInput: it is neither; or for a bucket, obstore is not installed, or there are no credentials.
    """
    text = named_path(text, "place")
    if not is_bucket(text):
        if not text or "://" in text:
            raise InvalidInput(f"{text!r} is no place for a published run; allowed: {ALLOWED}")
        return FolderFiles(Path(text))
    scheme, _, rest = text.partition("://")
    account, path = rest.partition("/")[::2] if scheme == "az" else ("", rest)
    bucket, _, folder = path.strip("/").partition("/")
    above, _, below = folder.rpartition("/")
    if not below:
        raise InvalidInput(f"{text!r} names no folder of a bucket; allowed: {ALLOWED}")
    try:
        place: BlobPlace
        if scheme == "az":
            place = AzureBlobs(account_name=account, container_name=bucket, folder=above)
        else:
            place = (S3Blobs if scheme == "s3" else GcsBlobs)(bucket_name=bucket, folder=above)
    except ValidationError as error:
        raise InvalidInput(f"{text!r}: {error.errors()[0]['msg']}; allowed: {ALLOWED}") from error
    return BucketFiles(Objects(place, below, is_public=is_public))
