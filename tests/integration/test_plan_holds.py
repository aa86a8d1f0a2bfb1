"""`epochal plan` against real runs: coordinator and clients as processes, behind links that are limited and slow.

The rates are so low that the machine's processor hardly matters. One run goes through several kinds of links: they
change between two rounds, and the first round after a change is left out.
"""

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from epochal.state.config.state_file import parse_state
from epochal.state.phase_names import RunState
from epochal.state.round_model import ClientGroup, Costs, Link, Links
from epochal.tools.plan.planner import plan_run
from epochal.tools.plan.plans import Plan, PlanOptions
from tests.support.drive.processes import RealRun, in_training, prepared_run
from tests.support.models.timed_trainer import SPEED_FILE
from tests.support.servers.limited_link import LimitedLink, ServerBuckets, limited_link

CLIENTS = 3
ROUNDS = 2
MOST_ROUNDS = 12
"""Rounds of each kind that are measured, and at most, while the machine is busy with other programs."""
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
    "merge__update": "exact",
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
    "coordinator-bound": Kind(FAST, FAST, 650_000, 0.02, 0.05, ("upload", "server")),
    "latency-bound": Kind(FAST, FAST, FAST, 0.32, 0.05, ("messages", "latency")),
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
            await self.run.start_client(trainer="tests.support.models.timed_trainer:TimedTrainer")
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

    async def in_training(self, step: int) -> int:
        """Wait until this step, or a later one, is trained; return which it is."""
        return (await self.run.until(in_training(step))).step

    def rounds_since(self, step: int) -> list[float]:
        """Return the times of the rounds from this step on that have ended, each in seconds."""
        starts: dict[int, float] = {}
        for document in self.run.watch.seen:
            if document.run_state is RunState.ROUND_TRAIN:
                starts.setdefault(document.step, document.phase_started_s)
        return [starts[one + 1] - starts[one] for one in starts if one >= step and one + 1 in starts]


@dataclass(frozen=True)
class Measured:
    """Real rounds of a kind: the time of each, and a client's bytes of one."""

    rounds_s: tuple[float, ...]
    sent_bytes: float
    received_bytes: float


async def measured(limited: LimitedRun, kind: Kind, expected_s: float) -> Measured:
    """Return what rounds of a kind take.

    Other programs can only make a round longer. While all were longer than expected, more of them are measured, so
    that a busy machine does not look like a wrong plan.
    """
    limited.become(kind)
    first = await limited.in_training(limited.run.watch.seen[-1].step + 1)
    first = await limited.in_training(first + 1)  # the one before began with results of the kind before it
    before, step, most = limited.passed(), first, (1 + TOLERANCE) * expected_s
    while step < first + ROUNDS or (min(limited.rounds_since(first)) > most and step < first + MOST_ROUNDS):
        step = await limited.in_training(step + 1)
    sent, received = (after - earlier for after, earlier in zip(limited.passed(), before, strict=True))
    return Measured(tuple(limited.rounds_since(first)), sent / (step - first), received / (step - first))


@contextlib.asynccontextmanager
async def limited_run(folder: Path) -> AsyncIterator[LimitedRun]:
    """Yield a run in the folder that trains, each of its clients behind a link."""
    speed = folder / "tokens_per_s"
    speed.write_text("1e6")
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, {SPEED_FILE: str(speed)}))  # which the clients inherit
        limited = LimitedRun(await stack.enter_async_context(prepared_run(folder, **STATE)), speed)
        await limited.start(stack)
        await limited.in_training(2)
        yield limited


@pytest.mark.nightly  # it compares real time with a plan: another program on the machine makes it wrong
async def test_plan_holds_in_real_runs_behind_limited_links(tmp_path: Path) -> None:
    async with limited_run(tmp_path) as limited:
        state = limited.run.state_path.read_text()
        for name, kind in KINDS.items():
            expected = planned(state, kind)
            group = expected.groups[0]
            real = await measured(limited, kind, expected.round_s)
            least_disturbed_s = min(real.rounds_s)
            assert least_disturbed_s == pytest.approx(expected.round_s, rel=TOLERANCE), name
            assert real.sent_bytes == pytest.approx(group.sent_bytes, rel=TOLERANCE), name
            assert real.received_bytes == pytest.approx(group.received_bytes, rel=TOLERANCE), name
            assert (expected.kind, expected.limit) == kind.limit, name
