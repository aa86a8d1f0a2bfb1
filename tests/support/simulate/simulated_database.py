"""A database in virtual time that several coordinators share: slow, away, cut off, read-only, failing over.

Each statement is a transaction of the database's own: it goes on when whoever sent it is stopped or killed, and its
answer may be lost. The journals over it are the real ones.
"""

import asyncio
import random
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from epochal.coordinator.machine.journal_records import JournalRecord
from epochal.coordinator.machine.records import RecordBody, SnapshotBody
from epochal.coordinator.store.replication import Heartbeats, MeetingResult
from epochal.coordinator.store.run_blobs import RunBlobs
from epochal.coordinator.store.sql.database import STATEMENT_S, Database, Row, Statement
from epochal.coordinator.store.sql.schema import SCHEMA_NUMBER
from epochal.coordinator.store.store import Store
from epochal.runtime.clock import Clock
from epochal.state.errors import StoreBlocked, StoreConflict
from epochal.state.wire import Sha256, parse_document
from tests.support.simulate.memory_store import (
    RUN,
    MemoryBlobs,
    MemoryDatabase,
    MemoryMeetings,
    MemoryPlace,
    MemoryReplication,
)
from tests.support.simulate.safety import SafetyBroken
from tests.support.simulate.simulated_process import PROCESS, Ended, spawn

QUICK_S = (0.0005, 0.005)

T = TypeVar("T")


class VouchingDatabase(MemoryDatabase):
    """A database that knows which documents the records in it vouch for, and refuses two of one version."""

    def __init__(self) -> None:
        self.kept: dict[int, Sha256] = {}
        """The digest of each version of the run document that a kept entry vouches for."""
        super().__init__()

    def _transact(self, statements: Sequence[Statement]) -> list[list[Row]]:
        before = self._connected().total_changes
        rows = super()._transact(statements)
        if self._connected().total_changes > before:
            for statement in statements:
                if "INTO epochal_records" in statement.sql:
                    self._vouch(parse_document(RecordBody, bytes_in(statement)))
                elif "INTO epochal_segments" in statement.sql:
                    self._vouch(parse_document(SnapshotBody, bytes_in(statement)))
        return rows

    def _vouch(self, body: RecordBody | SnapshotBody) -> None:
        if body.version < max(self.kept, default=0):
            raise SafetyBroken(f"version {body.version} was kept after version {max(self.kept)}")
        if self.kept.setdefault(body.version, body.document_sha256) != body.document_sha256:
            raise SafetyBroken(f"two documents of version {body.version} were kept")


def bytes_in(statement: Statement) -> bytes:
    """Return the record or snapshot that a statement keeps."""
    body = statement.values["body"]
    assert isinstance(body, bytes)
    return body


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
    memory: VouchingDatabase = field(default_factory=VouchingDatabase)
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


class LineDatabase:
    """The `JournalDatabase` protocol over one coordinator's line to the database."""

    name = "the database"

    def __init__(self, database: SimulatedDatabase, line: Line) -> None:
        self._database = database
        self._line = line

    async def transact(
        self, *statements: Statement, limit_s: float = STATEMENT_S, is_repeatable: bool = True
    ) -> list[list[Row]]:
        changes = any(not statement.sql.lstrip().startswith("SELECT") for statement in statements)
        work = partial(self._database.memory.transact, *statements)
        return await self._database.execute(self._line, work, changes=changes)

    async def make_tables(self) -> None:
        """Do nothing: they are there."""

    async def schema(self) -> int:
        return SCHEMA_NUMBER

    async def problems(self) -> tuple[str, ...]:
        return ()

    async def follow(self, _: Database) -> bool:
        """Return False: after a failover all is there that was kept."""
        return False

    def beside(self, _: JournalRecord) -> Sequence[Statement]:
        """Return nothing: the database notifies all coordinators by itself."""
        return ()

    def note_rows(self, _: Sequence[Sequence[Row]]) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing: the line stays."""


class DatabaseReplication(MemoryReplication):
    """The `Replication` protocol of one coordinator over the database."""

    def __init__(self, database: SimulatedDatabase, line: Line) -> None:
        super().__init__(database.meetings, database.memory)
        self._shared = database
        self._line = line

    async def news(self) -> AsyncGenerator[int | None, None]:
        async for told in super().news():
            if not (self._line.is_cut or self._line.is_quiet or self._shared.is_away):
                yield told

    async def meet(self, mine: Heartbeats) -> MeetingResult:
        met = await self._shared.execute(self._line, partial(super().meet, mine))
        return replace(met, is_ticking=met.is_ticking or self._shared.lease_for_all)

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


class DatabasePlace(MemoryPlace):
    """The place of a run that one coordinator of several reaches by its line."""

    retry_s = 0.25

    def __init__(self, database: SimulatedDatabase, line: Line) -> None:
        super().__init__()
        self._database = database
        self._line = line

    @property
    def scratch(self) -> Path:
        return Path(tempfile.gettempdir())

    def clock(self, system: Clock) -> Clock:
        return _DatabaseTime(system, asyncio.get_running_loop().time() + self._database.ahead_s)

    async def check_room(self, size_bytes: int) -> None:
        async def look() -> None:
            if self._database.is_read_only:
                raise StoreBlocked("the database is read-only", is_full=False)

        await self._database.execute(self._line, look, changes=False)


def store_on(database: SimulatedDatabase, line: Line) -> Store:
    """Return the store of one coordinator over the database. All of them share its blobs."""
    own, replication = LineDatabase(database, line), DatabaseReplication(database, line)
    store = Store((own, own), RUN, DatabasePlace(database, line), own.name, replication)
    store.blobs = RunBlobs(store.recorded_blobs, database.blobs)
    return store
