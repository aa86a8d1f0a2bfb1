"""A thousand viewers of a run: what they cost its coordinator, and its rounds.

One run, with and without viewers in turn, so that both see the same load of the machine. The viewers are a process of
their own and follow the run over real sockets (`benchmarks/viewing/viewers_process.py`). One run trains the
embedded model, with as many clients as leave the coordinator a processor; the clients of the other do no arithmetic,
so that a round ends as soon as the coordinator can end it.
"""

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.figures import Figure
from benchmarks.load import WAIT_S
from benchmarks.rounds.bare_round import round_starts
from benchmarks.servers import LONG, RUN_ID, CoordinatorProcess, coordinator_of
from benchmarks.viewing.viewers_process import Watched
from epochal.state.errors import EpochalError
from epochal.tools.testnet.child_processes import STOP_TIMEOUT_S
from tests.support.data.states import state_text

VIEWERS = 1_000
TURNS = 3
TURN_S = 4.0
"""Time that is measured with viewers, and without, in each turn."""
SETTLED_S = 1.0
"""Time before each, in which viewers come or go."""
WARMING_ROUNDS = 5
MIN_ROUNDS = 3
"""Minimum number of rounds in a part, which takes longer on a machine that is too busy for them."""
START_S = 60.0
NULL_CLIENTS = 3
MAX_TRAINING_CLIENTS = 3
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
TRAINED: dict[str, Any] = {
    "model__LLM__max_seq_len": 256,
    "model__LLM__ngram": {"context": 8, "embedding": 16, "hidden": 64},
    "config__data_indices_per_batch": 2,
    "merge__local_steps": 4,
}
"""The run that trains: a round takes some tenths of a second."""
BATCHES_PER_CLIENT = 32
STEPS = 100_000


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the run: its first and last whole steps, its length, and the coordinator's processor time in it."""

    first: int
    last: int
    wall_s: float
    processor_s: float


@dataclass
class Seen:
    """What was measured of one run.

    Attributes:
        parts: those without viewers and those with them.
        watched: what viewers received in each part with them.
    """

    parts: dict[bool, list[Part]] = field(default_factory=lambda: {False: [], True: []})
    watched: list[Watched] = field(default_factory=list)

    def share(self, *, viewed: bool) -> float:
        """Return the coordinator's part of a processor, with viewers or without."""
        parts = self.parts[viewed]
        return sum(part.processor_s for part in parts) / sum(part.wall_s for part in parts)

    def round_s(self, starts: dict[int, float], *, viewed: bool) -> float:
        """Return the median time of a round, with viewers or without, given when each step began."""
        steps = [step for part in self.parts[viewed] for step in range(part.first, part.last)]
        return statistics.median(starts[step + 1] - starts[step] for step in steps)


class _Crowd:
    """The process of the viewers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def become(self, count: int) -> Watched:
        """Let there be so many viewers; return what they received since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"%d\n" % count)
        async with asyncio.timeout(WAIT_S):
            line = await self._process.stdout.readline()
        if not line:
            raise EpochalError("the viewers' process has ended; standard error says why")
        return Watched(**json.loads(line))


@contextlib.asynccontextmanager
async def _crowd(url: str) -> AsyncIterator[_Crowd]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.viewing.viewers_process", url, RUN_ID),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield _Crowd(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


class _Run:
    """A run that is measured while it goes on."""

    def __init__(self, process: CoordinatorProcess, http: httpx.AsyncClient) -> None:
        self._pid = process.child.process.pid
        self._http = http

    async def step(self) -> int:
        """Return the step under way; 0 before the first."""
        return int((await self._document())["step"])

    async def _document(self, after: int | None = None) -> dict[str, Any]:
        """Return the run document, or a later one than this version."""
        wait = {} if after is None else {"after": after, "wait_s": 5}
        answer = await self._http.get(f"/v1/runs/{RUN_ID}", params=wait)
        if answer.status_code == httpx.codes.NOT_MODIFIED:
            return await self._document(after)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    async def reach(self, step: int) -> int:
        """Return the step under way once it is this one or later. Raise `TimeoutError` after `START_S`."""
        async with asyncio.timeout(START_S):
            document = await self._document()
            while document["step"] < step:
                document = await self._document(document["version"])
        return int(document["step"])

    async def part(self, seconds: float) -> Part:
        """Let so much time go by, and return what happened in it."""
        loop = asyncio.get_running_loop()
        first, began_s, spent_s = await self.step(), loop.time(), _processor_s(self._pid)
        await asyncio.sleep(seconds)
        last = await self.reach(first + MIN_ROUNDS)
        wall_s, spent_s = loop.time() - began_s, _processor_s(self._pid) - spent_s
        return Part(first + 1, last, wall_s, spent_s)


async def _seen(process: CoordinatorProcess, viewers: int, turns: int, turn_s: float) -> Seen:
    """Measure a run, whose clients have been started, with viewers and without in turn."""
    seen = Seen()
    async with httpx.AsyncClient(base_url=process.url, timeout=WAIT_S) as http, _crowd(process.url) as crowd:
        run = _Run(process, http)
        await run.reach(WARMING_ROUNDS)
        for _ in range(turns):
            seen.parts[False].append(await run.part(turn_s))
            await crowd.become(viewers)
            await asyncio.sleep(SETTLED_S)
            await crowd.become(viewers)
            seen.parts[True].append(await run.part(turn_s))
            watched = await crowd.become(viewers)
            if watched.viewers != viewers or watched.ended or not watched.fewest_rounds or not watched.answers:
                raise EpochalError(f"not every viewer was told the rounds: {watched}")
            seen.watched.append(watched)
            await crowd.become(0)
            await asyncio.sleep(SETTLED_S)
        seen.parts[False].append(await run.part(turn_s / 2))
    return seen


async def _measured(
    folder: Path, trainer: str, clients: int, viewers: int, turns: int, turn_s: float
) -> tuple[Seen, dict[int, float]]:
    """Return what was measured of a run with so many clients, and when each of its steps began."""
    await asyncio.to_thread(folder.mkdir)
    limits = {f"config__{name}": seconds for name, seconds in LONG.items()}
    batches = BATCHES_PER_CLIENT * clients
    sizes = {f"config__global_batch_size_{end}": batches for end in ("start", "end")}
    state = state_text(
        run_id=RUN_ID,
        config__epoch_time=3000,
        config__waiting_for_members_extra_time=0.05,
        config__init_min_clients=clients,
        config__total_steps=STEPS,
        **(limits | sizes | TRAINED),
    )
    async with coordinator_of(state, folder) as process:
        for number in range(clients):
            await process.children.start(f"client-{number}", "client", process.url, "--trainer", trainer)
        seen = await _seen(process, viewers, turns, turn_s)
    starts, _ = await round_starts(str(process.run_dir))
    return seen, starts


async def measure(folder: Path, viewers: int = VIEWERS, turns: int = TURNS, turn_s: float = TURN_S) -> list[Figure]:
    """Return the figures of a run that trains, and of one whose rounds are as short as they can be."""
    training = max(1, min(MAX_TRAINING_CLIENTS, (os.cpu_count() or 1) - 1))
    found = list[Figure]()
    for what, trainer, clients in (("trains", "numpy", training), ("has null clients", "null", NULL_CLIENTS)):
        seen, starts = await _measured(folder / trainer, trainer, clients, viewers, turns, turn_s)
        found += _figures(f"a run that {what}", viewers, seen, starts)
    return found


def _figures(what: str, viewers: int, seen: Seen, starts: dict[int, float]) -> list[Figure]:
    without, crowd = "without viewers", f"{viewers:,} viewers of {what}"
    shares = {viewed: 100 * seen.share(viewed=viewed) for viewed in (False, True)}
    rounds_ms = {viewed: 1000 * seen.round_s(starts, viewed=viewed) for viewed in (False, True)}
    sent = sum(watched.received_bytes for watched in seen.watched)
    viewed_s = sum(part.wall_s for part in seen.parts[True])
    return [
        Figure(f"{crowd}: their cost", shares[True] - shares[False], "% of a core", "≤ 10 %"),
        Figure("— the coordinator's processor", shares[True], "% of a core", "", shares[False], without),
        Figure("— a round, median", rounds_ms[True], "ms", "≤ 1.05 x", rounds_ms[False], without),
        Figure("— sent to each of them", sent / viewers / viewed_s / 1000, "KB/s"),
    ]
