"""Members that take work and deliver none, claim what they cannot do, never attest or never get ready: nobody waits."""

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Any

import pytest

from epochal.coordinator.machine.parts.conduct import MISSES_BEFORE_REST
from epochal.state.errors import Refused
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId
from epochal.tools.testnet.child_processes import Child
from tests.support.bounds import BOUND_S
from tests.support.drive.by_hand import ByHand, all_by_hand
from tests.support.drive.processes import RealRun, at_round, in_phase, in_training, real_run

HONEST = 3
ROUND_S = 1.5
"""`max_round_train_time` of these runs."""
STEPS = 24
"""So many steps that the run outlives every wait of a test if each of them takes `ROUND_S`."""
STATE: dict[str, Any] = {
    "config__init_min_clients": HONEST + 1,
    "config__total_steps": STEPS,
    "config__max_round_train_time": ROUND_S,
    "config__cooldown_time": 3,
}


def rests_of(run: RealRun, client_id: ClientId) -> list[dict[str, Any]]:
    return [line for line in run.events(run.coordinator, "client_rests") if line["client_id"] == client_id]


def reasons(run: RealRun, before: RunState, after: RunState) -> list[str]:
    """Return why the run went from one phase to the other, each time."""
    lines = run.events(run.coordinator, "phase_changed")
    return [line["reason"] for line in lines if (line["before"], line["after"]) == (before.value, after.value)]


async def until_logged(run: RealRun, child: Child, event: str) -> dict[str, Any]:
    """Return a line that a process has logged; looks for it whenever the run publishes something."""
    async with asyncio.timeout(BOUND_S):
        while not (found := run.events(child, event)):
            await run.watch.next()
    return found[0]


@pytest.mark.nightly
@pytest.mark.parametrize("claim", [1, 1_000_000])
async def test_silent_member_costs_three_rounds_and_rests(tmp_path: Path, claim: int) -> None:
    async with real_run(tmp_path, **STATE) as run, all_by_hand(run, 1, claim) as (silent,):
        for _ in range(HONEST):
            await run.start_client()
        await silent.be_ready()
        document = await silent.watch.until(at_round(1))
        assert await silent.assigned(document) == 3, "a newcomer's part, whatever it claims"
        await run.until(in_training(MISSES_BEFORE_REST + 1))
        (view,) = [member for member in (await run.status()).members if member.client_id == silent.client_id]
        assert (view.claim, view.missed) == (claim, MISSES_BEFORE_REST)
        assert view.rest_s is not None
        assert "did not arrive" in view.last_miss
        shown = await run.command("status", run.url)
        assert "rests" in shown.out
        assert "resting 1" in shown.out or "did not arrive" in shown.out
        report = await run.finish()
        assert report.rounds == STEPS
        assert rests_of(run, silent.client_id)
        closed = reasons(run, RunState.ROUND_TRAIN, RunState.ROUND_WITNESS).count("time is over")
        assert closed < STEPS / 2, "the rounds after its rest began did not wait for it"


async def deliver_every_round(hand: ByHand) -> None:
    """Deliver a result in every round, and attest none."""
    document = await hand.watch.until(in_phase(RunState.ROUND_TRAIN))
    while document.run_state is not RunState.FINISHED:
        if document.run_state is RunState.ROUND_TRAIN:
            with contextlib.suppress(Refused):  # the round may be over by now, or does not include this client
                await hand.deliver(document)
        document = await hand.watch.next()


@pytest.mark.nightly
async def test_witness_that_never_attests_is_not_waited_for(tmp_path: Path) -> None:
    overrides = STATE | {"config__round_witness_time": 20, "config__max_round_train_time": 20}
    async with real_run(tmp_path, **overrides) as run, all_by_hand(run, 1) as (silent,):
        for _ in range(HONEST):
            await run.start_client()
        await silent.be_ready()
        delivering = asyncio.create_task(deliver_every_round(silent))
        report = await run.finish()
        await delivering
        assert report.rounds == STEPS
        assert reasons(run, RunState.ROUND_TRAIN, RunState.ROUND_WITNESS).count("time is over") <= MISSES_BEFORE_REST
        in_outcome = [await run.watch.api.outcome(step) for step in (STEPS - 1, STEPS)]
        assert any(entry.client_id == silent.client_id for outcome in in_outcome for entry in outcome.entries), (
            "its results count all the same"
        )


@pytest.mark.nightly
async def test_lurker_that_never_gets_ready_is_waited_for_once(tmp_path: Path) -> None:
    overrides = STATE | {
        "config__total_steps": 100_000,
        "config__warmup_time": 5,
        "config__epoch_time": 5.5,
        "config__waiting_for_members_extra_time": 0.1,
    }
    async with real_run(tmp_path, **overrides) as run, all_by_hand(run, 1):
        for _ in range(HONEST):
            await run.start_client()
        await run.until(lambda document: document.run_state is RunState.ROUND_TRAIN and document.epoch == 1)
        await run.until(in_phase(RunState.ROUND_WITNESS, RunState.ROUND_TRAIN, RunState.COOLDOWN))
        left = reasons(run, RunState.WARMUP, RunState.ROUND_TRAIN)
        assert left == ["3 of 4 members are ready, the others have had time", "3 of 4 members are ready"]


@pytest.mark.nightly
async def test_client_that_was_stopped_is_told_waits_and_takes_part_again(tmp_path: Path) -> None:
    overrides = STATE | {
        "config__init_min_clients": HONEST,
        "config__total_steps": 100_000,
        "config__client_timeout_s": 60,
    }
    async with real_run(tmp_path, **overrides) as run:
        stopped, *_ = [await run.start_client() for _ in range(HONEST)]
        client_id = run.client_id_of(stopped)
        await run.until(in_training(2))
        stopped.process.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(BOUND_S):
            while not rests_of(run, client_id):
                await run.watch.next()
        stopped.process.send_signal(signal.SIGCONT)
        told = await until_logged(run, stopped, "gets_no_work_for_a_while")
        assert told["level"] == "warning"
        assert "did not arrive" in told["reason"]
        assert 0 < told["rest_s"] <= 10
        await until_logged(run, stopped, "rest_over")
        (view,) = [member for member in (await run.status()).members if member.client_id == client_id]
        assert view.rest_s is None
        assert stopped.process.returncode is None
