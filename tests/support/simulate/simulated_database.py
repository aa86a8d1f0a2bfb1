"""A database in virtual time that several coordinators share: slow, away, cut off, read-only, failing over.

Each statement is a transaction of the database's own: it goes on when whoever sent it is stopped or killed, and its
answer may be lost. `DatabaseJournal` repeats a change whose answer is unknown, as the store in PostgreSQL does.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextvars import Context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from epochal.coordinator.machine.journal_records import JournalRecord, Segment, Snapshot
from epochal.coordinator.machine.records import RecordBody, SnapshotBody
from epochal.coordinator.store.journal import StoredProof, Tail
from epochal.coordinator.store.memory import (
    MemoryBlobs,
    MemoryJournal,
    MemoryMeetings,
    MemoryRecordedBlobs,
    MemoryReplication,
    MemoryStore,
)
from epochal.coordinator.store.replication import Heartbeats, MeetingResult
from epochal.runtime.clock import Clock
from epochal.state.errors import StoreBlocked, StoreConflict
from epochal.state.wire import Sha256, parse_document
from tests.support.simulate.safety import SafetyBroken
from tests.support.simulate.simulated_process import PROCESS, Ended, spawn

STATEMENT_S = 5.0
"""Time after which the answer to a statement is given up."""
PASSING_S = 2.0
"""Time for which a change is repeated."""
PASSING_PAUSE_S = 0.05
QUICK_S = (0.0005, 0.005)

T = TypeVar("T")


class VouchingJournal(MemoryJournal):
    """A journal that knows which documents its records vouch for, and refuses two of one version."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, Sha256] = {}
        """The digest of each version of the run document that a kept entry vouches for."""

    async def append(self, record: JournalRecord) -> None:
        await super().append(record)
        body = parse_document(RecordBody, record.body)
        self._vouch(body.version, body.document_sha256)

    async def open_segment(self, snapshot: Snapshot) -> None:
        await super().open_segment(snapshot)
        body = parse_document(SnapshotBody, snapshot.body)
        self._vouch(body.version, body.document_sha256)

    def _vouch(self, version: int, digest: Sha256) -> None:
        if version < max(self.kept, default=0):
            raise SafetyBroken(f"version {version} was kept after version {max(self.kept)}")
        if self.kept.setdefault(version, digest) != digest:
            raise SafetyBroken(f"two documents of version {version} were kept")


@dataclass(eq=False)
class Line:
    """One coordinator's connections to the database.

    Attributes:
        is_cut: nothing passes.
        is_quiet: no notification passes.
    """

    is_cut: bool = False
    is_quiet: bool = False


@dataclass(eq=False)
class SimulatedDatabase:
    """The database of one run.

    Attributes:
        tasks: run its transactions.
        is_away: it takes no connections.
        is_read_only: it answers, and keeps nothing.
        delay_s: range of the time that half a statement takes.
        ahead_s: its clock's difference to the time of the simulation.
        lives: number of its starts and failovers; statements that one meets are not answered.
        lease_for_all: everybody who meets is told that it holds the lease.
    """

    tasks: asyncio.TaskGroup
    chance: random.Random
    max_blob_bytes: int
    journal: VouchingJournal = field(default_factory=VouchingJournal)
    meetings: MemoryMeetings = field(default_factory=MemoryMeetings)
    is_away: bool = False
    is_read_only: bool = False
    delay_s: tuple[float, float] = QUICK_S
    ahead_s: float = 1_000_000.0
    lives: int = 0
    lease_for_all: bool = False
    lost_answers: int = 0

    def __post_init__(self) -> None:
        self.blobs = MemoryBlobs(self.max_blob_bytes)

    async def execute(self, line: Line, work: Callable[[], Awaitable[T]], *, changes: bool = True) -> T:
        """Return what a transaction returns.

        Raises:
            StoreBlocked: it did not succeed, or its answer was lost.
        """
        process = PROCESS.get()
        if process is not None and process.is_dead:
            raise StoreBlocked("the database is not asked by the dead", is_full=False)
        try:
            sent = spawn(self.tasks, self._transact(line, work, changes), Context())
        except Ended:
            raise StoreBlocked("the database has ended", is_full=False) from None
        try:
            async with asyncio.timeout(STATEMENT_S):
                answer = await asyncio.shield(sent)
        except TimeoutError:
            raise StoreBlocked("the database does not answer in time", is_full=False) from None
        if isinstance(answer, StoreBlocked | StoreConflict):
            raise answer
        return answer

    async def _transact(
        self, line: Line, work: Callable[[], Awaitable[T]], changes: bool
    ) -> T | StoreBlocked | StoreConflict:
        await asyncio.sleep(self.chance.uniform(*self.delay_s))
        if line.is_cut or self.is_away:
            await asyncio.sleep(self.chance.choice([0.0, STATEMENT_S]))
            return StoreBlocked("the database cannot be reached", is_full=False)
        if changes and self.is_read_only:
            return StoreBlocked("the database is read-only", is_full=False)
        life = self.lives
        try:
            answer: T | StoreBlocked | StoreConflict = await work()
        except (StoreBlocked, StoreConflict) as refusal:
            answer = refusal
        await asyncio.sleep(self.chance.uniform(*self.delay_s))
        if line.is_cut or life != self.lives:
            self.lost_answers += 1
            return StoreBlocked("the database's answer was lost", is_full=False)
        return answer

    async def fail_over(self, away_s: float) -> None:
        """Let no statement be answered, and be back later: with all that was kept, without what was unlogged."""
        self.lives += 1
        self.is_away = True
        await asyncio.sleep(away_s)
        self.meetings.present.clear()
        self.meetings.lease = None
        self.is_away = False


class DatabaseJournal:
    """The `Journal` protocol of one coordinator over the database's."""

    torn_bytes = 0
    damaged_bytes = 0

    def __init__(self, database: SimulatedDatabase, line: Line) -> None:
        self._database = database
        self._line = line
        self._shared = database.journal

    @property
    def size_bytes(self) -> int:
        return self._shared.size_bytes

    async def load(self) -> Segment | None:
        return await self._read(self._shared.load)

    async def tail(self, after: int) -> Tail | None:
        return await self._read(partial(self._shared.tail, after))

    async def proofs(self) -> tuple[StoredProof, ...]:
        return await self._read(self._shared.proofs)

    async def kept_history(self) -> bytes | None:
        return await self._read(self._shared.kept_history)

    async def keep_history(self, body: bytes) -> None:
        await self._read(partial(self._shared.keep_history, body))

    async def newest_segment(self) -> int | None:
        return await self._read(self._shared.newest_segment)

    async def history(self, start: int | None = None) -> AsyncGenerator[Segment, None]:
        async def read() -> list[Segment]:
            return [segment async for segment in self._shared.history(start)]

        for segment in await self._read(read):
            yield segment

    async def append(self, record: JournalRecord) -> None:
        await self._keep(
            partial(self._shared.append, record),
            lambda: any(record in segment.records for segment in self._shared.segments[-2:]),
        )

    async def open_segment(self, snapshot: Snapshot) -> None:
        await self._keep(
            partial(self._shared.open_segment, snapshot),
            lambda: any(snapshot == segment.snapshot for segment in self._shared.segments),
        )

    async def keep_proof(self, proof: StoredProof) -> None:
        await self._database.execute(self._line, partial(self._shared.keep_proof, proof))

    async def drop_covered(self, segment_count: int) -> None:
        await self._database.execute(self._line, partial(self._shared.drop_covered, segment_count))

    async def _read(self, read: Callable[[], Awaitable[T]]) -> T:
        return await self._database.execute(self._line, read, changes=False)

    async def _keep(self, change: Callable[[], Awaitable[None]], is_kept: Callable[[], bool]) -> None:
        """Make a change, again while its answer is unknown, unless it was made."""
        is_in_doubt = False

        async def attempt() -> None:
            if not (is_in_doubt and is_kept()):
                await change()

        loop = asyncio.get_running_loop()
        until_s = loop.time() + PASSING_S
        while True:
            try:
                return await self._database.execute(self._line, attempt)
            except StoreBlocked:
                is_in_doubt = True
                if loop.time() >= until_s:
                    raise
            await asyncio.sleep(PASSING_PAUSE_S)


class DatabaseRecordedBlobs(MemoryRecordedBlobs):
    """The `RecordedBlobs` protocol of one coordinator over the database's."""

    def __init__(self, database: SimulatedDatabase, line: Line) -> None:
        super().__init__(database.journal)
        self._database = database
        self._line = line

    async def size(self, sha256: Sha256) -> int | None:
        return await self._database.execute(self._line, partial(super().size, sha256), changes=False)

    async def read(self, digests: Collection[Sha256]) -> Mapping[Sha256, bytes]:
        return await self._database.execute(self._line, partial(super().read, digests), changes=False)

    async def held(self) -> frozenset[Sha256]:
        return await self._database.execute(self._line, super().held, changes=False)

    async def drop(self, digests: Collection[Sha256], known: int) -> None:
        await self._database.execute(self._line, partial(super().drop, digests, known))


class DatabaseReplication(MemoryReplication):
    """The `Replication` protocol of one coordinator over the database."""

    def __init__(self, database: SimulatedDatabase, line: Line) -> None:
        super().__init__(database.meetings, database.journal)
        self._database = database
        self._line = line

    async def news(self) -> AsyncGenerator[int | None, None]:
        async for told in super().news():
            if not (self._line.is_cut or self._line.is_quiet or self._database.is_away):
                yield told

    async def meet(self, mine: Heartbeats) -> MeetingResult:
        met = await self._database.execute(self._line, partial(super().meet, mine))
        return replace(met, is_ticking=met.is_ticking or self._database.lease_for_all)

    async def leave(self) -> None:
        process = PROCESS.get()
        if process is None or not process.is_dead:
            await super().leave()


class _DatabaseTime:
    """A clock that shows the database's time, as of its making, and goes on by the machine's."""

    def __init__(self, clock: Clock, database_s: float) -> None:
        self._clock = clock
        self._ahead_s = database_s - clock.monotonic_s()

    def wall_s(self) -> float:
        return self._clock.monotonic_s() + self._ahead_s

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()


class DatabaseMemoryStore(MemoryStore):
    """The store of one coordinator over the database. All of them share its blobs."""

    name = "the database"
    retry_s = 0.25

    def __init__(self, database: SimulatedDatabase, line: Line, private_key: bytes) -> None:
        super().__init__(0, None, private_key)
        self._database = database
        self._line = line
        self.journal = DatabaseJournal(database, line)  # type: ignore[assignment]
        self.take_blobs(DatabaseRecordedBlobs(database, line), database.blobs)
        self.replication = DatabaseReplication(database, line)

    def clock(self, system: Clock) -> Clock:
        return _DatabaseTime(system, asyncio.get_running_loop().time() + self._database.ahead_s)

    async def check_room(self, size_bytes: int) -> None:
        async def look() -> None:
            if self._database.is_read_only:
                raise StoreBlocked("the database is read-only", is_full=False)

        await self._database.execute(self._line, look, changes=False)
