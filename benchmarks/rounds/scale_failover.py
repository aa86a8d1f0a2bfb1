"""From a failure to the next published version: of the coordinator that ticks, and of the database.

Two kinds of runs are measured. In one nobody sends anything, so that only who ticks can bring a new version: members
that never get ready let Warmup end once a second. In the other three members work, and turn to another coordinator.
"""

import asyncio
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.load import request_bytes
from benchmarks.rounds.scale_load import begin, crowd_at, joined, load_state
from benchmarks.rounds.scale_serving import InDatabase, Serving, serving
from benchmarks.rounds.scale_wire import Addresses, Line
from benchmarks.servers import RUN_ID
from epochal.state.errors import EpochalError
from tests.support.servers.postgres_server import PostgresServer

MEMBERS = 3
REPLICAS = 3
REPETITIONS = 5
WITHIN_S = 30.0
"""Time for a new version, after which a measurement is given up."""
LATER_S = 0.23
"""A failure comes so much later after a version than the one before it, so that it meets different moments."""
PROBE_S, LEASE_POLL_S = 0.005, 0.05
LONG_OUTAGE_S = 4.0
"""Time for which the database stays away that is longer than a coordinator repeats a change: then the run holds."""
MANY_ROUNDS = 1_000_000
REPLICA_TARGET, DATABASE_TARGET = "≤ 3 s", "≤ 2 s"
_TICKING = """
SELECT replica.url FROM epochal_leases lease JOIN epochal_replicas replica
ON replica.run_id = lease.run_id AND replica.replica = lease.holder WHERE lease.ends_at > clock_timestamp()
"""
_VERSION = "SELECT version FROM epochal_runs"


@dataclass
class Watch:
    """Run documents as they are heard at each coordinator, by one reader at each.

    Attributes:
        heard: when, at which address, and the version.
    """

    token: str
    tasks: asyncio.TaskGroup
    heard: list[tuple[float, str, int]] = field(default_factory=list)
    _readers: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, url: str) -> None:
        """Read at another address."""
        self._readers[url] = self.tasks.create_task(self._read(url))

    def end(self, url: str) -> None:
        """Read there no longer."""
        self._readers.pop(url).cancel()

    def end_all(self) -> None:
        """Read nowhere any longer."""
        for url in list(self._readers):
            self.end(url)

    async def _read(self, url: str) -> None:
        line, path = Line(Addresses([url]), 0, lambda *_: None), f"/v1/runs/{RUN_ID}"
        try:
            while True:
                status, body = await line.answer(request_bytes("GET", path, b"", self.token))
                if status == 200:
                    document = json.loads(body)
                    self.heard.append((time.time(), url, document["version"]))
                    self._news.set()
                    mark = f"after={document['version']}&lineage={document['lineage']}"
                    path = f"/v1/runs/{RUN_ID}?{mark}&wait_s=20"
        finally:
            line.close()

    async def next(self, since_s: float, above: int) -> float:
        """Return when a version above this one was heard first, at or after this time.

        Raises:
            EpochalError: none was within `WITHIN_S`.
        """
        try:
            async with asyncio.timeout(WITHIN_S):
                while True:
                    for at_s, _, version in self.heard:
                        if at_s >= since_s and version > above:
                            return at_s
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise EpochalError(f"no new version within {WITHIN_S:g} s") from None

    async def versions(self, count: int) -> None:
        """Return after so many more versions."""
        for _ in range(count):
            newest = max((version for *_, version in self.heard), default=-1)
            await self.next(0.0, newest)


@dataclass(frozen=True, slots=True)
class Failing:
    """A run of several coordinators whose parts are killed."""

    served: Serving
    server: PostgresServer
    watch: Watch

    def ask(self, sql: str) -> object:
        """Return the first value that the run's database answers; None if there is none."""
        assert isinstance(self.served.kept, InDatabase)
        rows = self.server.execute(sql, self.served.kept.url)
        return rows[0][0] if rows else None

    async def after_kill_of_ticking(self, place: int) -> float:
        """Kill the coordinator that ticks; return the seconds to the next version. Start it again afterwards."""
        ticking = await self._ticking()
        number = self.served.urls.index(ticking)
        await self.watch.versions(1)
        await asyncio.sleep(place * LATER_S)
        self.watch.end(ticking)
        child = self.served.coordinators[number]
        killed_s = time.time()
        child.kill()
        await child.process.wait()
        last = self.ask(_VERSION)
        assert isinstance(last, int)
        took_s = await self.watch.next(killed_s, last) - killed_s
        await self.served.start_again(number)
        self.watch.begin(ticking)
        return took_s

    async def after_kill_of_database(self, place: int, outage_s: float) -> float:
        """Kill the database's server and start it; return the seconds from its first answer to the next version."""
        await self._ticking()
        await self.watch.versions(1)
        await asyncio.sleep(place * LATER_S)
        await asyncio.to_thread(self.server.kill)
        await asyncio.sleep(outage_s)
        starting_s = time.time()
        async with asyncio.TaskGroup() as tasks:
            answered = tasks.create_task(self._first_answer())
            tasks.create_task(asyncio.to_thread(self.server.start))
        return max(0.0, await self.watch.next(starting_s, -1) - answered.result())

    async def _ticking(self) -> str:
        """Return the address of the coordinator that ticks, once there is one of those that serve."""
        for _ in range(round(WITHIN_S / LEASE_POLL_S)):
            if (url := self.ask(_TICKING)) in self.served.urls:
                return str(url)
            await asyncio.sleep(LEASE_POLL_S)
        raise EpochalError(f"no coordinator ticks within {WITHIN_S:g} s")

    async def _first_answer(self) -> float:
        import psycopg

        assert isinstance(self.served.kept, InDatabase)
        async with asyncio.timeout(WITHIN_S):
            while True:
                with contextlib.suppress(psycopg.OperationalError):
                    async with await psycopg.AsyncConnection.connect(self.served.kept.url) as connection:
                        await connection.execute("SELECT")
                        return time.time()
                await asyncio.sleep(PROBE_S)


@contextlib.asynccontextmanager
async def failing_run(
    folder: Path, server: PostgresServer, replicas: int, *, is_working: bool
) -> AsyncIterator[Failing]:
    """Serve a run of three members by so many coordinators, and watch it; see the module's head for `is_working`."""
    config: dict[str, object] = {} if is_working else {"warmup_time": 1}
    state = load_state(MEMBERS, MANY_ROUNDS, **config)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        async with (
            serving(state, Path(own), server, replicas) as served,
            crowd_at(served.urls) as (crowd, members),
            asyncio.TaskGroup() as tasks,
        ):
            if is_working:
                await begin(MEMBERS, crowd, members)
                token = members[0].token
            else:
                token = (await joined(served.urls, MEMBERS))[1][0][1]
            watch = Watch(token, tasks)
            try:
                for url in served.urls:
                    watch.begin(url)
                await watch.versions(3)
                yield Failing(served, server, watch)
            finally:
                watch.end_all()


def _figures(name: str, target: str, times: list[float]) -> list[Figure]:
    worst = f"worst: {max(times):.2f}"
    return [Figure(f"{name}: median of {len(times)}", statistics.median(times), "s", target, baseline_name=worst)]


@dataclass(frozen=True, slots=True)
class Failover:
    """One kind of failure, in one kind of run.

    Attributes:
        outage_s: time for which the database is away after it was killed; None: the coordinator that ticks is killed.
        is_working: whether members take part in rounds.
        repetitions: number of times.
    """

    outage_s: float | None
    is_working: bool
    repetitions: int = REPETITIONS

    @property
    def name(self) -> str:
        """The failure and the run in words."""
        run = f"{MEMBERS} members at work" if self.is_working else "nobody sends anything"
        if self.outage_s is None:
            return f"ticking replica of {REPLICAS} killed, {run}"
        return f"database killed, {f'{self.outage_s:g} s away' if self.outage_s else 'started at once'}, {run}"

    @property
    def target(self) -> str:
        """The time that is wanted, in words."""
        return REPLICA_TARGET if self.outage_s is None else DATABASE_TARGET

    async def times(self, folder: Path, server: PostgresServer) -> list[float]:
        """Return the seconds to the next version, each time."""
        replicas = REPLICAS if self.outage_s is None else 2
        async with failing_run(folder, server, replicas, is_working=self.is_working) as failing:
            if self.outage_s is None:
                return [await failing.after_kill_of_ticking(place) for place in range(self.repetitions)]
            return [await failing.after_kill_of_database(place, self.outage_s) for place in range(self.repetitions)]


FAILOVERS = tuple(
    Failover(outage_s, is_working, 3 if outage_s else REPETITIONS)
    for outage_s in (None, 0.0, LONG_OUTAGE_S)
    for is_working in (False, True)
)


async def figures(folder: Path, server: PostgresServer, failover: Failover) -> list[Figure]:
    """Measure a kind of failure. Raises `EpochalError` or `TimeoutError` if the run does not go on."""
    return _figures(failover.name, failover.target, await failover.times(folder, server))
