"""Token files in a bucket of Google Cloud Storage, Amazon S3 (or a compatible server) or Azure, through obstore.

The rules kept here: `filter_directory` is a folder, not a prefix of names; a file must keep its ETag while it is read.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from epochal.data_providers.file_names import is_hidden
from epochal.data_providers.protocol import CorruptData, Rejected, SourceUnavailable
from epochal.data_providers.sources.bucket_errors import request_error
from epochal.data_providers.sources.byte_source import SourceFile, Wanted, run_bounded
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
from epochal.runtime.connections.bandwidth import present_limits, refuse_if_limited
from epochal.runtime.http.checked_relay import CheckedRelay
from epochal.runtime.http.environment_proxies import Proxies
from epochal.runtime.permissions import Permissions
from epochal.state.errors import InvalidInput, NotAllowed

MAX_LISTED_FILES = 100_000
MAX_CONCURRENT_REQUESTS = 32
"""Maximum number of requests of one batch at a time: objects are read by single ranges, each with a latency."""


class ObjectStoreSource:
    """A `ByteSource` over the objects in one folder of a bucket, by their paths. Make one with `open`."""

    def __init__(self, store: Any, location: str, objects: Mapping[str, SourceFile]) -> None:
        self._relay: CheckedRelay | None = None
        self.location = location
        self.files: Sequence[SourceFile] = list(objects.values())
        self._store = store
        self._by_name = {file.name: (path, file) for path, file in objects.items()}

    @classmethod
    async def open(cls, bucket: Bucket, permissions: Permissions) -> Self:
        """Open the objects of `filter_directory`, folders below it included.

        The names of Amazon, Google and Microsoft lead to public addresses. A server of another name is connected
        through a relay, which checks each address; not behind a proxy, where redirects would lead anywhere. With limits
        of bandwidth every bucket is, and none behind a proxy.

        Raises:
            NotAllowed: the server is at an address that may not be connected, or behind a proxy and the owner did not
                name it.
            SourceUnavailable: the store does not answer now; retry.
            Rejected: it refuses, or there are more than `MAX_LISTED_FILES`.
            InvalidInput: obstore is not installed, or does not accept the location's values; the user's fault.
        """
        endpoint, reach = endpoint_of(bucket), permissions.reach
        if Proxies():
            refuse_if_limited(f"a bucket behind a proxy ({host_of(bucket)})", "leave them out, or use no proxy")
        if endpoint is None and present_limits() is not None:
            reach = None
        elif endpoint is None or (reach is None and present_limits() is None):
            return await cls.over(store_of(bucket, StoreAccess(permissions)), *_folder_of(bucket))
        if Proxies():
            host = host_of(bucket)
            if not permissions.has_named(host):
                raise NotAllowed(
                    f"the run's data are in a bucket of {host}, whose redirects are not checked behind a proxy; allow "
                    f"that server with --credentials-for {host}, or name your own copy with --data",
                    host=host,
                )
            return await cls.over(store_of(bucket, StoreAccess(permissions)), *_folder_of(bucket))
        relay = CheckedRelay(reach)
        await relay.start()
        try:
            source = await cls.over(store_of(bucket, StoreAccess(permissions, relay.url)), *_folder_of(bucket))
        except BaseException:
            await relay.aclose()
            if relay.refusal is not None:
                raise relay.refusal from None
            raise
        source._relay = relay
        return source

    @classmethod
    async def over(cls, store: Any, location: str, folder: str, endpoint: str = "") -> Self:
        """Open a folder of any store of obstore, as `open`; `endpoint` distinguishes it from others of its location."""
        prefix = folder.strip("/")
        objects: dict[str, SourceFile] = {}
        try:
            async for chunk in obstore().list(store, prefix=prefix or None):
                for meta in chunk:
                    name = meta["path"][len(prefix) :].lstrip("/")
                    place = f"{location.rstrip('/')}/{name}"
                    if name and not is_hidden(name):  # an empty object may represent the folder itself
                        objects[meta["path"]] = SourceFile(name, meta["size"], place, version_of(meta), endpoint)
                if len(objects) > MAX_LISTED_FILES:
                    raise Rejected(f"{location} holds more than {MAX_LISTED_FILES} objects", location=location)
        except store_failures() as error:
            raise request_error(error, location) from error
        except ValueError as error:
            raise InvalidInput(f"{location} is not a folder of a bucket: {error}", location=location) from error
        return cls(store, location, objects)

    async def read_into(self, name: str, start: int, into: memoryview) -> None:
        """Fill `into` with the file's bytes, as `ByteSource.read_into`."""
        (path, file), stop = self._by_name[name], start + len(into)
        if start == stop:
            return
        try:
            answer = await obstore().get_async(self._store, path, options={"range": (start, stop)})
            size_bytes, version = answer.meta["size"], version_of(answer.meta)
            if (size_bytes, version) != (file.size_bytes, file.version):
                raise CorruptData(
                    f"{file.place} changed: it had {file.size_bytes} bytes and version {file.version}, and now has "
                    f"{size_bytes} and {version}",
                    place=file.place,
                )
            body = memoryview(await answer.bytes_async())
        except store_failures() as error:
            raise request_error(error, file.place) from error
        if len(body) != stop - start:
            raise SourceUnavailable(f"{file.place} sent {len(body)} bytes for [{start}, {stop})")
        into[:] = body

    async def read_many_into(self, wanted: Sequence[Wanted]) -> None:
        """Fill every destination, as `BatchedSource.read_many_into`, by concurrent requests.

        Buckets do not answer several ranges at once, and obstore's `get_ranges` returns neither an object's ETag nor
        its size, by which a change is noticed.
        """

        async def read_one(one: Wanted) -> None:
            await self.read_into(one.name, one.start, one.into)

        await run_bounded(read_one, wanted, MAX_CONCURRENT_REQUESTS)

    async def aclose(self) -> None:
        """Close the relay if there is one; obstore has nothing to close."""
        if self._relay is not None:
            await self._relay.aclose()


def _folder_of(bucket: Bucket) -> tuple[str, str, str]:
    return location_of(bucket), bucket.filter_directory, endpoint_of(bucket) or ""
