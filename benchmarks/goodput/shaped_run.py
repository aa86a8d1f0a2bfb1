"""A run of real processes behind limited links: a coordinator, and clients that train for a set time.

Each client reaches the coordinator through a relay of its own (`tests/support/servers/limited_link.py`), which passes
so many bytes a second each way, later by half of a round trip, and counts them. Until the first round links are fast:
what is measured begins with the rounds.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.goodput.timed_noise import BATCH_S_VARIABLE, NAME, SPANS_VARIABLE
from benchmarks.goodput.training_time import Presence, Span, trained_spans
from benchmarks.servers import RUN_ID, CoordinatorProcess, coordinator_of
from epochal.coordinator_client.api import DocumentMark
from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import EpochalError
from epochal.state.phase_names import RunState
from epochal.tools.testnet.child_processes import Child
from tests.support.data.states import state_text
from tests.support.servers.limited_link import LimitedLink, ServerBuckets, limited_link

FAST_BYTES_PER_S = 1e9
WAIT_S = 5.0
START_S = 180.0
"""Maximum time from the clients' start to the first round."""
LEAVE_S = 90.0
"""Maximum time that a client takes to leave; by itself it gives up the round after a minute."""
LONG_S = 600
"""Time limit of everything that no run reaches."""
CORES_FILE = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class Line:
    """A client's link and training.

    Attributes:
        down_bytes_per_s, up_bytes_per_s: rates of its link.
        round_trip_s: time that a message and its answer take.
        batch_s: seconds for which it trains on a batch.
        arguments: further ones of `epochal client`.
    """

    down_bytes_per_s: float = FAST_BYTES_PER_S
    up_bytes_per_s: float = FAST_BYTES_PER_S
    round_trip_s: float = 0.0
    batch_s: float = 0.0
    arguments: tuple[str, ...] = ()


@dataclass
class Member:
    """One client's process, its relay, and when it was there; one that is leaving may end."""

    line: Line
    link: LimitedLink
    child: Child
    spans: Path
    start_s: float
    end_s: float | None = None
    is_leaving: bool = False

    def shape(self) -> None:
        """Give its link the rates and the round trip of its line."""
        self.link.down.bytes_per_s = self.line.down_bytes_per_s
        self.link.up.bytes_per_s = self.line.up_bytes_per_s
        self.link.round_trip_s = self.line.round_trip_s

    def presence(self) -> Presence:
        """Return when it was there, and trained."""
        now_s = time.time()
        return Presence(
            Span(self.start_s, self.end_s or now_s), trained_spans(self.spans, now_s if self.end_s is None else None)
        )


def run_text(**overrides: Any) -> str:
    """Return the state file of a run without end, whose time limits nobody reaches."""
    limits = ("warmup_time", "cooldown_time", "max_round_train_time", "round_witness_time")
    fixed = {f"config__{name}": LONG_S for name in limits} | {
        "config__epoch_time": 100_000,
        "config__client_timeout_s": 30,
        "config__waiting_for_members_extra_time": 0.05,
        "config__total_steps": 100_000,
        "blobs__max_total_bytes": 10**11,
        "run_id": RUN_ID,
    }
    return state_text(**(fixed | overrides))


@dataclass
class ShapedRun:
    """A run under way.

    Attributes:
        folder: for spools, and what the clients note.
        members: all that were started, in order.
        round_starts_s: when RoundTrain of each step began, on the coordinator's clock, which is the machine's.
    """

    process: CoordinatorProcess
    folder: Path
    stack: contextlib.AsyncExitStack
    members: list[Member] = field(default_factory=list)
    round_starts_s: dict[int, float] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def start_member(self, line: Line, *, is_shaped: bool = False, is_relayed: bool = True) -> Member:
        """Start a client; its link is fast at first unless it is shaped from the beginning.

        Without a relay, it has no limits, and nothing is counted.
        """
        link = LimitedLink(self.process.url)
        if is_relayed:
            port = int(self.process.url.rpartition(":")[2])
            link = await self.stack.enter_async_context(limited_link(port, _unlimited()))
        number = len(self.members)
        spans = self.folder / f"trained-{number}.jsonl"
        started_s = time.time()
        child = await self.process.children.start(
            f"client-{number}",
            *("client", link.url, "--trainer", NAME, "--spool", str(self.folder / "spool"), *line.arguments),
            environment={BATCH_S_VARIABLE: repr(line.batch_s), SPANS_VARIABLE: str(spans)},
        )
        member = Member(line, link, child, spans, started_s)
        if is_shaped:
            member.shape()
        self.members.append(member)
        return member

    async def end_member(self, member: Member, *, vanishes: bool) -> None:
        """End a client: kill it, or let it finish its round and withdraw. Return once its process has ended."""
        member.is_leaving = True
        member.child.process.send_signal(signal.SIGKILL if vanishes else signal.SIGINT)
        if await member.child.wait(LEAVE_S) is None:
            member.child.kill()
            await member.child.process.wait()
        member.end_s = time.time()

    async def start_members(self, lines: Sequence[Line]) -> None:
        """Start clients, wait until the first round, and give their links their rates."""
        for line in lines:
            await self.start_member(line)
        await self.began(1, START_S)
        for member in self.members:
            member.shape()

    async def began(self, step: int, within_s: float) -> float:
        """Return when RoundTrain of a step began, once it has.

        Raises:
            EpochalError: it did not within this time, or a client that was not ended has failed.
        """
        try:
            async with asyncio.timeout(within_s):
                while step not in self.round_starts_s:
                    self._changed.clear()
                    await self._changed.wait()
                    self._check_members()
        except TimeoutError:
            self._check_members()
            reached = max(self.round_starts_s, default=0)
            raise EpochalError(f"round {step} did not begin within {within_s:g} s; the last was {reached}") from None
        return self.round_starts_s[step]

    async def follow(self) -> None:
        """Note when rounds begin, until it is cancelled."""
        async with await CoordinatorClient.connect(self.process.url, RetryPolicy(bound_s=START_S)) as api:
            mark: DocumentMark | None = None
            while True:
                document = await api.run_document(mark, WAIT_S)
                if document is None:
                    continue
                mark = DocumentMark(document.lineage, document.version)
                if document.run_state is RunState.ROUND_TRAIN:
                    self.round_starts_s.setdefault(document.step, document.phase_started_s)
                self._changed.set()

    async def rounds(self) -> list[dict[str, Any]]:
        """Return the rows of the rounds that have ended, as the coordinator's history has them."""
        async with httpx.AsyncClient(base_url=self.process.url, timeout=30.0) as http:
            answer = await http.get(f"/v1/runs/{RUN_ID}/history")
            answer.raise_for_status()
        columns = answer.json()["rounds"]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def presences(self) -> list[Presence]:
        """Return when each client was there, and trained."""
        return [member.presence() for member in self.members]

    def _check_members(self) -> None:
        for member in self.members:
            if not member.is_leaving and not member.child.running:
                raise EpochalError(f"{member.child.name} ended:\n{member.child.log_tail()}")


def _unlimited() -> ServerBuckets:
    """Return a coordinator's link that is never the limit."""
    server = ServerBuckets()
    server.to_it.bytes_per_s = server.from_it.bytes_per_s = FAST_BYTES_PER_S
    return server


@contextlib.asynccontextmanager
async def shaped_run(folder: Path, state: str) -> AsyncIterator[ShapedRun]:
    """Run a coordinator of this state file, without clients; in the end, kill all that were started.

    An error is raised as it is, not in a group: a page says why a row was not measured.
    """
    async with contextlib.AsyncExitStack() as stack:
        process = await stack.enter_async_context(coordinator_of(state, folder))
        run = ShapedRun(process, folder, stack)
        try:
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(run.follow())
                try:
                    yield run
                finally:
                    following.cancel()
                    for member in run.members:
                        member.child.kill()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None


@dataclass(frozen=True, slots=True)
class Cores:
    """Processor time of the whole machine so far, in ticks of all cores: busy, and all."""

    busy: int
    whole: int

    @classmethod
    def now(cls) -> "Cores":
        """Return the machine's present counts."""
        ticks = [int(word) for word in CORES_FILE.read_text(encoding="utf-8").split("\n", 1)[0].split()[1:9]]
        return cls(sum(ticks) - ticks[3] - ticks[4], sum(ticks))

    def busy_part_since(self, before: "Cores") -> float:
        """Return the part of all cores' time since then that was busy, whoever used it."""
        return (self.busy - before.busy) / max(1, self.whole - before.whole)
