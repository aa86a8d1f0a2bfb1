"""Blobs that clients put into an object store themselves: granted, taken in, checked once, and counted.

The rules are those of `coordinator/uploads.py`; only the way of the bytes differs. A request that tells of an arrival
is answered when the blob was counted, or after a while; the work goes on meanwhile, and the next request waits for it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial

from coordinator.leased_checks import LeasedChecks
from coordinator.machine.views import ExpectedBlob
from coordinator.service import CoordinatorService
from coordinator.store.object_store.objects import SIGNED_FOR_S
from coordinator.uploads import Uploads
from runtime.worker_thread import Worker
from state.blob_checks import HashedReadable, names_of
from state.blob_messages import CheckVerdict, LeasedCheck, ParameterNames, ResultCheck, UploadGrant
from state.errors import Refused, StoreFailed
from state.refusals import Refusal
from state.wire import ClientId, Sha256

MAX_ARRIVALS = 512
"""Maximum number of blobs that are taken in at a time."""
ARRIVAL_WAIT_S = 10.0
"""Maximum time after which a request about an arrival is answered."""
MAX_CHECKER_POLL_S = 20.0
"""Maximum time for which a request of a checker waits for work."""


class Arrivals:
    """The blobs of one service that arrive in an object store.

    Args:
        service: the run's.
        uploads: the rules for blobs.
        worker: checks the bytes.
    """

    def __init__(self, service: CoordinatorService, uploads: Uploads, worker: Worker) -> None:
        self._service = service
        self._uploads = uploads
        self._worker = worker
        self._under_way: dict[tuple[ClientId, Sha256], asyncio.Task[None]] = {}
        self._locks: dict[Sha256, asyncio.Lock] = {}
        self.checks = LeasedChecks(service.now_s, self._signed_url)

    async def grant(self, client_id: ClientId, sha256: Sha256) -> UploadGrant:
        """Return how a member delivers a blob that it announced.

        Raises:
            Refused: `not-committed`, `late-result`, `result-invalid`, `blobs-full`, `unauthorized`, `store-failed`.
        """
        expected = self._uploads.expected(client_id, sha256)
        if expected is None:
            return UploadGrant(delivered=True)
        with self._failures_noted():
            spare_bytes = await self._uploads.make_room(expected)
            asked = self._service.blobs.signed_put(sha256, expected.size_bytes, client_id, spare_bytes)
            put = await self._uploads.ending_epoch_when_full(asked)
        if put is None:
            return UploadGrant(delivered=False)
        return UploadGrant(False, put.url, put.headers, put.expires_in_s)

    async def url_of(self, sha256: Sha256, *, looks: bool) -> str | None:
        """Return the URL of a held blob in the object store; None if the coordinator serves its bytes.

        Args:
            sha256: the blob.
            looks: whether the reader did not find it there.

        Raises:
            Refused: `not-found` if it has vanished, `store-failed` if the store does not answer.
        """
        with self._failures_noted():
            try:
                return await self._service.blobs.signed_get(sha256, looks=looks)
            except Refused:
                self._service.lost_blobs.asked_for(sha256)
                raise

    async def arrived(self, client_id: ClientId, sha256: Sha256) -> bool:
        """Take in a blob that a member has put into the store; return whether it was counted, else ask again.

        Raises:
            Refused: `body-incomplete` if nothing has arrived; `overloaded`; and as `Uploads.receive`.
        """
        expected = self._uploads.expected(client_id, sha256)
        if expected is None:
            return True
        task = self._under_way.get((client_id, sha256))
        if task is None:
            if len(self._under_way) >= MAX_ARRIVALS:
                raise Refused(Refusal.OVERLOADED, f"{MAX_ARRIVALS} blobs are taken in already; try again in a moment")
            task = asyncio.get_running_loop().create_task(self._take(expected))
            self._under_way[client_id, sha256] = task
            task.add_done_callback(partial(self._ended, (client_id, sha256)))
        done, _ = await asyncio.wait({task}, timeout=ARRIVAL_WAIT_S)
        self._service.heard(client_id)
        if not done:
            return False
        task.result()
        return True

    async def lease_check(self, checker: str, wait_s: float) -> LeasedCheck | None:
        """Return a result that a checker is to check; None if there is none within `wait_s`.

        Raises:
            Refused: `not-now` if the run's blobs are not in an object store, where checkers would read them.
        """
        if self._service.run.state_file.blobs.store is None:
            raise Refused(Refusal.NOT_NOW, "the run keeps its blobs on the coordinator's disk, and checks them itself")
        return await self.checks.lease(checker, min(wait_s, MAX_CHECKER_POLL_S))

    async def parameter_names(self) -> ParameterNames:
        """Return names and shapes of the run's parameters. Raise `Refused` as `Uploads.layout`."""
        return names_of(await self._uploads.layout())

    async def aclose(self) -> None:
        """Give up what is under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, key: tuple[ClientId, Sha256], task: asyncio.Task[None]) -> None:
        del self._under_way[key]
        if not task.cancelled():
            task.exception()  # whoever waits for it raises it; there may be nobody

    async def _take(self, expected: ExpectedBlob) -> None:
        with self._failures_noted():
            async with self._alone(expected.sha256):
                data = await self._service.blobs.take_in(expected.sha256, expected.size_bytes, expected.client_id)
                if data is None:
                    await self._uploads.take_held(expected)
                elif expected.kind == "result":
                    await self._take_result(expected, data)
                else:
                    await self._settled(expected, partial(self._worker.run, data.sha256))
                    await self._uploads.take_held(expected)

    async def _take_result(self, expected: ExpectedBlob, data: HashedReadable) -> None:
        check = self._uploads.results.check_of(expected)
        found: list[tuple[CheckVerdict, str | None]] = []

        async def checked() -> Sha256:
            found.append(await self._verdict(check, data))
            return Sha256(found[0][0].sha256)

        await self._settled(expected, checked)
        verdict, checker = found[0]
        await self._uploads.results.count(expected, verdict, checker)

    async def _settled(self, expected: ExpectedBlob, digest: Callable[[], Awaitable[Sha256]]) -> None:
        """Hold what was taken in if it has the announced digest, else delete it, also after a failure.

        Raises:
            Refused: `blob-mismatch`; `body-incomplete` if the object vanished meanwhile.
        """
        blobs, found = self._service.blobs, None
        try:
            found = await digest()
        except Refused as refusal:
            if refusal.kind is Refusal.NOT_FOUND:
                raise Refused(Refusal.BODY_INCOMPLETE, refusal.message) from refusal
            raise
        finally:
            await blobs.settle(expected.sha256, expected.size_bytes, expected.client_id, found)

    async def _verdict(self, check: ResultCheck, data: HashedReadable) -> tuple[CheckVerdict, str | None]:
        wait_s = self._service.run.state_file.blobs.checker_wait_s
        found = await self.checks.verdict_of_checker(check, wait_s)
        if found is not None:
            return found
        return await self._uploads.results.verdict_on_arrival(check, data), None

    async def _signed_url(self, check: ResultCheck) -> tuple[str, float]:
        with self._failures_noted():
            url = await self._service.blobs.signed_get(Sha256(check.sha256))
        if url is None:
            raise Refused(Refusal.GONE, "the run's blobs are not in an object store any more")
        return url, SIGNED_FOR_S

    @contextlib.asynccontextmanager
    async def _alone(self, sha256: Sha256) -> AsyncIterator[None]:
        """Let one arrival of a digest be taken in at a time."""
        lock = self._locks.setdefault(sha256, asyncio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._locks.pop(sha256, None)

    @contextlib.contextmanager
    def _failures_noted(self) -> Iterator[None]:
        try:
            yield
        except StoreFailed as error:
            self._service.note_failure(error)
            raise self._service.health.refusal() from error
