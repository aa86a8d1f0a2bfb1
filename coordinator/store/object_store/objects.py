"""The objects of one folder of a bucket, through obstore, with a bound on every wait.

What goes wrong has two names: `ObjectMissing`, and `StoreBlocked` for everything else (the store refuses, fails, or
does not answer). The run holds meanwhile, as it does when a disk is full: a bucket's permissions can be mended.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from epochal.runtime.buckets import (
    StoreAccess,
    is_anonymous,
    location_of,
    obstore,
    status_of,
    store_failures,
    store_of,
    tag_of,
    version_of,
)
from epochal.state.config.blob_place import BlobPlace
from epochal.state.errors import InvalidInput, StoreBlocked

REQUEST_TIMEOUT = "30s"
"""Maximum time for one request of a few megabytes, and its answer."""
ANSWER_WITHIN_S = 60.0
"""Maximum time for such a request with its repetitions."""
REPEATED_FOR_S = 30.0
"""A request is not repeated any more after this time, so that each ends within `ANSWER_WITHIN_S`."""
SIGNED_WITHIN_S = 15.0
"""Maximum time to sign a URL: a role of the machine may have to be asked for its key."""
COPY_TIMEOUT = "600s"
COPY_WITHIN_S = 600.0
"""Maximum time in which a store copies one object."""
PART_BYTES = 8 * 1024 * 1024
"""An object is sent in parts of this size."""
PARTS_AT_A_TIME = 2
MAX_OBJECTS = 100_000
"""Maximum number of objects in a run's folder."""
PAGE_OBJECTS = 1000
SIGNED_FOR_S = 300.0
"""Seconds within which a signed request must begin."""
RANGE_NOT_SATISFIABLE = 416
OWNER = "owner"
"""The object that names the run directory whose folder it is."""


class ObjectMissing(Exception):
    """There is no such object; the message is its URL."""


class ObjectExists(Exception):
    """There is such an object already; the message is its URL."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object: its key below the folder, its size, a value that changes with its content, when it was written."""

    key: str
    size_bytes: int
    version: str
    written_at: datetime


class Objects:
    """The objects below one prefix of a bucket.

    Args:
        place: the bucket, and a folder of it.
        below: names a folder in that one.
        is_public: whether it is read without credentials where the environment has none.

    Raises:
        InvalidInput: obstore is not installed, does not accept the values, or finds no credentials.
    """

    def __init__(self, place: BlobPlace, below: str, *, is_public: bool = False) -> None:
        bucket = place.bucket
        if is_anonymous(bucket.variant) and not is_public:
            raise InvalidInput(
                f"blobs.store: {location_of(bucket)} needs credentials, which are not in the environment (see the "
                "documentation of state.toml, [blobs])"
            )
        self.location = f"{location_of(bucket)}/{below}"
        self._prefix = "/".join(part for part in (place.folder, below) if part)
        self._store = store_of(bucket, StoreAccess(timeout=REQUEST_TIMEOUT, repeated_for_s=REPEATED_FOR_S))
        self._patient_store = store_of(bucket, StoreAccess(timeout=COPY_TIMEOUT))
        self.put_headers = {"x-ms-blob-type": "BlockBlob"} if bucket.variant == "Azure" else {}
        """Headers that a signed PUT needs."""

    def place_of(self, key: str) -> str:
        """Return the object's URL, for messages."""
        return f"{self.location}/{key}"

    async def put(self, key: str, pieces: AsyncIterator[bytes]) -> str | None:
        """Keep an object, whole or not at all, and return its version if the store says it.

        It takes as long as `pieces`, and `ANSWER_WITHIN_S` for each part of `PART_BYTES` at most. What `pieces` raises
        passes through.
        """
        broken: Exception | None = None

        async def watched() -> AsyncIterator[bytes]:
            nonlocal broken
            try:
                async for piece in pieces:
                    yield piece
            except Exception as error:
                broken = error
                raise

        options = {"chunk_size": PART_BYTES, "max_concurrency": PARTS_AT_A_TIME}
        try:
            with self._named(key):
                kept = await obstore().put_async(self._store, self._path(key), watched(), **options)
        except Exception:
            if broken is not None:  # it may be an `OSError`, as the store's own are
                raise broken from None
            raise
        return tag_of(kept["e_tag"]) if kept["e_tag"] else None

    async def create(self, key: str, content: bytes) -> bool:
        """Keep a small object; return False, and change nothing, if there is one of this name."""
        try:
            async with self._bounded(key):
                await obstore().put_async(self._store, self._path(key), content, mode="create")
        except ObjectExists:
            return False
        return True

    async def head(self, key: str) -> StoredObject:
        """Return what is known of an object. Raise `ObjectMissing` if there is none."""
        async with self._bounded(key):
            return self._found(await obstore().head_async(self._store, self._path(key)))

    async def get(self, key: str) -> bytes:
        """Return a small object. Raise `ObjectMissing` if there is none."""
        async with self._bounded(key):
            return bytes(await (await obstore().get_async(self._store, self._path(key))).bytes_async())

    async def read(self, key: str, start: int, stop: int) -> bytes:
        """Return a few megabytes of an object. Raise `ObjectMissing` if there is none."""
        async with self._bounded(key):
            path = self._path(key)
            return bytes(await obstore().get_range_async(self._store, path, start=start, end=stop))

    def read_now(self, key: str, start: int, stop: int) -> tuple[bytes, str]:
        """Return a few megabytes of an object, and its version. It blocks.

        Fewer bytes, or none, are returned where the object ends before `stop`. Raise `ObjectMissing` if there is none.
        """
        try:
            with self._named(key):
                answer = obstore().get(self._store, self._path(key), options={"range": (start, stop)})
                return bytes(answer.bytes()), version_of(answer.meta)
        except StoreBlocked as error:
            if isinstance(error.__cause__, Exception) and status_of(error.__cause__) == RANGE_NOT_SATISFIABLE:
                return b"", ""
            raise

    async def copy(self, key: str, to: str) -> None:
        """Copy an object within the store. Raise `ObjectMissing` if there is none."""
        async with self._bounded(key, COPY_WITHIN_S):
            await obstore().copy_async(self._patient_store, self._path(key), self._path(to))

    async def delete(self, key: str) -> None:
        """Delete an object if there is one."""
        try:
            async with self._bounded(key):
                await obstore().delete_async(self._store, self._path(key))
        except ObjectMissing:
            return

    async def listed(self, folder: str) -> list[StoredObject]:
        """Return the objects in a folder.

        Raises:
            InvalidInput: there are more than `MAX_OBJECTS`.
        """
        found: list[StoredObject] = []
        async for page in self.pages(folder):
            found += page
            if len(found) > MAX_OBJECTS:
                raise InvalidInput(f"{self.place_of(folder)} holds more than {MAX_OBJECTS} objects")
        return found

    async def pages(self, folder: str) -> AsyncIterator[list[StoredObject]]:
        """Yield the objects in a folder, up to `PAGE_OBJECTS` at a time; they may be deleted meanwhile."""
        chunks = obstore().list(self._store, prefix=self._path(folder), chunk_size=PAGE_OBJECTS)
        while True:
            async with self._bounded(folder):
                chunk = await anext(aiter(chunks), None)
            if chunk is None:
                return
            yield [self._found(meta) for meta in chunk]

    async def check_answers(self) -> None:
        """Raise `StoreBlocked` unless the store answers, whatever is in it."""
        try:
            await self.head(OWNER)
        except ObjectMissing:
            return

    async def signed(self, method: str, key: str) -> str:
        """Return a URL for one request on an object, valid for `SIGNED_FOR_S`; obstore binds nothing more."""
        async with self._bounded(key, SIGNED_WITHIN_S):
            life = timedelta(seconds=SIGNED_FOR_S)
            return str(await obstore().sign_async(self._store, method, self._path(key), life))

    def _path(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _found(self, meta: Any) -> StoredObject:
        key = str(meta["path"])[len(self._prefix) + 1 :]
        return StoredObject(key, int(meta["size"]), version_of(meta), meta["last_modified"])

    @contextmanager
    def _named(self, key: str) -> Iterator[None]:
        """Give the errors of a request the names of this module."""
        exceptions = obstore().exceptions
        try:
            yield
        except (FileExistsError, exceptions.AlreadyExistsError) as error:
            raise ObjectExists(self.place_of(key)) from error
        except (FileNotFoundError, exceptions.NotFoundError) as error:
            if "NoSuchBucket" in str(error):
                raise self._blocked(key, error) from error
            raise ObjectMissing(self.place_of(key)) from error
        except store_failures() as error:
            raise self._blocked(key, error) from error

    @asynccontextmanager
    async def _bounded(self, key: str, most_s: float | None = None) -> AsyncIterator[None]:
        """Do so, and end the request within a time, `ANSWER_WITHIN_S` by default."""
        within_s = ANSWER_WITHIN_S if most_s is None else most_s
        with self._named(key):
            try:
                async with asyncio.timeout(within_s):
                    yield
            except TimeoutError as error:
                reason = f"the object store did not answer about {self.place_of(key)} within {within_s:g} s"
                raise StoreBlocked(reason, is_full=False) from error

    def _blocked(self, key: str, error: Exception) -> StoreBlocked:
        reason = str(error).partition("\n")[0]
        return StoreBlocked(f"the object store does not serve {self.place_of(key)}: {reason}", is_full=False)
