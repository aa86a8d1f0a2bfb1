"""Opens the source of a model that a state file's `checkpoint` names."""

from pathlib import Path

from epochal.runtime.buckets import Bucket
from epochal.runtime.hub import HUB_HOST
from epochal.runtime.permissions import OWNERS, Permissions
from epochal.state.config.data_location import S3, Gcp
from epochal.state.config.file_urls import named_path
from epochal.state.config.model_table import Checkpoint, Gcs, Hub, LocalCheckpoint, S3Checkpoint
from epochal.state.errors import InternalError, InvalidInput
from epochal.trainers.sources.bucket_model import BucketFolder
from epochal.trainers.sources.folder_source import FolderSource
from epochal.trainers.sources.hub_model import HubFolder
from epochal.trainers.sources.local_model import local_source
from epochal.trainers.sources.model_source import ModelSource


def open_source(checkpoint: Checkpoint, permissions: Permissions = OWNERS) -> ModelSource:
    """Return the source that a state file's `checkpoint` names. No request is made before the first method's.

    `P2P` and `P2PGcs` are read as `Hub` and `Gcs`: where the run's first parameters came from.

    Args:
        checkpoint: names a file, a folder, a repository or a bucket.
        permissions: what it may use of this machine, if somebody else wrote it.

    Raises:
        NotAllowed: a bucket is on a server that may not be connected.
        InvalidInput: there is no such file, a name is not valid, or the library that reads it is not installed.
        InternalError: it names no place.
    """
    if isinstance(checkpoint, LocalCheckpoint):
        return local_source(Path(checkpoint.path))
    if isinstance(checkpoint, Hub):
        return FolderSource(
            HubFolder(checkpoint.repo_id, checkpoint.revision, with_token=permissions.lends_credentials(HUB_HOST))
        )
    bucket = _bucket_of(checkpoint)
    if bucket is None:
        raise InternalError(f'`checkpoint = "{checkpoint.variant}"` names no source of a model')
    return FolderSource(BucketFolder(bucket, permissions))


def parse_source(text: str) -> ModelSource:
    """Return the source at a path, or at `file:///PATH`, `hf://ORGANIZATION/NAME[@REVISION]`, `s3://…` or `gs://…`.

    Raises:
        InvalidInput: as `open_source`, or it names none of these.
    """
    text = named_path(text, "source")
    scheme, separator, rest = text.partition("://")
    if not separator:
        return local_source(Path(text))
    if scheme == "hf":
        repo_id, _, revision = rest.partition("@")
        return FolderSource(HubFolder(repo_id, revision or None))
    name, _, folder = rest.partition("/")
    if scheme not in ("s3", "gs") or not name:
        raise InvalidInput(f"{text!r} is no source of a model; allowed: a path, hf://…, s3://… or gs://…")
    kind = S3 if scheme == "s3" else Gcp
    return FolderSource(BucketFolder(kind(bucket_name=name, filter_directory=folder)))


def names_a_source(checkpoint: Checkpoint) -> bool:
    """Return whether a state file's `checkpoint` names a place from which a model can be read."""
    return isinstance(checkpoint, LocalCheckpoint | Hub) or _bucket_of(checkpoint) is not None


def _bucket_of(checkpoint: Checkpoint) -> Bucket | None:
    if isinstance(checkpoint, Gcs):
        return Gcp(bucket_name=checkpoint.bucket, filter_directory=checkpoint.prefix or "")
    if isinstance(checkpoint, S3Checkpoint):
        return S3(
            bucket_name=checkpoint.bucket,
            filter_directory=checkpoint.prefix or "",
            region=checkpoint.region,
            endpoint=checkpoint.endpoint,
        )
    return None
