"""Blobs in several stores, of which one takes the new ones: a run that has moved goes on with what lies elsewhere."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from epochal.coordinator.store.blobs import BlobReader, BlobStore, OpenBlob, SignedPut, blob_not_found
from epochal.state.blob_checks import HashedReadable
from epochal.state.wire import ClientId, Sha256

R = TypeVar("R", bound=BlobReader)
Leave = Callable[[BlobStore], Awaitable[bool]]


class LayeredReader(Generic[R]):
    """The `BlobReader` protocol over several readers, which are asked in their order.

    Args:
        open_layers: returns them when they are needed first.
    """

    def __init__(self, open_layers: Callable[[], Awaitable[Sequence[R]]]) -> None:
        self._open_layers = open_layers
        self._opened_layers: Sequence[R] = ()

    async def _layers(self) -> Sequence[R]:
        self._opened_layers = self._opened_layers or await self._open_layers()
        return self._opened_layers

    async def _holder(self, sha256: Sha256) -> R:
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


def layered_reader(*layers: BlobReader) -> BlobReader:
    """Return blobs in several places, which are asked in this order."""

    async def open_layers() -> Sequence[BlobReader]:
        return layers

    return LayeredReader(open_layers)


class LayeredBlobs(LayeredReader[BlobStore]):
    """The `BlobStore` protocol over several: the first takes new blobs, all serve and delete those that they hold.

    Args:
        first: takes new blobs.
        others: hold what was kept before.
        leave: called once another one holds nothing any more; returns whether it is left, and used no longer.
    """

    def __init__(self, first: BlobStore, others: Sequence[BlobStore], leave: Leave | None = None) -> None:

        async def layers() -> Sequence[BlobStore]:
            return (first, *others)

        super().__init__(layers)
        self._first = first
        self._others = tuple(others)
        self._leave = leave or _stay

    @property
    def total_bytes(self) -> int:
        return self._first.total_bytes + self._other_bytes

    @property
    def _other_bytes(self) -> int:
        return sum(layer.total_bytes for layer in self._others)

    async def receive(self, sha256: Sha256, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int = 0) -> None:
        for layer in self._others:
            if await layer.size(sha256) is not None:
                await layer.receive(sha256, size_bytes, body)
                return
        await self._first.receive(sha256, size_bytes, body, spare_bytes + self._other_bytes)

    async def add(self, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int = 0) -> Sha256:
        return await self._first.add(size_bytes, body, spare_bytes + self._other_bytes)

    async def delete(self, sha256: Sha256) -> None:
        await self._each(lambda layer: layer.delete(sha256))

    async def held(self) -> frozenset[Sha256]:
        return frozenset().union(*[await layer.held() for layer in await self._layers()])

    async def signed_get(self, sha256: Sha256) -> str | None:
        for layer in await self._layers():
            if await layer.size(sha256) is not None:
                return await layer.signed_get(sha256)
        return await self._first.signed_get(sha256)

    async def look(self, sha256: Sha256, *, reads: bool) -> None:
        await (await self._holder(sha256)).look(sha256, reads=reads)

    async def signed_put(
        self, sha256: Sha256, size_bytes: int, sender: ClientId, spare_bytes: int = 0
    ) -> SignedPut | None:
        return await self._first.signed_put(sha256, size_bytes, sender, spare_bytes + self._other_bytes)

    def end_put(self, sha256: Sha256, sender: ClientId) -> None:
        self._first.end_put(sha256, sender)

    async def take_in(self, sha256: Sha256, size_bytes: int, sender: ClientId) -> HashedReadable | None:
        for layer in self._others:
            if await layer.size(sha256) is not None:
                return None
        return await self._first.take_in(sha256, size_bytes, sender)

    async def settle(self, sha256: Sha256, size_bytes: int, sender: ClientId, found: Sha256 | None) -> None:
        await self._first.settle(sha256, size_bytes, sender, found)

    async def drop_unfinished(self) -> None:
        await self._each(lambda layer: layer.drop_unfinished())

    async def swept(self) -> None:
        await self._each(lambda layer: layer.swept())
        for layer in self._others:
            if not await layer.held() and await self._leave(layer):
                self._others = tuple(other for other in self._others if other is not layer)
                self._opened_layers = (self._first, *self._others)

    async def recount(self) -> None:
        await self._each(lambda layer: layer.recount())

    async def check_answers(self) -> None:
        await self._each(lambda layer: layer.check_answers())

    async def _each(self, work: Callable[[BlobStore], Awaitable[None]]) -> None:
        for layer in await self._layers():
            await work(layer)


async def _stay(_: BlobStore) -> bool:
    return False
