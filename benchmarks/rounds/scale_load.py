"""Rounds of many raw members: what they take, from their joins to the last measured round."""

import asyncio
import contextlib
import resource
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import connections
from benchmarks.rounds.joins import join_all
from benchmarks.rounds.scale_members import Crowd, RawMember, check_sent
from benchmarks.rounds.scale_serving import Serving, Used, serving
from benchmarks.rounds.scale_wire import Exchange
from benchmarks.servers import LONG, RUN_ID
from epochal.coordinator_client.client_key import ClientKey
from epochal.state.config.model_table import NgramConfig
from epochal.state.errors import EpochalError
from epochal.state.wire import ClientId
from epochal.trainers.ngram.model import parameter_shapes
from tests.support.data.states import state_text
from tests.support.servers.postgres_server import PostgresServer

MAX_MEMBERS = 15_000
"""Each has a connection of its own, and this process and the coordinator may each open 20,000 files."""
WARMING_ROUNDS = 2
"""The first round waits for the last to become ready, and the next one has a new roster."""
JOINED_AT_ONCE = 500
"""Strangers have fewer connections than members: members join some at a time."""
CONNECTED_AT_ONCE = 100
ROUND_S = 120.0
"""Time for a round, after which a measurement is given up."""
ROUND_S_OF_MEMBER = 0.06
"""The same for each member, where that is longer: processor time is measured on a busy machine, too."""
POLL_S = 0.002
MemberKind = Callable[[Crowd, ClientId, str, int, Exchange], RawMember]
"""Makes a member, as `RawMember` takes its arguments."""
SMALLEST = NgramConfig(context=1, embedding=1, hidden=1)
"""Its results have about 3 KB."""


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement: a number of members, of rounds, and of coordinators.

    Attributes:
        replicas: number of coordinators over a database; None for one process on files.
    """

    members: int
    rounds: int
    replicas: int | None = None

    @property
    def store(self) -> str:
        """The store and the coordinators in words."""
        if self.replicas is None:
            return "files"
        return f"PostgreSQL, {self.replicas} replica{'s' if self.replicas > 1 else ''}"

    @property
    def name(self) -> str:
        """The case in words."""
        return f"{self.members:,} members, {self.store}"


@dataclass(frozen=True, slots=True)
class Measured:
    """What rounds of a number of members took.

    Attributes:
        round_s: median time from one RoundTrain to the next, in seconds.
        cpu_s, database_cpu_s, own_cpu_s: processor time for a member's part of a round, of all coordinators, of the
            database's server and of the load generator.
        member_bytes: what the memory of the largest coordinator grew by, for each member of the run, from an empty run
            to its last round.
        journal_bytes, wal_bytes: what the journal grew by, and what the database wrote ahead, for a member's part of a
            round.
        p50_s, p99_s, last_s: time from a round's start until waiting members had heard of it.
        joined_s, ready_s: time of all joins, and from then until the first round began.
        heard_count: number of times that a waiting member has heard of a measured round.
        conflicts: groups of messages that were handled again, for each round.
        refusals: refused requests, by status and kind.
    """

    case: Case
    round_s: float
    cpu_s: float
    database_cpu_s: float
    own_cpu_s: float
    member_bytes: float
    journal_bytes: float
    wal_bytes: float
    p50_s: float
    p99_s: float
    last_s: float
    joined_s: float
    ready_s: float
    heard_count: int
    conflicts: float
    refusals: dict[str, int]


def round_limit_s(count: int) -> float:
    """Return the time for a round of so many members, after which a measurement is given up."""
    return max(ROUND_S, ROUND_S_OF_MEMBER * count)


def load_state(count: int, rounds: int, **config: object) -> str:
    """Return the state file of a run of so many members that lasts so many measured rounds."""
    round_s = int(round_limit_s(count))
    settings: dict[str, object] = dict.fromkeys(LONG, round_s) | {
        "init_min_clients": count,
        "min_clients": count,
        "total_steps": WARMING_ROUNDS + rounds + 1,
        "epoch_time": 100_000,
        "waiting_for_members_extra_time": 0.05,
        "max_round_train_time": round_s,
        "global_batch_size_start": count,
        "global_batch_size_end": count,
    }
    overrides = {f"config__{name}": value for name, value in (settings | config).items()}
    return state_text(
        run_id=RUN_ID,
        model__LLM__max_seq_len=256,
        model__LLM__optimizer="Dummy",
        model__LLM__data_location="Dummy",
        model__LLM__ngram=SMALLEST.model_dump(),
        blobs__max_total_bytes=10**10,
        merge__codec="float32",
        **overrides,
    )


@contextlib.asynccontextmanager
async def crowd_at(urls: Sequence[str], model: NgramConfig = SMALLEST) -> AsyncIterator[tuple[Crowd, list[RawMember]]]:
    """Yield a crowd of members that use these coordinators in turn, and the list of those that `begin` has started."""
    crowd = Crowd(urls, RUN_ID, parameter_shapes(model))
    members: list[RawMember] = []
    try:
        yield crowd, members
    finally:
        for member in members:
            member.close()
        crowd.close()


async def joined(urls: Sequence[str], count: int) -> tuple[float, list[tuple[ClientKey, str]]]:
    """Let so many members join, some at a time; return the seconds that it took, and their keys and session tokens."""
    keys = [ClientKey.from_seed(number.to_bytes(32, "big")) for number in range(1, count + 1)]
    all_s, tokens = 0.0, []
    for at in range(0, count, JOINED_AT_ONCE):
        some = keys[at : at + JOINED_AT_ONCE]
        url = urls[at // JOINED_AT_ONCE % len(urls)]
        async with connections(url, len(some)) as opened:
            joined_s, more = await join_all(opened, some)
        all_s += joined_s
        tokens += more
    return all_s, list(zip(keys, tokens, strict=True))


async def begin(count: int, crowd: Crowd, members: list[RawMember], kind: MemberKind = RawMember) -> float:
    """Let so many members of a kind join and take part; return the seconds that their joins took."""
    joined_s, found = await joined(crowd.urls, count)
    for at in range(0, count, CONNECTED_AT_ONCE):
        numbers = range(at, min(at + CONNECTED_AT_ONCE, count))
        async with asyncio.TaskGroup() as tasks:
            connecting = [tasks.create_task(crowd.addresses.connect(number)) for number in numbers]
        for number, task in zip(numbers, connecting, strict=True):
            key, token = found[number]
            members.append(kind(crowd, key.client_id, token, number, task.result()))
            members[-1].start()
    return joined_s


async def reached(crowd: Crowd, step: int, within_s: float) -> None:
    """Return when the round of this step has begun."""
    deadline_s = time.monotonic() + within_s
    while step not in crowd.round_starts_s:
        check_sent(crowd)
        if time.monotonic() > deadline_s or crowd.finished.is_set():
            raise EpochalError(f"step {step} did not begin within {within_s:g} s; refused: {crowd.refusals}")
        await asyncio.sleep(POLL_S)


async def measured(
    case: Case, folder: Path, server: PostgresServer | None = None, kind: MemberKind = RawMember
) -> Measured:
    """Measure rounds. Raise `EpochalError` if they do not come about.

    Args:
        case: the members, and the coordinators.
        folder: an empty one, for all files.
        server: the database's, if the case has one.
        kind: what each member does.
    """
    if not 1 <= case.members <= MAX_MEMBERS:
        raise EpochalError(f"{case.members} members; allowed: at least 1, at most {MAX_MEMBERS}")
    state = load_state(case.members, case.rounds)
    replicas = case.replicas or 1
    async with serving(state, folder, server if case.replicas else None, replicas) as served:
        return await rounds_of(case, served, kind)


async def rounds_of(case: Case, served: Serving, kind: MemberKind = RawMember) -> Measured:
    """Measure rounds of a new run, as `measured` does."""
    empty = served.used()
    first, last = WARMING_ROUNDS + 1, WARMING_ROUNDS + case.rounds + 1
    async with crowd_at(served.urls) as (crowd, members):
        joined_s = await begin(case.members, crowd, members, kind)
        began_s = time.time()
        limit_s = round_limit_s(case.members)
        await reached(crowd, first, limit_s * first)
        before, own_s = served.used(), time.process_time()
        await reached(crowd, last, limit_s * case.rounds)
        after, own_s = served.used(), time.process_time() - own_s
    return _summary(case, crowd, (empty, before, after), own_s, (joined_s, began_s))


def _summary(
    case: Case, crowd: Crowd, used: tuple[Used, Used, Used], own_cpu_s: float, joining: tuple[float, float]
) -> Measured:
    empty, before, after = used
    joined_s, began_s = joining
    each = case.members * case.rounds
    steps = range(WARMING_ROUNDS + 1, WARMING_ROUNDS + case.rounds + 1)
    heard = sorted(seconds for step in steps for seconds in crowd.latencies.get(step, ()))
    if not heard:
        raise EpochalError("no member waited for a round")
    starts = crowd.round_starts_s
    return Measured(
        case=case,
        round_s=statistics.median(starts[step + 1] - starts[step] for step in steps),
        cpu_s=(after.cpu_s - before.cpu_s) / each,
        database_cpu_s=(after.database_cpu_s - before.database_cpu_s) / each,
        own_cpu_s=own_cpu_s / each,
        member_bytes=(after.memory_bytes - empty.memory_bytes) / case.members,
        journal_bytes=(after.journal_bytes - before.journal_bytes) / each,
        wal_bytes=(after.wal_bytes - before.wal_bytes) / each,
        p50_s=heard[len(heard) // 2],
        p99_s=heard[len(heard) * 99 // 100],
        last_s=heard[-1],
        joined_s=joined_s,
        ready_s=starts[1] - began_s,
        heard_count=len(heard),
        conflicts=(after.conflicts - before.conflicts) / case.rounds,
        refusals=dict(crowd.refusals),
    )


@contextlib.contextmanager
def many_files() -> Iterator[None]:
    """Let this process and its children open as many files as the machine allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
