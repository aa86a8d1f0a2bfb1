"""All blobs of a run: those in its database, in a folder, and in an object store, which takes new ones if there is one.

So a run that began on a disk goes on with an object store, and reads what lies on the disk as long as it needs it.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from epochal.coordinator.store.blobs import BlobReader, BlobStore, OpenBlob, SignedPut, blob_not_found, read_again
from epochal.coordinator.store.object_store.blobs import ObjectBlobs
from epochal.coordinator.store.object_store.reading import OpenObject
from epochal.coordinator.store.sql.recorded_blobs import RecordedBlobs
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256


class LayeredReader:
    """The `BlobReader` protocol over several places, which are asked in their order.

    Args:
        open_layers: returns them when they are needed first.
    """

    def __init__(self, open_layers: Callable[[], Awaitable[Sequence[BlobReader]]]) -> None:
        self._open_layers = open_layers
        self._opened_layers: Sequence[BlobReader] = ()

    async def _layers(self) -> Sequence[BlobReader]:
        self._opened_layers = self._opened_layers or await self._open_layers()
        return self._opened_layers

    async def _holder(self, sha256: Sha256) -> BlobReader:
        """Return the layer that holds a blob. Raise `Refused(Refusal.NOT_FOUND)` if none does."""
        for layer in await self._layers():
            if await layer.size(sha256) is not None:
                return layer
        raise blob_not_found(sha256)

    async def size(self, sha256: Sha256) -> int | None:
        for layer in await self._layers():
            found = await layer.size(sha256)
            if found is not None:
                return found
        return None

    async def stream(self, sha256: Sha256, start: int, stop: int) -> AsyncIterator[bytes]:
        async for piece in (await self._holder(sha256)).stream(sha256, start, stop):
            yield piece

    @contextlib.asynccontextmanager
    async def opened(self, sha256: Sha256) -> AsyncIterator[OpenBlob]:
        async with (await self._holder(sha256)).opened(sha256) as blob:
            yield blob


class RunBlobs(LayeredReader):
    """The `BlobStore` protocol over all places of a run's blobs, and what only an object store can do.

    Args:
        recorded: those that the journal keeps with its records, and deletes.
        files: those in a folder; None if there is none.
        objects: those in an object store, which clients put there and get from there; None if there is none.
    """

    def __init__(self, recorded: RecordedBlobs, files: BlobStore | None, objects: ObjectBlobs | None = None) -> None:
        places = [place for place in (objects, files) if place is not None]

        async def layers() -> Sequence[BlobReader]:
            return (*places, recorded)

        super().__init__(layers)
        self._recorded = recorded
        self._objects = objects
        self._first, *self._others = places

    @property
    def total_bytes(self) -> int:
        return self._first.total_bytes + self._other_bytes

    @property
    def _other_bytes(self) -> int:
        """Size of those that lie where no new ones are kept."""
        return self._recorded.total_bytes + sum(place.total_bytes for place in self._others)

    def recent(self, sha256: Sha256) -> OpenBlob | None:
        """Return a small blob that is in memory, as `RecordedBlobs.recent`."""
        return self._recorded.recent(sha256)

    @contextlib.asynccontextmanager
    async def opened(self, sha256: Sha256) -> AsyncIterator[OpenBlob]:
        found = self.recent(sha256)
        if found is not None:
            yield found
            return
        async with super().opened(sha256) as blob:
            yield blob

    async def _lies_elsewhere(self, sha256: Sha256) -> bool:
        """Return whether a blob is held where no new ones are kept."""
        places: tuple[BlobReader, ...] = (*self._others, self._recorded)
        for place in places:
            if await place.size(sha256) is not None:
                return True
        return False

    async def receive(self, sha256: Sha256, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int = 0) -> None:
        if await self._lies_elsewhere(sha256):
            await read_again(body, size_bytes)
        else:
            await self._first.receive(sha256, size_bytes, body, spare_bytes + self._other_bytes)

    async def add(self, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int = 0) -> Sha256:
        return await self._first.add(size_bytes, body, spare_bytes + self._other_bytes)

    async def delete(self, sha256: Sha256) -> None:
        for place in (self._first, *self._others):
            await place.delete(sha256)

    async def held(self) -> frozenset[Sha256]:
        found = await self._recorded.held()
        return found.union(*[await place.held() for place in (self._first, *self._others)])

    async def recount(self) -> None:
        for place in (self._first, *self._others):
            await place.recount()
        await self._recorded.recount()

    # Blobs that clients put into an object store, and get from there, without the coordinator

    async def signed_get(self, sha256: Sha256) -> str | None:
        """Return a URL where anybody gets a blob that is held, or was taken in; None if the coordinator serves it."""
        if self._objects is None or (await self._objects.size(sha256) is None and await self._lies_elsewhere(sha256)):
            return None
        return await self._objects.signed_get(sha256)

    async def look(self, sha256: Sha256, *, reads: bool) -> None:
        """Check a blob as `ObjectBlobs.look` does, if it is in an object store."""
        if self._objects is not None and await self._holder(sha256) is self._objects:
            await self._objects.look(sha256, reads=reads)

    async def signed_put(
        self, sha256: Sha256, size_bytes: int, sender: ClientId, spare_bytes: int = 0
    ) -> SignedPut | None:
        """Return how a client puts a blob into the object store; None if it sends it to the coordinator.

        Raises as `ObjectBlobs.signed_put`.
        """
        if self._objects is None:
            return None
        return await self._objects.signed_put(sha256, size_bytes, sender, spare_bytes + self._other_bytes)

    def end_put(self, sha256: Sha256, sender: ClientId) -> None:
        """Note that the run waits no longer for a blob for which `signed_put` returned something."""
        if self._objects is not None:
            self._objects.end_put(sha256, sender)

    async def take_in(self, sha256: Sha256, size_bytes: int, sender: ClientId) -> OpenObject | None:
        """Take a blob in as `ObjectBlobs.take_in` does, unless it is held elsewhere."""
        if self._objects is None:
            message = f"blob {sha256} has not arrived; the coordinator itself takes its bytes"
            raise Refused(Refusal.BODY_INCOMPLETE, message)
        if await self._lies_elsewhere(sha256):
            return None
        return await self._objects.take_in(sha256, size_bytes, sender)

    async def settle(self, sha256: Sha256, size_bytes: int, sender: ClientId, found: Sha256 | None) -> None:
        """Hold or delete what `take_in` has returned, as `ObjectBlobs.settle` does."""
        assert self._objects is not None, "what was taken in lies there"
        await self._objects.settle(sha256, size_bytes, sender, found)

    async def drop_unfinished(self) -> None:
        """Delete what clients have put into the object store and nobody will take in any more."""
        if self._objects is not None:
            await self._objects.drop_unfinished()

    async def check_answers(self) -> None:
        """Raise `StoreBlocked` unless the object store answers now, if there is one."""
        if self._objects is not None:
            await self._objects.check_answers()
