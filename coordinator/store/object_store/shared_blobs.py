"""Blobs in a folder of a bucket that several coordinators of one run use at once.

The rules are those of `blobs.py`. What another coordinator has added or deleted is asked for each time it matters: a
blob that this one has not settled itself is held once no original of it is left in `incoming/`.
"""

import asyncio

from epochal.coordinator.store.object_store.blobs import INCOMING, ObjectBlobs, digest_in
from epochal.coordinator.store.object_store.reading import BLOBS, OpenObject
from epochal.state.errors import Refused
from epochal.state.wire import Sha256


class SharedObjectBlobs(ObjectBlobs):
    """The `BlobStore` protocol over a folder of a bucket that other coordinators change meanwhile."""

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
