"""Blobs near their bound end an epoch, whose checkpoint makes room: once each time, however slowly they are deleted."""

import asyncio

import pytest

from epochal.coordinator.machine.instructions import OutcomeDecided, PhaseChanged
from epochal.coordinator.run.service_events import ServiceEvent
from epochal.state.phase_names import RunState
from epochal.state.wire import Sha256
from tests.support.simulate.memory_store import MemoryBlobs
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_run import prove, simulated_run, small_state
from tests.support.simulate.virtual_time import in_virtual_time

BOUND_BYTES = 300_000
DELETE_S = 0.3
"""Longer than several ticks."""
LEAST_ROUNDS = 3
"""Number of rounds for which there is room beside two checkpoints; far more, beside one."""
SEED = 7


@pytest.mark.nightly
@in_virtual_time
async def test_epoch_after_blobs_neared_their_bound_has_room_for_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    delete = MemoryBlobs.delete

    async def delete_slowly(blobs: MemoryBlobs, sha256: Sha256) -> None:
        await asyncio.sleep(DELETE_S)
        await delete(blobs, sha256)

    monkeypatch.setattr(MemoryBlobs, "delete", delete_slowly)
    bounds = {"blobs__max_total_bytes": BOUND_BYTES, "merge__codec": "float32"}
    state = small_state(6, config__total_steps=24, config__epoch_time=100_000, **bounds)
    rounds, ended = [0], list[str]()
    async with simulated_run(state, SEED) as run:

        def note(event: ServiceEvent) -> None:
            if isinstance(event, OutcomeDecided) and event.outcome is not None:
                rounds[-1] += 1
            if isinstance(event, PhaseChanged) and event.after is RunState.COOLDOWN:
                ended.append(event.reason)
                rounds.append(0)

        run.coordinator.service.watch(note)
        await run.play(*(ClientSpec(),) * 3)
        await prove(run)
    assert "blobs are near their size limit" in ended[:-1]
    assert min(rounds[:-2]) >= LEAST_ROUNDS
