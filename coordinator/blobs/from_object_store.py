"""Blobs that clients put into an object store themselves: granted, taken in, checked once, and counted.

A request that tells of an arrival is answered when the blob was counted, or after a while; the work goes on meanwhile,
and the next request waits for it.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from epochal.coordinator.blobs import leases
from epochal.coordinator.blobs.announced import expectations, refusal_of
from epochal.coordinator.blobs.intake import Intake
from epochal.coordinator.blobs.leases import PRESENT_FOR_S, Lease, Leases, Work
from epochal.coordinator.machine.journal_records import NO_BLOBS
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.views import ExpectedBlob
from epochal.coordinator.store.object_store.objects import SIGNED_FOR_S
from epochal.coordinator.store.run_blobs import RunBlobs
from epochal.state.blob_checks import HashedReadable, names_of, verdict_on_arrival
from epochal.state.errors import Refused
from epochal.state.messages.blob_messages import (
    NO_ROOM,
    OTHER_BYTES,
    CheckVerdict,
    ExpectedResult,
    LeasedCheck,
    ParameterNames,
    RenewedLease,
    UploadGrant,
)
from epochal.state.messages.slice_messages import LeasedSlice
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256

MAX_LOOKS = 64
"""Maximum number of checks under way."""
MAX_READS = 1
"""Number of blobs that are read at a time for this."""
LOOK_WAIT_S = 30.0
"""Maximum time after which a request that waits for a check is answered; a client waits for 60 s."""
SignedUrl = Callable[[ExpectedResult], Awaitable[tuple[str, float]]]
"""Returns a URL where the bytes can be read, and for how many seconds."""
MAX_ARRIVALS = 512
"""Maximum number of blobs that are taken in at a time."""
ARRIVAL_WAIT_S = 10.0
"""Maximum time after which a request about an arrival is answered."""
COUNTED = "counted"
"""Verdict on an arrival that is what was announced; others have the name of the refusal."""
MAX_CHECKER_POLL_S = 20.0
"""Maximum time for which a request of a checker waits for work."""


class ObjectLooks:
    """The looks of one service at blobs that a reader did not find, or found with other bytes than theirs.

    A store says at once whether an object is there and how large it is. Whether its bytes are still the blob's is found
    out by reading it, once for each version of it. Readers that ask about one blob wait for the same look.

    Args:
        blobs: are in an object store, or some are.
    """

    def __init__(self, blobs: RunBlobs) -> None:
        self._blobs = blobs
        self._looking: dict[tuple[Sha256, bool], asyncio.Task[None]] = {}
        """By blob, and whether it is read."""
        self._slots = asyncio.Semaphore(MAX_READS)

    async def look(self, sha256: Sha256, *, reads: bool) -> None:
        """Look whether a held blob is there; with `reads`, whether it has its own bytes.

        Raises:
            Refused: as `ObjectBlobs.look`; `overloaded` while that takes long, or too many others are looked at.
        """
        task = self._looking.get((sha256, reads))
        if task is None:
            if len(self._looking) >= MAX_LOOKS:
                raise Refused(Refusal.OVERLOADED, f"{MAX_LOOKS} blobs are looked at already; try again soon")
            task = asyncio.get_running_loop().create_task(self._look(sha256, reads=reads))
            self._looking[sha256, reads] = task
            task.add_done_callback(partial(self._ended, (sha256, reads)))
        done, _ = await asyncio.wait({task}, timeout=LOOK_WAIT_S)
        if not done:
            raise Refused(Refusal.OVERLOADED, f"blob {sha256} is looked at, and compared; try again soon")
        task.result()

    async def _look(self, sha256: Sha256, *, reads: bool) -> None:
        if not reads:
            await self._blobs.look(sha256, reads=False)
            return
        async with self._slots:
            await self._blobs.look(sha256, reads=True)

    async def aclose(self) -> None:
        """Give up what is under way."""
        tasks = list(self._looking.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, look: tuple[Sha256, bool], task: asyncio.Task[None]) -> None:
        del self._looking[look]
        if not task.cancelled():
            task.exception()  # whoever waits for it raises it; there may be nobody


@dataclass(slots=True, kw_only=True, eq=False)
class _Check(Work):
    """A check, and its verdict."""

    check: ExpectedResult
    answer: CheckVerdict | None = None

    @property
    def described(self) -> Mapping[str, str]:
        return {"sha256": self.check.sha256, "client_id": self.check.client_id}


class LeasedChecks:
    """The checks of one coordinator: carried out by checkers, by lease, or by the coordinator itself.

    A check waits for a checker that asks for work (`epochal checker`; `leases.py`). The coordinator takes it itself if
    no checker asked lately, or none takes it within `[blobs] checker_wait_s`. A verdict is counted once.

    Args:
        now_s: seconds on the run's clock.
        signed_url: where a checker reads what it checks.

    Attributes:
        asked: set once a checker has asked for work.
    """

    def __init__(self, now_s: Callable[[], float], signed_url: SignedUrl) -> None:
        self._now_s = now_s
        self._signed_url = signed_url
        self._pending: list[_Check] = []
        self._leases = Leases("check", now_s, lambda: self._pending)
        self._heard_s = -math.inf
        self.asked = asyncio.Event()

    @property
    def waiting_count(self) -> int:
        """Number of checks that wait for a checker."""
        return sum(pending.is_free for pending in self._pending)

    async def verdict_of_checker(self, check: ExpectedResult, wait_s: float) -> CheckVerdict | None:
        """Return a checker's verdict; None if the coordinator is to check itself.

        Args:
            check: what is to be checked.
            wait_s: seconds within which a checker must take it.
        """
        if wait_s <= 0 or self._now_s() > self._heard_s + PRESENT_FOR_S:
            return None
        pending = _Check(check=check, free_since_s=self._now_s())
        self._pending.append(pending)
        self._leases.offer()
        try:
            return pending.answer if await self._leases.is_done(pending, wait_s) else None
        finally:
            self._pending.remove(pending)

    # Requests of checkers

    async def lease(self, checker: str, wait_s: float) -> LeasedCheck | None:
        """Return the check that has waited longest, leased; None if there is none within `wait_s`."""
        pending = await self._leases.taken(checker, wait_s, self._hear)
        if pending is None or pending.lease is None:
            return None
        name = pending.lease.name
        try:
            url, expires_in_s = await self._signed_url(pending.check)
        except BaseException:
            self._leases.undo(pending)
            raise
        return LeasedCheck(name, leases.LEASE_S, pending.check, url, expires_in_s)

    async def renew(self, checker: str, name: str) -> RenewedLease:
        """Renew a lease. Raise `Refused(Refusal.GONE)` if it is over, or has lasted for too long."""
        pending, lease = self._held(checker, name)
        self._leases.renew(pending, lease, lease.since_s, pending.check.size_bytes)
        url, expires_in_s = await self._signed_url(pending.check)
        return RenewedLease(leases.LEASE_S, url, expires_in_s)

    def report(self, checker: str, name: str, verdict: CheckVerdict) -> None:
        """Take the verdict of a lease.

        Raises:
            Refused: `gone`, if the lease is over; `invalid-body`, if the verdict contradicts itself.
        """
        pending, lease = self._held(checker, name)
        is_whole = (verdict.rule is None) == (verdict.replica_digest is not None) == (verdict.norm is not None)
        if not is_whole or verdict.rule == NO_ROOM:
            raise Refused(Refusal.INVALID_BODY, "a verdict has either a broken rule, or a replica digest and a norm")
        pending.answer = replace(verdict, checker=lease.worker)
        pending.end()

    def give_back(self, checker: str, name: str) -> None:
        """End a lease without a verdict. Raise `Refused(Refusal.GONE)` if it is over."""
        self._leases.give_back(*self._held(checker, name))

    def _hear(self) -> None:
        self._heard_s = self._now_s()
        self.asked.set()

    def _held(self, checker: str, name: str) -> tuple[_Check, Lease]:
        """Return a check and its lease. Raise `Refused(Refusal.GONE)` unless this checker has it now."""
        self._hear()
        pending, lease = self._leases.held(name)
        if lease.worker != checker:
            raise Refused(Refusal.GONE, "this lease is another checker's")
        return pending, lease


class Arrivals:
    """The blobs of one service that arrive in an object store (`Source`).

    Args:
        intake: checks and counts them.

    Attributes:
        checks: those of results, which checkers may lease.
        counts: of what arrived.
    """

    with_record = NO_BLOBS

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._service = service = intake.service
        self._under_way: dict[tuple[ClientId, Sha256], asyncio.Task[None]] = {}
        self._granted: set[tuple[ClientId, Sha256]] = set()
        self._looks = ObjectLooks(service.blobs)
        self.checks = LeasedChecks(service.now_s, self._signed_url)
        self.counts: Counter[str] = Counter()
        """Number of blobs that arrived since the start, by verdict: "counted", or why they were refused."""
        service.readers.on_change(self._end_unexpected)

    async def grant(self, client_id: ClientId, sha256: Sha256) -> UploadGrant:
        """Return how a member delivers a blob that it announced.

        Raises:
            Refused: `not-committed`, `late-result`, `result-invalid`, `blobs-full`, `unauthorized`, `store-failed`.
        """
        expected = self._intake.expected(client_id, sha256)
        if expected is None:
            return UploadGrant(delivered=True)
        with self._intake.failures_noted():
            spare_bytes = await self._intake.make_room(expected)
            async with self._intake.noting_no_room(expected):
                put = await self._service.blobs.signed_put(sha256, expected.size_bytes, client_id, spare_bytes)
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
            is_other: whether it found other bytes there; it is then missed as well.

        Raises:
            Refused: `not-found` if it was deleted or overwritten, `store-failed` if the store does not answer, and as
                `ObjectLooks.look`.
        """
        with self._intake.failures_noted():
            try:
                if is_missed:
                    await self._looks.look(sha256, reads=is_other)
            except Refused as refusal:
                if refusal.kind is Refusal.NOT_FOUND:
                    self._service.lost_blobs.asked_for(sha256, refusal.message)
                raise
            return await self._service.blobs.signed_get(sha256)

    async def arrived(self, client_id: ClientId, sha256: Sha256) -> bool:
        """Take in a blob that a member has put into the store; return whether it was counted, else ask again.

        Raises:
            Refused: `body-incomplete` if nothing has arrived; `overloaded`; and as `Intake.take`.
        """
        expected = self._intake.expected(client_id, sha256)
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
        self._check_place()
        return await self.checks.lease(checker, min(wait_s, MAX_CHECKER_POLL_S))

    async def lease_slice(self, worker: str, wait_s: float) -> LeasedSlice | None:
        """Return a slice of the update that a checker's process is to make; None if there is none within `wait_s`.

        Raises:
            Refused: as `lease_check`, and as `LeasedSlices.lease`.
        """
        self._check_place()
        return await self._intake.slices.lease(worker, min(wait_s, MAX_CHECKER_POLL_S))

    def _check_place(self) -> None:
        if self._service.run.state_file.blobs.store is None:
            raise Refused(Refusal.NOT_NOW, "the run keeps its blobs on the coordinator's disk, and checks them itself")

    async def parameter_names(self) -> ParameterNames:
        """Return names and shapes of the run's parameters. Raise `Refused` as `Intake.layout`."""
        return names_of(await self._intake.layout())

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
        self.counts[_verdict_name(error)] += 1

    def _end_unexpected(self, before: Run, run: Run) -> None:
        """Keep no room for granted uploads that the run waits for no longer."""
        if expectations(run) == expectations(before) and run.members.by_id is before.members.by_id:
            return
        self._end_grants(run)

    def _end_grants(self, run: Run) -> None:
        for client_id, sha256 in list(self._granted):
            if refusal_of(run, client_id, sha256) is not None:
                self._granted.discard((client_id, sha256))
                self._service.blobs.end_put(sha256, client_id)

    async def _take(self, expected: ExpectedBlob) -> None:
        with self._intake.failures_noted():
            await self._intake.take(expected, self)

    async def hold(self, expected: ExpectedBlob) -> CheckVerdict | None:
        """Take what has arrived out of its sender's reach; delete it, unless it has the announced digest.

        Raises as `Source.hold`; `body-incomplete` also if the object vanished meanwhile.
        """
        blobs, sha256, size_bytes = self._service.blobs, expected.sha256, expected.size_bytes
        data = await blobs.take_in(sha256, size_bytes, expected.client_id)
        if data is None:
            return None
        verdict, found = None, None
        try:
            if isinstance(expected, ExpectedResult):
                verdict = await self._verdict(expected, data)
                found = None if verdict.rule == OTHER_BYTES else sha256
            else:
                found = await self._intake.worker.run(data.sha256)
        except Refused as refusal:
            if refusal.kind is Refusal.NOT_FOUND:
                raise Refused(Refusal.BODY_INCOMPLETE, refusal.message) from refusal
            raise
        finally:
            await blobs.settle(sha256, size_bytes, expected.client_id, found)
        if verdict is not None and verdict.rule == OTHER_BYTES:
            raise Refused(Refusal.BLOB_MISMATCH, verdict.message)
        return verdict

    async def _verdict(self, expected: ExpectedResult, data: HashedReadable) -> CheckVerdict:
        began_s = self._service.now_s()
        verdict = await self.checks.verdict_of_checker(expected, self._service.run.state_file.blobs.checker_wait_s)
        if verdict is None:
            layout = await self._intake.layout()
            async with self._intake.checking:
                verdict = await self._intake.worker.run(partial(verdict_on_arrival, expected, layout, data))
        return self._intake.timed(verdict, began_s)

    async def _signed_url(self, expected: ExpectedResult) -> tuple[str, float]:
        with self._intake.failures_noted():
            url = await self._service.blobs.signed_get(expected.sha256)
        if url is None:
            raise Refused(Refusal.GONE, "the run's blobs are not in an object store any more")
        return url, SIGNED_FOR_S


def _verdict_name(error: BaseException | None) -> str:
    """Return the name of an arrival's end in metrics."""
    if error is None:
        return COUNTED
    return error.kind.value if isinstance(error, Refused) else Refusal.INTERNAL.value
