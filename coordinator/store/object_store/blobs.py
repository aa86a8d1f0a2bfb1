"""Blobs as objects, named by their SHA-256, in a folder of a bucket that one run directory has for itself.

```
FOLDER/RUN_ID/owner                     names the run directory, so that no other one deletes its blobs
FOLDER/RUN_ID/blobs/SHA256              the blobs
FOLDER/RUN_ID/incoming/SHA256.CLIENT    what clients put, until it is taken in
```

The rule kept here: only the coordinator's own credentials write to `blobs/`. A signed URL writes to `incoming/`, and
what arrives there is copied before it is checked, so that nobody changes what was checked. The original is deleted
last: as long as there is one, nobody knows that the copy was checked.
"""

import asyncio
import contextlib
import hashlib
import logging
import mmap
import os
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from coordinator.store.blobs import (
    STREAM_BYTES,
    OpenBlob,
    SignedPut,
    blob_not_found,
    check_content,
    check_growth,
    check_room,
)
from coordinator.store.object_store.objects import SIGNED_FOR_S, ObjectMissing, Objects, StoredObject
from coordinator.store.object_store.signing import bound_put
from runtime.windows import WINDOW_BYTES, Windows
from state.errors import Refused, StoreBlocked
from state.refusals import Refusal
from state.wire import ClientId, Sha256

log = logging.getLogger(__name__)

BLOBS, INCOMING = "blobs", "incoming"
SHOWN_WITHIN_S = 5.0
"""Time in which a store shows an object that was put into it."""
LOOK_EVERY_S = 0.25
TAKEN_WITHIN_S = 900.0
"""Time from a signed PUT to the end of its upload; what has not been taken in by then is deleted."""
FORGOTTEN_AFTER_S = 3600.0
"""Age at which an object in `incoming/` is deleted that no client was told to put there by this process."""
MAX_PUTS_PER_CLIENT = 4
"""Maximum number of announced uploads of one client that count as held before they are taken in."""


@dataclass(frozen=True, slots=True)
class _Put:
    """An upload that a client was told to begin: its key, its size, and until when it may end."""

    key: str
    size_bytes: int
    until_s: float


class ObjectReader:
    """The `BlobReader` protocol over a folder of a bucket, in which a coordinator may write meanwhile."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def size(self, sha256: Sha256) -> int | None:
        try:
            return (await self._objects.head(_key(sha256))).size_bytes
        except ObjectMissing:
            return None

    async def stream(self, sha256: Sha256, start: int, stop: int) -> AsyncIterator[bytes]:
        for first in range(start, stop, WINDOW_BYTES):
            try:
                window = await self._objects.read(_key(sha256), first, min(first + WINDOW_BYTES, stop))
            except ObjectMissing:
                raise blob_not_found(sha256) from None
            for offset in range(0, len(window), STREAM_BYTES):
                yield window[offset : offset + STREAM_BYTES]

    @contextlib.asynccontextmanager
    async def opened(self, sha256: Sha256) -> AsyncIterator[OpenBlob]:
        size_bytes = await self.size(sha256)
        if size_bytes is None:
            raise blob_not_found(sha256)
        yield OpenObject(self._objects, sha256, size_bytes)


class ObjectBlobs(ObjectReader):
    """The `BlobStore` protocol over a folder of a bucket; which blobs it holds is read once, when it is opened."""

    def __init__(self, objects: Objects, max_total_bytes: int, found: list[StoredObject]) -> None:
        super().__init__(objects)
        self._max_total_bytes = max_total_bytes
        self._sizes = {Sha256(item.key.rpartition("/")[2]): item.size_bytes for item in found}
        self._puts: dict[ClientId, list[_Put]] = {}
        self._arriving_bytes = 0

    @classmethod
    async def open(cls, objects: Objects, max_total_bytes: int) -> "ObjectBlobs":
        """Return the blobs of a folder. One that a killed coordinator may not have checked is read once more.

        Raises:
            StoreBlocked: the store refuses, fails, or does not answer.
            InvalidInput: it holds too many objects.
        """
        found = await objects.listed(BLOBS)
        unsettled = {item.key.rpartition("/")[2].partition(".")[0] for item in await objects.listed(INCOMING)}
        kept = []
        for item in found:
            sha256 = Sha256(item.key.rpartition("/")[2])
            data = OpenObject(objects, sha256, item.size_bytes)
            if sha256 not in unsettled or await asyncio.to_thread(data.sha256) == sha256:
                kept.append(item)
            else:
                await objects.delete(item.key)
        return cls(objects, max_total_bytes, kept)

    @property
    def location(self) -> str:
        """The folder's URL, for messages."""
        return self._objects.location

    @property
    def total_bytes(self) -> int:
        put_bytes = sum(put.size_bytes for puts in self._puts.values() for put in puts)
        return sum(self._sizes.values()) + self._arriving_bytes + put_bytes

    async def receive(self, sha256: Sha256, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int = 0) -> None:
        if sha256 in self._sizes:
            received = 0
            async for piece in body:
                received += len(piece)
                check_growth(received, size_bytes)
            return
        await self._put(_key(sha256), sha256, size_bytes, body, spare_bytes)
        self._sizes[sha256] = size_bytes

    async def add(self, size_bytes: int, body: AsyncIterator[bytes]) -> Sha256:
        key = f"{INCOMING}/{os.urandom(16).hex()}"
        try:
            sha256 = await self._put(key, None, size_bytes, body, 0)
            await self._objects.copy(key, _key(sha256))
        finally:
            await self._objects.delete(key)
        self._sizes[sha256] = size_bytes
        return sha256

    async def _put(
        self, key: str, sha256: Sha256 | None, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int
    ) -> Sha256:
        """Keep the bytes as an object if they are what was announced, else nothing; return their digest."""
        check_room(self.total_bytes + size_bytes + spare_bytes, self._max_total_bytes)
        digest, received_bytes = hashlib.sha256(), 0

        async def checked() -> AsyncIterator[bytes]:
            nonlocal received_bytes
            async for piece in body:
                check_growth(received_bytes + len(piece), size_bytes)
                check_room(self.total_bytes + len(piece) + spare_bytes, self._max_total_bytes)
                received_bytes += len(piece)
                self._arriving_bytes += len(piece)
                digest.update(piece)
                yield piece
            check_content(sha256, size_bytes, received_bytes, Sha256(digest.hexdigest()))

        try:
            await self._objects.put(key, checked())
        finally:
            self._arriving_bytes -= received_bytes
        return Sha256(digest.hexdigest())

    async def size(self, sha256: Sha256) -> int | None:
        return self._sizes.get(sha256)

    async def delete(self, sha256: Sha256) -> None:
        if sha256 in self._sizes:
            await self._objects.delete(_key(sha256))
            self._sizes.pop(sha256, None)

    async def held(self) -> frozenset[Sha256]:
        return frozenset(self._sizes)

    # Signed requests

    async def signed_get(self, sha256: Sha256, *, looks: bool = False) -> str:
        if looks:
            await self._look(sha256)
        return await self._objects.signed("GET", _key(sha256))

    async def _look(self, sha256: Sha256) -> None:
        """Hold a blob no longer whose object is gone or has another size. Raise `Refused` (`not-found`) then."""
        expected_bytes = self._sizes.get(sha256)
        try:
            found_bytes: int | None = (await self._objects.head(_key(sha256))).size_bytes
        except ObjectMissing:
            found_bytes = None
        if found_bytes == expected_bytes is not None:
            return
        self._sizes.pop(sha256, None)
        state = "is not there any more" if found_bytes is None else f"was overwritten: it has {found_bytes} bytes"
        raise Refused(Refusal.NOT_FOUND, f"{self._objects.place_of(_key(sha256))} {state}")

    async def signed_put(
        self, sha256: Sha256, size_bytes: int, sender: ClientId, spare_bytes: int = 0
    ) -> SignedPut | None:
        key = _incoming_key(sha256, sender)
        others = [put for put in self._puts.get(sender, []) if put.key != key][1 - MAX_PUTS_PER_CLIENT :]
        self._puts[sender] = others
        check_room(self.total_bytes + size_bytes + spare_bytes, self._max_total_bytes)
        self._puts[sender] = [*others, _Put(key, size_bytes, _now_s() + TAKEN_WITHIN_S)]
        url = await self._objects.signed("PUT", key)
        return bound_put(url, os.environ, sha256, size_bytes, SIGNED_FOR_S) or SignedPut(
            url, self._objects.put_headers, SIGNED_FOR_S
        )

    async def take_in(self, sha256: Sha256, size_bytes: int, sender: ClientId) -> "OpenObject | None":
        key = _incoming_key(sha256, sender)
        if sha256 in self._sizes:
            await self._drop(sender, key)
            return None
        found = await self._shown(key)
        try:
            check_growth(found.size_bytes, size_bytes)
            check_content(None, size_bytes, found.size_bytes, sha256)
        except Refused:
            await self._drop(sender, key)
            raise
        try:
            await self._objects.copy(key, _key(sha256))
        except ObjectMissing:
            raise _not_there(self._objects.place_of(key)) from None
        return OpenObject(self._objects, sha256, size_bytes)

    async def settle(self, sha256: Sha256, size_bytes: int, sender: ClientId, found: Sha256 | None) -> None:
        if found == sha256:
            self._sizes[sha256] = size_bytes
        else:
            await self._objects.delete(_key(sha256))
        await self._drop(sender, _incoming_key(sha256, sender))
        check_content(sha256, size_bytes, size_bytes, found or sha256)

    async def _drop(self, sender: ClientId, key: str) -> None:
        """Delete what a client has put, which marks the blob as unchecked; if that fails now, a sweep does it."""
        self._forget(sender, key)
        with contextlib.suppress(StoreBlocked):
            await self._objects.delete(key)

    async def _shown(self, key: str) -> StoredObject:
        """Return an object that a store may show a little late. Raise `Refused` (`body-incomplete`) if it does not."""
        until_s = _now_s() + SHOWN_WITHIN_S
        while True:
            try:
                return await self._objects.head(key)
            except ObjectMissing:
                if _now_s() > until_s:
                    raise _not_there(self._objects.place_of(key)) from None
            await asyncio.sleep(LOOK_EVERY_S)

    def _forget(self, sender: ClientId, key: str) -> None:
        left = [put for put in self._puts.get(sender, []) if put.key != key]
        if left:
            self._puts[sender] = left
        else:
            self._puts.pop(sender, None)

    async def drop_unfinished(self) -> None:
        for sender, puts in list(self._puts.items()):
            for put in puts:
                if put.until_s < _now_s():
                    self._forget(sender, put.key)
        expected = {put.key for puts in self._puts.values() for put in puts}
        oldest = datetime.now(UTC) - timedelta(seconds=FORGOTTEN_AFTER_S)
        for found in await self._objects.listed(INCOMING):
            if found.key not in expected and found.written_at < oldest:
                await self._objects.delete(found.key)

    async def check_answers(self) -> None:
        await self._objects.check_answers()


class OpenObject:
    """The `OpenBlob` protocol over an object, read a window at a time.

    Reading raises `Refused(Refusal.NOT_FOUND)`, which names the object, if it is gone or changes while it is read.
    """

    descriptor = None

    def __init__(self, objects: Objects, sha256: Sha256, size_bytes: int) -> None:
        self._objects = objects
        self._key = _key(sha256)
        self._version: str | None = None
        self._windows = Windows(size_bytes, self._fetch)

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, part: slice) -> bytes:
        return self._windows[part]

    def sha256(self) -> Sha256:
        """Return the digest of the bytes that were read, and of the rest, which is read now."""
        return self._windows.sha256()

    def _fetch(self, start: int, stop: int) -> bytes:
        place = self._objects.place_of(self._key)
        try:
            data, version = self._objects.read_now(self._key, start, stop)
        except ObjectMissing:
            raise Refused(Refusal.NOT_FOUND, f"{place} is not there any more") from None
        if len(data) != stop - start or version != (self._version or version):
            raise Refused(Refusal.NOT_FOUND, f"{place} was overwritten while it was read")
        self._version = version
        return data

    def view(self) -> memoryview:
        size_bytes = len(self)
        if not size_bytes:
            return memoryview(b"")
        with tempfile.TemporaryFile() as file:
            for start in range(0, size_bytes, WINDOW_BYTES):
                file.write(self[start : min(start + WINDOW_BYTES, size_bytes)])
            file.flush()
            return memoryview(mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ))


def _key(sha256: Sha256) -> str:
    return f"{BLOBS}/{sha256}"


def _incoming_key(sha256: Sha256, sender: ClientId) -> str:
    return f"{INCOMING}/{sha256}.{sender}"


def _not_there(place: str) -> Refused:
    return Refused(Refusal.BODY_INCOMPLETE, f"{place} is not there: it did not arrive, or somebody has deleted it")


def _now_s() -> float:
    return asyncio.get_running_loop().time()
