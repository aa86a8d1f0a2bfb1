"""The default exchange: a star through the coordinator's blobs.

The star costs clients² × result bytes per round, since every replica fetches every other client's result.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from coordinator_client.api import BlobRequests
from run_manager.events import BlobFetched, BlobSent, Observer, ignore
from runtime.worker_thread import Worker
from state.errors import InvalidDocument
from state.tensors import Buffer, FileBody, body_size_bytes
from state.wire import Sha256, sha256_hex

log = logging.getLogger(__name__)

MAX_CONCURRENT_FETCHES = 8
DEFAULT_CACHE_BYTES = 512 * 1024**2
FETCHES_BEFORE_GIVING_UP = 3
"""Maximum number of fetches of one blob whose bytes have a wrong digest."""
INLINE_HASH_BYTES = 256 * 1024
"""Largest blob that is hashed on the event loop: handing it to another thread would take longer."""


@dataclass(slots=True)
class _Fetch:
    """The callers that want one blob: the first one fetches it, or the next one if the first is cancelled."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    callers: int = 0


class StarExchange:
    """Everything goes through the coordinator's blobs; what was fetched is kept, up to `cache_bytes`."""

    def __init__(
        self,
        requests: BlobRequests,
        worker: Worker,
        observer: Observer = ignore,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        self._requests = requests
        self._observer = observer
        self._worker = worker
        self._cache_bytes = cache_bytes
        self._cached: OrderedDict[Sha256, FileBody] = OrderedDict()
        self._size_bytes = 0
        self._under_way: dict[Sha256, _Fetch] = {}
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_FETCHES)

    async def publish(self, sha256: Sha256, body: FileBody) -> None:
        self._keep(sha256, body)
        started_s = asyncio.get_running_loop().time()
        await self._requests.put_blob(sha256, body)
        self._observer(BlobSent(body_size_bytes(body), asyncio.get_running_loop().time() - started_s))

    async def fetch(self, sha256: Sha256) -> FileBody:
        fetch = self._under_way.setdefault(sha256, _Fetch())
        fetch.callers += 1
        try:
            async with fetch.lock:
                body = self._cached.get(sha256)
                if body is None:
                    async with self._slots:
                        body = await self._fetch_verified(sha256)
                    self._keep(sha256, body)
                else:
                    self._cached.move_to_end(sha256)
                return body
        finally:
            fetch.callers -= 1
            if not fetch.callers:
                del self._under_way[sha256]

    def forget(self, digests: Iterable[Sha256]) -> None:
        for sha256 in digests:
            with suppress(KeyError):
                self._size_bytes -= body_size_bytes(self._cached.pop(sha256))

    async def _fetch_verified(self, sha256: Sha256) -> Buffer:
        found, started_s = "", asyncio.get_running_loop().time()
        for _ in range(FETCHES_BEFORE_GIVING_UP):
            data = await self._requests.get_blob(sha256)
            hashing = partial(sha256_hex, data)
            found = hashing() if len(data) <= INLINE_HASH_BYTES else await self._worker.run(hashing)
            if found == sha256:
                self._observer(BlobFetched(len(data), asyncio.get_running_loop().time() - started_s))
                return data
            log.warning("blob_with_wrong_digest", extra={"sha256": sha256, "found": found})
        raise InvalidDocument(
            f"blob {sha256} arrived with a wrong digest {FETCHES_BEFORE_GIVING_UP} times", sha256=sha256, found=found
        )

    def _keep(self, sha256: Sha256, body: FileBody) -> None:
        self.forget((sha256,))
        if body_size_bytes(body) > self._cache_bytes:
            return
        self._cached[sha256] = body
        self._size_bytes += body_size_bytes(body)
        while self._size_bytes > self._cache_bytes:
            _, dropped = self._cached.popitem(last=False)
            self._size_bytes -= body_size_bytes(dropped)
