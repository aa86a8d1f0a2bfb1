"""A model in a folder of a bucket, read by byte ranges: nothing of it is kept on the disk."""

from collections.abc import Mapping, Sequence
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
from epochal.runtime.permissions import OWNERS, Permissions
from epochal.state.config.adapter_table import BaseFile
from epochal.state.errors import InvalidInput, ModelUnavailable, NotAllowed
from epochal.trainers.sources.model_source import hashed

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
    """A `ModelFolder` in a bucket; it is listed once, when the first file is opened."""

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
