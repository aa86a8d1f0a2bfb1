"""Blobs that clients put into an object store themselves: granted, taken in, checked once, and counted.

The rules are those of `coordinator/blobs/uploads.py`; only the way of the bytes differs. A request that tells of an
arrival is answered when the blob was counted, or after a while; the work goes on meanwhile, and the next request
waits for it.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from epochal.coordinator.blobs.announced import announced, expectations
from epochal.coordinator.blobs.leased_checks import LeasedChecks
from epochal.coordinator.blobs.rechecks import ObjectLooks
from epochal.coordinator.blobs.uploads import Uploads
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.views import ExpectedBlob
from epochal.coordinator.run.service import CoordinatorService
from epochal.coordinator.store.object_store.objects import SIGNED_FOR_S
from epochal.runtime.keyed_locks import KeyedLocks
from epochal.runtime.worker_thread import Worker
from epochal.state.blob_checks import HashedReadable, names_of
from epochal.state.errors import Refused, StoreFailed
from epochal.state.messages.blob_messages import CheckVerdict, LeasedCheck, ParameterNames, ResultCheck, UploadGrant
from epochal.state.messages.round_times import milliseconds
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256

MAX_ARRIVALS = 512
"""Maximum number of blobs that are taken in at a time."""
ARRIVAL_WAIT_S = 10.0
"""Maximum time after which a request about an arrival is answered."""
COUNTED = "counted"
"""Verdict on an arrival that is what was announced; others have the name of the refusal."""
MAX_CHECKER_POLL_S = 20.0
"""Maximum time for which a request of a checker waits for work."""


@dataclass(slots=True)
class ArrivalCounts:
    """Numbers since the start, for metrics.

    Attributes:
        arrivals: blobs that arrived, by verdict: "counted", or why they were refused.
        checked_bytes: bytes of results that were checked, by "coordinator" or "checker".
    """

    arrivals: Counter[str] = field(default_factory=Counter)
    checked_bytes: Counter[str] = field(default_factory=Counter)


class Arrivals:
    """The blobs of one service that arrive in an object store.

    Args:
        service: the run's.
        uploads: the rules for blobs.
        worker: checks the bytes.

    Attributes:
        checks: those of results, which checkers may lease.
        counts: of what arrived.
    """

    def __init__(self, service: CoordinatorService, uploads: Uploads, worker: Worker) -> None:
        self._service = service
        self._uploads = uploads
        self._worker = worker
        self._under_way: dict[tuple[ClientId, Sha256], asyncio.Task[None]] = {}
        self._locks: KeyedLocks[Sha256] = KeyedLocks()
        self._granted: set[tuple[ClientId, Sha256]] = set()
        self._looks = ObjectLooks(service.blobs)
        self.checks = LeasedChecks(service.now_s, self._signed_url)
        self.counts = ArrivalCounts()
        service.readers.on_change(self._end_unexpected)

    @property
    def running_count(self) -> int:
        """Number of blobs that are being taken in."""
        return len(self._under_way)

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
            put = await self._uploads.ending_epoch_when_full(expected, asked)
        if put is None:
            return UploadGrant(delivered=False)
        self._granted.add((client_id, sha256))
        self._end_grants(self._service.run)  # the run may have gone on meanwhile
        return UploadGrant(False, put.url, put.headers, put.expires_in_s)

    async def url_of(self, sha256: Sha256, *, is_missed: bool = False, is_other: bool = False) -> str | None:
        """Return the URL of a held blob in the object store; None if the coordinator serves its bytes.

        Args:
            sha256: the blob.
            is_missed: whether the reader did not find it there.
            is_other: whether it found other bytes there.

        Raises:
            Refused: `not-found` if it was deleted or overwritten, `store-failed` if the store does not answer, and as
                `ObjectLooks.compare`.
        """
        with self._failures_noted():
            try:
                if is_other:
                    await self._looks.compare(sha256)
                elif is_missed:
                    await self._looks.find(sha256)
            except Refused as refusal:
                if refusal.kind is Refusal.NOT_FOUND:
                    self._service.lost_blobs.asked_for(sha256, refusal.message)
                raise
            return await self._service.blobs.signed_get(sha256)

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
        await self._looks.aclose()
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, key: tuple[ClientId, Sha256], task: asyncio.Task[None]) -> None:
        del self._under_way[key]
        if task.cancelled():
            return
        error = task.exception()  # whoever waits for it raises it; there may be nobody
        if error is None:
            self._granted.discard(key)
        self.counts.arrivals[_verdict_name(error)] += 1

    def _end_unexpected(self, before: Run, run: Run) -> None:
        """Keep no room for granted uploads that the run waits for no longer."""
        if expectations(run) == expectations(before) and run.members.by_id is before.members.by_id:
            return
        self._end_grants(run)

    def _end_grants(self, run: Run) -> None:
        for client_id, sha256 in list(self._granted):
            try:
                announced(run, client_id, sha256)
            except Refused:
                self._granted.discard((client_id, sha256))
                self._service.blobs.end_put(sha256, client_id)

    async def _take(self, expected: ExpectedBlob) -> None:
        with self._failures_noted():
            async with self._locks.of(expected.sha256):
                data = await self._service.blobs.take_in(expected.sha256, expected.size_bytes, expected.client_id)
                if data is None:
                    await self._uploads.take_held(expected)
                elif expected.kind == "result":
                    await self._take_result(expected, data)
                else:
                    await self._settled(expected, partial(self._worker.run, data.sha256))
                    await self._uploads.take_held(expected)

    async def _take_result(self, expected: ExpectedBlob, data: HashedReadable) -> None:
        found: list[tuple[CheckVerdict, str | None]] = []

        async def checked() -> Sha256:
            found.append(await self._verdict(self._uploads.results.check_of(expected), data))
            return Sha256(found[0][0].sha256)

        began_s = self._service.now_s()
        await self._settled(expected, checked)
        verdict, checker = found[0]
        check_ms = milliseconds(self._service.now_s() - began_s)
        await self._uploads.results.count(expected, verdict, checker, check_ms)

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
            self.counts.checked_bytes["checker"] += check.size_bytes
            return found
        verdict = await self._uploads.results.verdict_on_arrival(check, data)
        self.counts.checked_bytes["coordinator"] += check.size_bytes
        return verdict, None

    async def _signed_url(self, check: ResultCheck) -> tuple[str, float]:
        with self._failures_noted():
            url = await self._service.blobs.signed_get(Sha256(check.sha256))
        if url is None:
            raise Refused(Refusal.GONE, "the run's blobs are not in an object store any more")
        return url, SIGNED_FOR_S

    @contextlib.contextmanager
    def _failures_noted(self) -> Iterator[None]:
        try:
            yield
        except StoreFailed as error:
            self._service.note_failure(error)
            raise self._service.health.refusal() from error


def _verdict_name(error: BaseException | None) -> str:
    """Return the name of an arrival's end in metrics."""
    if error is None:
        return COUNTED
    return error.kind.value if isinstance(error, Refused) else Refusal.INTERNAL.value
