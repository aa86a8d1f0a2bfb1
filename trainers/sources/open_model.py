"""Opens the source of a model that a state file's `checkpoint` names; a bucket's files are read by byte ranges."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from epochal.data_providers.protocol import SourceUnavailable
from epochal.data_providers.sources.bucket_errors import request_error
from epochal.runtime.buckets import (
    Bucket,
    StoreAccess,
    endpoint_of,
    host_of,
    location_of,
    obstore,
    store_failures,
    store_of,
    version_of,
)
from epochal.runtime.connections.bandwidth import refuse_if_limited
from epochal.runtime.hub import HUB_HOST
from epochal.runtime.permissions import OWNERS, Permissions
from epochal.state.config.adapter_table import BaseFile
from epochal.state.config.data_location import S3, Gcp
from epochal.state.config.file_urls import named_path
from epochal.state.config.model_table import Checkpoint, Gcs, Hub, LocalCheckpoint, S3Checkpoint
from epochal.state.errors import InternalError, InvalidInput, ModelUnavailable, NotAllowed
from epochal.trainers.sources.folder_source import FolderSource
from epochal.trainers.sources.hub_model import HubFolder
from epochal.trainers.sources.local_model import local_source
from epochal.trainers.sources.model_source import ModelSource, hashed

RANGE_TIMEOUT = "120s"
"""Maximum time for one range of a file, of up to `reading.CHUNK_BYTES`."""


class BucketFile:
    """A `ModelFile` in a bucket. It must not change while it is read."""

    def __init__(self, store: Any, meta: Mapping[str, Any], place: str) -> None:
        self._store = store
        self._path = meta["path"]
        self._version = version_of(meta)
        self.place = place
        self.size_bytes = int(meta["size"])

    def read_into(self, start: int, into: memoryview) -> None:
        stop = start + len(into)
        if start == stop:
            return
        try:
            answer = obstore().get(self._store, self._path, options={"range": (start, stop)})
            if (answer.meta["size"], version_of(answer.meta)) != (self.size_bytes, self._version):
                raise InvalidInput(f"{self.place} changed while it was read", place=self.place)
            body = memoryview(answer.bytes())
        except store_failures() as error:
            raise bucket_error(error, self.place) from error
        if len(body) != len(into):
            raise ModelUnavailable(f"{self.place} sent {len(body)} bytes for [{start}, {stop})")
        into[:] = body


class BucketFolder:
    """A `ModelFolder` in a bucket, of which nothing is kept on the disk; it is listed once, for the first file."""

    def __init__(self, bucket: Bucket, permissions: Permissions = OWNERS) -> None:
        check_endpoint(bucket, permissions)
        self.place = location_of(bucket)
        refuse_if_limited(
            f"{self.place}: the bucket's library", "leave them out until the run has its first checkpoint"
        )
        self._prefix = bucket.filter_directory.strip("/")
        self._store = store_of(bucket, StoreAccess(permissions, timeout=RANGE_TIMEOUT))
        self._listed: dict[str, Mapping[str, Any]] | None = None

    def origin(self) -> None:
        return None

    def open(self, name: str) -> BucketFile | None:
        meta = self._objects().get(name)
        return None if meta is None else BucketFile(self._store, meta, f"{self.place}/{name}")

    def names(self) -> Sequence[str]:
        return list(self._objects())

    def identify(self, name: str) -> BaseFile | None:
        file = self.open(name)
        return None if file is None else hashed(file)

    def _objects(self) -> Mapping[str, Mapping[str, Any]]:
        if self._listed is None:
            try:
                found = obstore().list_with_delimiter(self._store, prefix=self._prefix or None)["objects"]
            except store_failures() as error:
                raise bucket_error(error, self.place) from error
            self._listed = {meta["path"].rpartition("/")[2]: meta for meta in found}
        return self._listed


def check_endpoint(bucket: Bucket, permissions: Permissions) -> None:
    """Raise `NotAllowed` if a bucket is on a server that the owner did not name.

    obstore resolves names and follows redirects itself, so that no other server can be checked, by an address either.
    """
    host = host_of(bucket)
    if endpoint_of(bucket) is not None and not permissions.has_named(host):
        raise NotAllowed(
            f"the run's model is in a bucket of {host}; allow that server with --credentials-for {host}", host=host
        )


def bucket_error(error: Exception, place: str) -> InvalidInput | ModelUnavailable:
    """Return the error for a failed request for a model's files."""
    found = request_error(error, place)
    return ModelUnavailable(found.message) if isinstance(found, SourceUnavailable) else InvalidInput(found.message)


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
