"""Blobs as objects, named by their SHA-256, in a folder of a bucket that one run directory has for itself.

```
FOLDER/RUN_ID/owner                     names the run directory, so that no other one deletes its blobs
FOLDER/RUN_ID/blobs/SHA256              the blobs
FOLDER/RUN_ID/incoming/SHA256.CLIENT    what clients put, until it is taken in
```

The rules kept here: only the coordinator's own credentials write to `blobs/`. A signed URL writes to `incoming/`, and
what arrives there is copied before it is checked, size and digest, so that nobody changes what was checked. The
original is deleted last: as long as there is one, nobody knows that the copy was checked, and no start believes it. One
digest is taken in, checked or deleted at a time.
"""

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Self

from epochal.coordinator.store.blobs import (
    SignedPut,
    blob_not_found,
    check_content,
    check_growth,
    check_room,
    read_again,
)
from epochal.coordinator.store.object_store.granted_puts import GrantedPuts
from epochal.coordinator.store.object_store.objects import SIGNED_FOR_S, ObjectMissing, Objects, StoredObject
from epochal.coordinator.store.object_store.reading import BLOBS, ObjectReader, OpenObject, key_of
from epochal.coordinator.store.object_store.signing import bound_put
from epochal.runtime.keyed_locks import KeyedLocks
from epochal.state.errors import Refused, StoreBlocked
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256

INCOMING = "incoming"
SHOWN_WITHIN_S = 5.0
"""Time in which a store shows an object that was put into it."""
LOOK_EVERY_S = 0.25
FORGOTTEN_AFTER_S = 3600.0
"""Age at which an object in `incoming/` is deleted for which this process gave no client a grant."""


class ObjectBlobs(ObjectReader):
    """The `BlobStore` protocol over a folder of a bucket; which blobs it holds is read once, when it is opened."""

    def __init__(self, objects: Objects, max_total_bytes: int, found: list[StoredObject]) -> None:
        super().__init__(objects)
        self._max_total_bytes = max_total_bytes
        self._sizes = {Sha256(item.key.rpartition("/")[2]): item.size_bytes for item in found}
        self._held_bytes = sum(self._sizes.values())
        self._versions: dict[Sha256, str] = {}
        """Of held objects: the version whose bytes this process has read, and which are the blob's."""
        self._taken: dict[Sha256, OpenObject] = {}
        """What was taken in and is not settled yet; the digest's lock is held meanwhile."""
        self._locks: KeyedLocks[Sha256] = KeyedLocks()
        self._puts = GrantedPuts()
        self._arriving_bytes = 0

    @classmethod
    async def open(cls, objects: Objects, max_total_bytes: int) -> Self:
        """Return the blobs of a folder. One that a killed coordinator may not have checked is read once more.

        Raises:
            StoreBlocked: the store refuses, fails, or does not answer.
            InvalidInput: it holds too many objects.
        """
        found = await objects.listed(BLOBS)
        unsettled = {digest_in(item.key) for item in await objects.listed(INCOMING)}
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
        return self._held_bytes + self._arriving_bytes + self._puts.total_bytes

    def _hold(self, sha256: Sha256, size_bytes: int, version: str | None) -> None:
        self._held_bytes += size_bytes - self._sizes.get(sha256, 0)
        self._sizes[sha256] = size_bytes
        if version is None:
            self._versions.pop(sha256, None)
        else:
            self._versions[sha256] = version

    def _let_go(self, sha256: Sha256) -> None:
        self._held_bytes -= self._sizes.pop(sha256, 0)
        self._versions.pop(sha256, None)

    # Bytes that pass through the coordinator

    async def receive(self, sha256: Sha256, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int = 0) -> None:
        if await self.size(sha256) is not None:
            await read_again(body, size_bytes)
            return
        putting = self._put(key_of(sha256), sha256, size_bytes, body, spare_bytes)
        async with putting as (_, version), self._locks.of(sha256):
            if sha256 not in self._sizes:  # somebody who has put other bytes there may have overwritten these
                await self._check_kept(sha256, size_bytes, version)

    async def _check_kept(self, sha256: Sha256, size_bytes: int, version: str | None) -> None:
        """Hold what was put under a blob's name, if it is still there. Raise `Refused` (`body-incomplete`) if not."""
        key = key_of(sha256)
        try:
            found = await self._objects.head(key)
            if found.version != version:
                data = OpenObject(self._objects, sha256, size_bytes)
                check_content(sha256, size_bytes, found.size_bytes, await asyncio.to_thread(data.sha256))
        except (ObjectMissing, Refused) as error:
            place = self._objects.place_of(key)
            raise Refused(Refusal.BODY_INCOMPLETE, f"{place} was overwritten or deleted meanwhile") from error
        self._hold(sha256, size_bytes, found.version)

    async def add(self, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int = 0) -> Sha256:
        key = f"{INCOMING}/{os.urandom(16).hex()}"
        try:
            putting = self._put(key, None, size_bytes, body, spare_bytes)
            async with putting as (sha256, _), self._locks.of(sha256):
                await self._objects.copy(key, key_of(sha256))
                self._hold(sha256, size_bytes, None)
        finally:
            await self._objects.delete(key)
        return sha256

    @contextlib.asynccontextmanager
    async def _put(
        self, key: str, sha256: Sha256 | None, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int
    ) -> AsyncIterator[tuple[Sha256, str | None]]:
        """Keep the bytes as an object if they are what was announced, else nothing; yield digest and version.

        They take room until the context is left.
        """
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
            version = await self._objects.put(key, checked())
            yield Sha256(digest.hexdigest()), version
        finally:
            self._arriving_bytes -= received_bytes

    async def size(self, sha256: Sha256) -> int | None:
        return self._sizes.get(sha256)

    async def recount(self) -> None:
        """Do nothing: nobody else adds or deletes blobs."""

    async def _is_settled(self, sha256: Sha256, size_bytes: int) -> bool:
        """Return whether a blob is held, whose digest's lock is held."""
        del size_bytes
        return sha256 in self._sizes

    async def delete(self, sha256: Sha256) -> None:
        async with self._locks.of(sha256):
            await self._objects.delete(key_of(sha256))
            self._let_go(sha256)

    async def held(self) -> frozenset[Sha256]:
        return frozenset(self._sizes)

    # Signed requests

    async def signed_get(self, sha256: Sha256) -> str:
        """Return a URL where anybody gets a blob that is held, or was taken in."""
        return await self._objects.signed("GET", key_of(sha256))

    async def look(self, sha256: Sha256, *, reads: bool) -> None:
        """Check whether a held blob is still where `signed_get` leads, because somebody did not find it there.

        Args:
            sha256: the blob.
            reads: read its bytes, because somebody found others, unless these were read before.

        Raises:
            Refused: `not-found`: it was deleted or overwritten, and is not held from now on; the message says where.
        """
        size_bytes = self._sizes.get(sha256)
        if size_bytes is None:
            raise blob_not_found(sha256)
        try:
            found = await self._shown(key_of(sha256))
        except ObjectMissing:
            state = "is not there any more"
        else:
            state = f"was overwritten: it has {found.size_bytes} bytes, not {size_bytes}"
            if found.size_bytes == size_bytes:
                if not reads or found.version == self._versions.get(sha256):
                    return
                data = OpenObject(self._objects, sha256, size_bytes)
                digest = await asyncio.to_thread(data.sha256)
                if sha256 not in self._sizes:
                    raise blob_not_found(sha256)
                if digest == sha256:
                    self._hold(sha256, size_bytes, data.version)
                    return
                state = f"was overwritten: its bytes hash to {digest}"
        self._let_go(sha256)
        raise Refused(Refusal.NOT_FOUND, f"{self._objects.place_of(key_of(sha256))} {state}")

    async def signed_put(self, sha256: Sha256, size_bytes: int, sender: ClientId, spare_bytes: int = 0) -> SignedPut:
        """Return how this client puts an announced blob into the store.

        Raises:
            Refused: `blobs-full`, with `spare_bytes` as for `receive`.
        """
        key = _incoming_key(sha256, sender)
        self._puts.make_way(key, sender)
        check_room(self.total_bytes + size_bytes + spare_bytes, self._max_total_bytes)
        self._puts.grant(key, sender, size_bytes)
        url = await self._objects.signed("PUT", key)
        return bound_put(url, os.environ, sha256, size_bytes, SIGNED_FOR_S) or SignedPut(
            url, self._objects.put_headers, SIGNED_FOR_S
        )

    def end_put(self, sha256: Sha256, sender: ClientId) -> None:
        """Note that the run waits no longer for what `signed_put` granted: it takes no room any more."""
        self._puts.end(_incoming_key(sha256, sender))

    async def take_in(self, sha256: Sha256, size_bytes: int, sender: ClientId) -> OpenObject | None:
        """Move the object that a client has put by `signed_put` out of its reach, and return it; it is not held yet.

        `settle` must follow. Return None, and change nothing, if the blob is held already.

        Raises:
            Refused: `body-incomplete` if nothing arrived; `blob-mismatch` or `blob-too-large` for another length.
        """
        await self._locks.acquire(sha256)
        try:
            data = await self._take_in(sha256, size_bytes, sender)
            if data is not None:
                self._taken[sha256] = data
        except BaseException:
            self._locks.release(sha256)
            raise
        if data is None:
            self._locks.release(sha256)
        return data

    async def _take_in(self, sha256: Sha256, size_bytes: int, sender: ClientId) -> OpenObject | None:
        key = _incoming_key(sha256, sender)
        if await self._is_settled(sha256, size_bytes):
            await self._drop(key, sha256)
            return None
        try:
            found = await self._shown(key)
        except ObjectMissing:
            raise _not_there(self._objects.place_of(key)) from None
        if found.size_bytes == size_bytes:
            try:
                await self._objects.copy(key, key_of(sha256))
                found = await self._shown(key_of(sha256))
            except ObjectMissing as error:
                raise _not_there(str(error)) from None
            if found.size_bytes == size_bytes:
                return OpenObject(self._objects, sha256, size_bytes, found.version)
        await self._drop(key, sha256)
        kind = Refusal.BLOB_TOO_LARGE if found.size_bytes > size_bytes else Refusal.BLOB_MISMATCH
        place = self._objects.place_of(key)
        raise Refused(kind, f"{place} has {found.size_bytes} bytes; {size_bytes} were announced")

    async def settle(self, sha256: Sha256, size_bytes: int, sender: ClientId, found: Sha256 | None) -> None:
        """Hold what was taken in, if its bytes hash to its name; else delete it.

        Args:
            sha256: its name.
            size_bytes: its size.
            sender: the client that has put it there.
            found: the digest of its bytes; None if nobody knows.

        Raises:
            Refused: `blob-mismatch`.
        """
        taken, key = self._taken.pop(sha256), _incoming_key(sha256, sender)
        try:
            self._puts.end(key)
            if found == sha256:
                self._hold(sha256, size_bytes, taken.version)
            else:
                await self._objects.delete(key_of(sha256))
            await self._drop(key, sha256)
        finally:
            self._locks.release(sha256)
        check_content(sha256, size_bytes, size_bytes, found or sha256)

    async def _drop(self, key: str, sha256: Sha256) -> None:
        """Delete what a client has put, after what was copied from it and is not held: it marks that as unchecked.

        The digest's lock must be held. If it fails now, a sweep does it.
        """
        self._puts.end(key)
        with contextlib.suppress(StoreBlocked):
            await self._delete_both(key, sha256)

    async def _delete_both(self, key: str, sha256: Sha256) -> None:
        if sha256 not in self._sizes:
            await self._objects.delete(key_of(sha256))
        await self._objects.delete(key)

    async def _shown(self, key: str) -> StoredObject:
        """Return an object that a store may show a little late. Raise `ObjectMissing` if it does not."""
        until_s = time.monotonic() + SHOWN_WITHIN_S
        while True:
            try:
                return await self._objects.head(key)
            except ObjectMissing:
                if time.monotonic() > until_s:
                    raise
            await asyncio.sleep(LOOK_EVERY_S)

    # Upkeep

    async def drop_unfinished(self) -> None:
        """Delete what clients have put and nobody will take in any more."""
        oldest = datetime.now(UTC) - timedelta(seconds=FORGOTTEN_AFTER_S)
        async for page in self._objects.pages(INCOMING):
            expected = self._puts.keys
            for found in page:
                sha256 = digest_in(found.key)
                if found.written_at >= oldest or found.key in expected or sha256 in self._locks:
                    continue
                async with self._locks.of(sha256):
                    await self._is_settled(sha256, found.size_bytes)
                    await self._delete_both(found.key, sha256)

    async def check_answers(self) -> None:
        """Raise `StoreBlocked` unless the store answers now."""
        await self._objects.check_answers()


def _incoming_key(sha256: Sha256, sender: ClientId) -> str:
    return f"{INCOMING}/{sha256}.{sender}"


def digest_in(key: str) -> Sha256:
    """Return the digest that a key in `incoming/` names, if it does."""
    return Sha256(key.rpartition("/")[2].partition(".")[0])


def _not_there(place: str) -> Refused:
    return Refused(Refusal.BODY_INCOMPLETE, f"{place} is not there: it did not arrive, or somebody has deleted it")


class SharedObjectBlobs(ObjectBlobs):
    """The `BlobStore` protocol over a folder of a bucket that other coordinators of the run change meanwhile.

    What another coordinator has added or deleted is asked for each time it matters: a blob that this one has not
    settled itself is held once no original of it is left in `incoming/`.
    """

    async def recount(self) -> None:
        await self.held()

    async def size(self, sha256: Sha256) -> int | None:
        size_bytes = await self._size_there(sha256)
        if size_bytes is None:
            self._let_go(sha256)
        elif sha256 not in self._sizes and sha256 not in self._locks:
            unsettled = {digest_in(item.key) for item in await self._objects.listed(INCOMING)}
            if sha256 not in unsettled and sha256 not in self._sizes and sha256 not in self._locks:
                self._hold(sha256, size_bytes, None)
        return self._sizes.get(sha256)

    async def held(self) -> frozenset[Sha256]:
        found = {digest_in(item.key): item.size_bytes for item in await self._objects.listed(BLOBS)}
        unsettled = {digest_in(item.key) for item in await self._objects.listed(INCOMING)}
        for sha256 in self._sizes.keys() - found.keys():
            self._let_go(sha256)
        for sha256 in found.keys() - self._sizes.keys() - unsettled:
            if sha256 not in self._locks:
                self._hold(sha256, found[sha256], None)
        return frozenset(self._sizes)

    async def look(self, sha256: Sha256, *, reads: bool) -> None:
        if sha256 not in self._sizes:
            await self.size(sha256)
        await super().look(sha256, reads=reads)

    async def _is_settled(self, sha256: Sha256, size_bytes: int) -> bool:
        """Return whether anybody holds a blob, as its bytes show while an original of it is left."""
        if await self._size_there(sha256) != size_bytes:
            self._let_go(sha256)
            return False
        if sha256 not in self._sizes:
            data = OpenObject(self._objects, sha256, size_bytes)
            try:
                if await asyncio.to_thread(data.sha256) != sha256:
                    return False
            except Refused:  # it was deleted or overwritten while it was read
                return False
            self._hold(sha256, size_bytes, data.version)
        return True
