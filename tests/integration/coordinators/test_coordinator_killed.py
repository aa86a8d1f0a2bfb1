"""The coordinator is killed, and started again, in any phase."""

import signal
from pathlib import Path

import pytest

from epochal.state.phase_names import RunState
from tests.support.bounds import BOUND_S
from tests.support.drive.by_hand import HELD_IN_WITNESS, all_by_hand, hold_in
from tests.support.drive.processes import RealRun, prepared_run, real_run
from tests.support.thinned import thinned

CLIENT_TIMEOUT_S = 5.0
STARTS = 5
"""Enough starts to hit a gap between the line and the signal handler, if there is one."""


def dropped(run: RealRun) -> list[str]:
    """Return the clients that the coordinator has dropped for silence since its last start."""
    return [
        line["client_id"]
        for line in run.events(run.coordinator, "membership_changed")
        if line["change"] == "fell silent"
    ]


@thinned("phase", [RunState.WARMUP, RunState.ROUND_TRAIN, RunState.ROUND_WITNESS, RunState.COOLDOWN], kept=1)
async def test_coordinator_killed_in_a_phase_goes_on_where_it_was(tmp_path: Path, phase: RunState) -> None:
    client_count, steps = (1, 1) if phase is RunState.COOLDOWN else (2, 4)
    hand_count = 2 if phase is RunState.ROUND_WITNESS else 1
    overrides = {
        "config__init_min_clients": client_count + hand_count,
        "config__total_steps": steps,
        **(HELD_IN_WITNESS if phase is RunState.ROUND_WITNESS else {}),
    }
    async with real_run(tmp_path, **overrides) as run, all_by_hand(run, hand_count) as hands:
        for _ in range(client_count):
            await run.start_client()
        before = await hold_in(hands[0], phase, client_count, *hands[1:])
        await run.kill_coordinator()
        await run.start_coordinator()
        after = await hands[0].watch.next()
        assert (after.run_state, after.step, after.round) == (phase, before.step, before.round)
        assert (after.lineage, after.checkpoint) == (before.lineage, before.checkpoint)
        if phase is RunState.COOLDOWN:
            await hands[0].cool_down(after)
        else:
            for hand in hands:
                await hand.api.withdraw()
        report = await run.finish()
        assert report.rounds == steps
        assert dropped(run) == []


async def test_there_must_be_a_backup_to_be_restored(tmp_path: Path) -> None:
    async with prepared_run(tmp_path) as run:
        ran = await run.command("coordinator", str(run.state_path), "--store", str(run.run_dir), "--restored")
        ran.expect(2, "holds no run; restore the backup first")


@pytest.mark.nightly
async def test_coordinator_terminated_as_soon_as_it_listens_ends_in_order(tmp_path: Path) -> None:
    async with prepared_run(tmp_path) as run:
        for _ in range(STARTS):
            await run.start_coordinator()
            run.coordinator.process.send_signal(signal.SIGTERM)
            assert await run.coordinator.wait(BOUND_S) == 0, run.coordinator.log_tail()
