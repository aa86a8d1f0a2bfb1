"""Clients that die, or leave."""

import signal
from pathlib import Path

import pytest

from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId
from tests.support.bounds import BOUND_S
from tests.support.drive.by_hand import HELD_IN_WITNESS, ByHand, all_by_hand, hold_in, joined_by_hand
from tests.support.drive.processes import PATIENT, at_round, in_phase, real_run
from tests.support.thinned import thinned

SILENCE_S = 8
"""Silence after which the coordinator drops a client, in tests that wait for that."""


async def take_rounds_until(hand: ByHand, client_id: ClientId, *, present: bool) -> None:
    """Take rounds until the client is in the roster, or is not."""
    document = await hand.watch.until(in_phase(RunState.ROUND_TRAIN))
    while (client_id in await hand.roster_of(document)) is not present:
        document = await hand.take_round(document)


@pytest.mark.nightly
@thinned("phase", [RunState.COOLDOWN, RunState.WARMUP, RunState.ROUND_TRAIN, RunState.ROUND_WITNESS], kept=1)
async def test_client_killed_in_a_phase_is_dropped_and_the_run_finishes(tmp_path: Path, phase: RunState) -> None:
    client_count, steps = (1, 1) if phase is RunState.COOLDOWN else (2, 6)
    hand_count = 2 if phase is RunState.ROUND_WITNESS else 1
    overrides = {
        "config__init_min_clients": client_count + hand_count,
        "config__total_steps": steps,
        "config__client_timeout_s": SILENCE_S,
        **(HELD_IN_WITNESS if phase is RunState.ROUND_WITNESS else {}),
        "config__cooldown_time": 5,  # two claims are a quorum; a victim that has sent none leaves it to the time
    }
    async with real_run(tmp_path, **overrides) as run, all_by_hand(run, hand_count) as hands:
        clients = [await run.start_client() for _ in range(client_count)]
        document = await hold_in(hands[0], phase, client_count, *hands[1:])
        victim = clients[-1]
        victim.kill()
        assert await victim.wait(BOUND_S) == -signal.SIGKILL
        if phase is RunState.COOLDOWN:
            await hands[0].cool_down(document)
        else:
            for hand in hands:
                await hand.api.withdraw()
        report = await run.finish(without=(victim,))
        assert report.rounds == steps
        if phase is not RunState.COOLDOWN:
            assert run.changes_of(victim)[-1] == "fell silent"


@pytest.mark.nightly
async def test_ctrl_c_once_finishes_the_round_and_withdraws(tmp_path: Path) -> None:
    overrides = {"config__init_min_clients": 2, "config__total_steps": 4}
    async with real_run(tmp_path, **overrides, **PATIENT) as run, joined_by_hand(run, 1) as hand:
        leaving = await run.start_client()
        document = await hold_in(hand, RunState.ROUND_TRAIN, 1)
        leaving.process.send_signal(signal.SIGINT)
        await hand.deliver(document)
        await hand.attest(document)
        await hand.watch.until(at_round(2))
        assert await leaving.wait(BOUND_S) == 0, leaving.log_tail()
        assert "withdrawn with replica" in await run.line_of(leaving, "withdrawn")
        assert run.changes_of(leaving)[-1] == "withdrew"
        outcome = await hand.api.outcome(1)
        assert run.client_id_of(leaving) in [entry.client_id for entry in outcome.entries], "its round counts"
        await take_rounds_until(hand, run.client_id_of(leaving), present=False)
        await run.prove()
