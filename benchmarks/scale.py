"""Many members of one coordinator: what a round costs, per member, as their number grows.

`python -m benchmarks.scale COUNT… [--rounds R]` prints the figures of these numbers of members alone.
"""

import argparse
import asyncio
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.exchange_blobs import cpu_s
from benchmarks.figures import Figure, show
from benchmarks.load import connections
from benchmarks.members import join_all, memory_bytes
from benchmarks.scale_members import Crowd, RawMember, check_sent
from benchmarks.servers import LONG, RUN_ID, CoordinatorProcess, coordinator_of
from coordinator_client.client_key import ClientKey
from state.config.model import NgramConfig
from state.errors import EpochalError
from tests.support.states import state_text
from trainers.ngram.model import parameter_shapes

COUNTS = (100, 1_000, 5_000, 10_000)
MAX_MEMBERS = 15_000
"""Each has a connection of its own, and this process and the coordinator may each open 20,000 files."""
MEASURED_ROUNDS = 3
WARMING_ROUNDS = 2
"""The first round waits for the last to become ready, and the next one has a new roster."""
JOINED_AT_ONCE = 500
"""Strangers have fewer connections than members: members join some at a time."""
ROUND_S = 120.0
"""Time for a round, after which a measurement is given up."""
SMALLEST = NgramConfig(context=1, embedding=1, hidden=1)
"""Its results have about 3 KB."""
NOTES = (
    "Members are raw asyncio clients on loopback, which keep to the whole protocol: polls, ready, a commitment with "
    "its result of about 3 KB, and, of the 32 elected witnesses, the list of results, an attestation and the outcome. "
    "They share the machine's cores with the coordinator. Nobody trains, and nobody fetches others' results.",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """What rounds of a number of members took.

    Attributes:
        count: number of members.
        round_s: median time from one RoundTrain to the next, in seconds.
        cpu_s, own_cpu_s: processor time for a member's part of a round: the coordinator's, and the load generator's.
        member_bytes: what the coordinator's memory grew by, for each member, from an empty run to its last round.
        journal_bytes: what the journal grew by, for each member and round.
        p50_s, p99_s, last_s: time from a round's start until waiting members had heard of it.
        joined_s, ready_s: time of all joins, and from then until the first round began.
        heard_count: number of times that a waiting member has heard of a measured round.
        refusals: refused requests, by status and kind.
    """

    count: int
    round_s: float
    cpu_s: float
    own_cpu_s: float
    member_bytes: float
    journal_bytes: float
    p50_s: float
    p99_s: float
    last_s: float
    joined_s: float
    ready_s: float
    heard_count: int
    refusals: dict[str, int]

    def figures(self) -> list[Figure]:
        """Return the figures."""
        name = f"{self.count:,} members"
        is_many = self.count >= 10_000
        return [
            Figure(f"{name}: a round", self.round_s, "s", "≤ 25 s" if is_many else ""),
            Figure("processor time of the coordinator, per member", self.cpu_s * 1000, "ms", "≤ 1.5 ms"),
            Figure("processor time of the load generator, per member", self.own_cpu_s * 1000, "ms"),
            Figure("from a round's start until half have heard of it", self.p50_s, "s", digits=3),
            Figure("until 99 % have", self.p99_s, "s", digits=3),
            Figure("until the last has", self.last_s, "s", digits=3),
            Figure("memory of the coordinator, per member", self.member_bytes / 1024, "KiB", "≤ 40 KiB"),
            Figure("journal, per member", self.journal_bytes, "bytes", digits=0),
            Figure(f"all joins, {JOINED_AT_ONCE} at a time", self.joined_s, "s"),
            Figure("from then to the first round", self.ready_s, "s"),
            Figure("refused requests", sum(self.refusals.values()), "", "0", digits=0),
        ]


def _state(count: int, rounds: int) -> str:
    overrides: dict[str, object] = {
        "config__init_min_clients": count,
        "config__min_clients": count,
        "config__total_steps": WARMING_ROUNDS + rounds + 1,
        "config__epoch_time": 100_000,
        "config__waiting_for_members_extra_time": 0.05,
        "config__max_round_train_time": int(ROUND_S),
        "config__global_batch_size_start": count,
        "config__global_batch_size_end": count,
        "blobs__max_total_bytes": 10**10,
        "merge__codec": "float32",
    }
    overrides |= {f"config__{name}": int(ROUND_S) for name in LONG}
    return state_text(
        run_id=RUN_ID,
        model__LLM__max_seq_len=256,
        model__LLM__optimizer="Dummy",
        model__LLM__data_location="Dummy",
        model__LLM__ngram=SMALLEST.model_dump(),
        **overrides,
    )


async def measured(count: int, rounds: int, folder: Path) -> Measured:
    """Measure rounds of so many members. Raise `EpochalError` if they do not come about."""
    if count > MAX_MEMBERS:
        raise EpochalError(f"{count} members; allowed: at most {MAX_MEMBERS}")
    async with coordinator_of(_state(count, rounds), folder) as process:
        return await _measured(count, rounds, process)


async def _measured(count: int, rounds: int, process: CoordinatorProcess) -> Measured:
    pid, journal = process.child.process.pid, process.run_dir / "journal"
    empty_bytes = memory_bytes(pid)
    keys = [ClientKey.from_seed(number.to_bytes(32, "big")) for number in range(1, count + 1)]
    crowd = Crowd(process.url, RUN_ID, parameter_shapes(SMALLEST))
    members: list[RawMember] = []
    first, last = WARMING_ROUNDS + 1, WARMING_ROUNDS + rounds + 1
    try:
        joined_s = sum([await _join(keys[at : at + JOINED_AT_ONCE], process, crowd, members) for at in _starts(count)])
        began_s = time.time()
        await _reached(crowd, first, ROUND_S * first)
        before = cpu_s(pid), time.process_time(), _size(journal)
        await _reached(crowd, last, ROUND_S * rounds)
        after = cpu_s(pid), time.process_time(), _size(journal)
        grown_bytes = memory_bytes(pid) - empty_bytes
    finally:
        for member in members:
            member.close()
        crowd.close()
    each = count * rounds
    heard = sorted(seconds for step in range(first, last) for seconds in crowd.latencies[step])
    starts = crowd.round_starts_s
    return Measured(
        count=count,
        round_s=statistics.median(starts[step + 1] - starts[step] for step in range(first, last)),
        cpu_s=(after[0] - before[0]) / each,
        own_cpu_s=(after[1] - before[1]) / each,
        member_bytes=grown_bytes / count,
        journal_bytes=(after[2] - before[2]) / each,
        p50_s=heard[len(heard) // 2],
        p99_s=heard[len(heard) * 99 // 100],
        last_s=heard[-1],
        joined_s=joined_s,
        ready_s=starts[1] - began_s,
        heard_count=len(heard),
        refusals=crowd.refusals,
    )


def _starts(count: int) -> range:
    return range(0, count, JOINED_AT_ONCE)


async def _join(keys: list[ClientKey], process: CoordinatorProcess, crowd: Crowd, members: list[RawMember]) -> float:
    """Let the owners of these keys join, and start them; return the seconds that their joins took."""
    async with connections(process.url, len(keys)) as opened:
        joined_s, tokens = await join_all(opened, keys)
    for key, token in zip(keys, tokens, strict=True):
        members.append(RawMember(crowd, key.client_id, token, await crowd.connect()))
        members[-1].start()
    return joined_s


async def _reached(crowd: Crowd, step: int, within_s: float) -> None:
    """Return when the round of this step has begun."""
    deadline_s = time.monotonic() + within_s
    while step not in crowd.round_starts_s:
        check_sent(crowd)
        if time.monotonic() > deadline_s or crowd.finished.is_set():
            raise EpochalError(f"step {step} did not begin within {within_s:g} s; refused: {crowd.refusals}")
        await asyncio.sleep(0.01)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _measure_each(counts: Sequence[int], rounds: int) -> list[Measured]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        found = []
        for count in counts:
            with tempfile.TemporaryDirectory(prefix="epochal-bench-") as folder:
                found.append(asyncio.run(measured(count, rounds, Path(folder))))
        return found
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def measure() -> list[Figure]:
    """Measure rounds of 100 to 10,000 members."""
    return [figure for found in _measure_each(COUNTS, MEASURED_ROUNDS) for figure in found.figures()]


def main() -> None:
    """Measure the numbers of members that are named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("counts", nargs="+", type=int, metavar="COUNT", help=f"number of members, up to {MAX_MEMBERS}")
    parser.add_argument("--rounds", type=int, default=MEASURED_ROUNDS)
    arguments = parser.parse_args()
    for found in _measure_each(arguments.counts, arguments.rounds):
        show(found.figures())
        if found.refusals:
            sys.stdout.write(f"refused: {found.refusals}\n")
    sys.stdout.write(f"load: {os.getloadavg()[0]:.1f}\n")


if __name__ == "__main__":
    main()
