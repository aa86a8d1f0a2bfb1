"""`epochal plan` against real runs: coordinator and clients as processes, behind links that are limited and slow.

The rates are so low that the machine's processor hardly matters. One run goes through several kinds of links: they
change between two rounds, and the first round after a change is left out.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rounds import round_starts
from epochal.planning.costs import Costs
from epochal.planning.described import ClientGroup, Link
from epochal.planning.planner import plan_run
from epochal.planning.plans import Plan, PlanOptions
from epochal.planning.played_run import Links
from state.config.state_file import parse_state
from tests.support.limited_link import LimitedLink, ServerBuckets, limited_link
from tests.support.processes import RealRun, in_training, prepared_run
from tests.support.timed_trainer import SPEED_FILE

CLIENTS = 3
ROUNDS = 3
"""Rounds of each kind; the first one still has results of the kind before it."""
TOLERANCE = 0.2
FAST = 20_000_000.0
STATE: dict[str, Any] = {
    "config__init_min_clients": CLIENTS,
    "config__min_clients": CLIENTS,
    "config__global_batch_size_start": 12,
    "config__global_batch_size_end": 12,
    "config__total_steps": 1000,
    "config__max_round_train_time": 60,
    "model__LLM__ngram": {"context": 2, "embedding": 16, "hidden": 100},
    "merge__codec": "float32",
}
TOKENS_OF_A_ROUND = 12 * 16


@dataclass(frozen=True)
class Kind:
    """Links and trainers of some rounds.

    Attributes:
        down, up: rates of each client's link in bytes/s.
        server: the coordinator's in bytes/s.
        round_trip_s: of each client.
        training_s: time of a client's local steps.
        limit: what a round waits for most, and what limits that.
    """

    down: float
    up: float
    server: float
    round_trip_s: float
    training_s: float
    limit: tuple[str, str]

    def group(self) -> ClientGroup:
        """Return the clients as the planner takes them."""
        tokens_per_s = TOKENS_OF_A_ROUND / CLIENTS / self.training_s
        return ClientGroup(CLIENTS, Link(self.down, self.up), self.round_trip_s, tokens_per_s)


KINDS = {
    "upload-bound": Kind(FAST, 100_000, FAST, 0.02, 0.05, ("upload", "client")),
    "coordinator-bound": Kind(FAST, FAST, 650_000, 0.02, 0.05, ("download", "server")),
    "latency-bound": Kind(FAST, FAST, FAST, 0.32, 0.05, ("download", "latency")),
    "training-bound": Kind(FAST, FAST, FAST, 0.02, 1.5, ("training", "client")),
}


def planned(state: str, kind: Kind) -> Plan:
    link = Link(kind.server, kind.server)
    options = PlanOptions(links=Links(coordinator=link), costs=Costs(slow_start=False))
    return plan_run(parse_state(state, "state.toml"), [kind.group()], options)


class LimitedRun:
    """A run whose clients have limited links."""

    def __init__(self, run: RealRun, speed: Path) -> None:
        self.run = run
        self.links: list[LimitedLink] = []
        self.server = ServerBuckets()
        self._speed = speed

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        """Start coordinator and clients, each behind its link."""
        await self.run.start_coordinator()
        direct = self.run.url
        for _ in range(CLIENTS):
            link = await stack.enter_async_context(limited_link(int(direct.rpartition(":")[2]), self.server))
            self.links.append(link)
            self.run.url = link.url
            await self.run.start_client(trainer="tests.support.timed_trainer:TimedTrainer")
        self.run.url = direct

    def become(self, kind: Kind) -> None:
        """Change links and trainers, from now on."""
        self.server.to_it.bytes_per_s = self.server.from_it.bytes_per_s = kind.server
        for link in self.links:
            link.up.bytes_per_s, link.down.bytes_per_s, link.round_trip_s = kind.up, kind.down, kind.round_trip_s
        self._speed.write_text(str(TOKENS_OF_A_ROUND / CLIENTS / kind.training_s))

    def passed(self) -> tuple[float, float]:
        """Return the bytes that a client has sent and received so far, on average."""
        return (
            sum(link.up.passed_bytes for link in self.links) / CLIENTS,
            sum(link.down.passed_bytes for link in self.links) / CLIENTS,
        )


@dataclass(frozen=True)
class Measured:
    """Real rounds of a kind: the time of the one that other programs disturbed least, and a client's bytes of each."""

    round_s: float
    sent_bytes: float
    received_bytes: float


async def measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, Measured]]:
    """Return the state file, and what rounds of each kind took."""
    speed = folder / "tokens_per_s"
    monkeypatch.setenv(SPEED_FILE, str(speed))
    steps: dict[str, int] = {}
    passed: dict[str, list[tuple[float, float]]] = {}
    async with contextlib.AsyncExitStack() as stack:
        run = await stack.enter_async_context(prepared_run(folder, **STATE))
        limited = LimitedRun(run, speed)
        first = next(iter(KINDS.values()))
        speed.write_text("1e6")
        await limited.start(stack)
        await run.until(in_training(2))
        limited.become(first)
        step = 2
        for name, kind in KINDS.items():
            limited.become(kind)
            steps[name] = step + 1
            await run.until(in_training(step + 1))
            before = limited.passed()
            step += ROUNDS
            await run.until(in_training(step))
            passed[name] = [before, limited.passed()]
        starts, _ = await round_starts(run.store)
        state = run.state_path.read_text()
    found = {}
    for name, first_step in steps.items():
        times = [starts[one + 1] - starts[one] for one in range(first_step, first_step + ROUNDS - 1)]
        (sent, received), (sent_after, received_after) = passed[name]
        each = ROUNDS - 1
        found[name] = Measured(min(times), (sent_after - sent) / each, (received_after - received) / each)
    return state, found


async def test_plan_holds_in_real_runs_behind_limited_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, found = await measured(tmp_path, monkeypatch)
    for name, real in found.items():
        expected = planned(state, KINDS[name])
        group = expected.groups[0]
        print(name, real, expected.round_s, group.sent_bytes, group.received_bytes)
        assert real.round_s == pytest.approx(expected.round_s, rel=TOLERANCE), name
        assert real.sent_bytes == pytest.approx(group.sent_bytes, rel=TOLERANCE), name
        assert real.received_bytes == pytest.approx(group.received_bytes, rel=TOLERANCE), name
        assert (expected.kind, expected.limit) == KINDS[name].limit, name
