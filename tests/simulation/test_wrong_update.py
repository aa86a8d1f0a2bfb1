"""A coordinator that makes a wrong update, which its clients apply: the audit finds it and names the tensor."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from epochal.coordinator.blobs.update_maker import UpdateMaker
from epochal.coordinator.proof.recompute import recompute
from epochal.run_manager.agent import EndReason
from epochal.state.documents import Outcome
from epochal.state.updates import UpdateSum
from epochal.state.wire import sha256_hex
from tests.support.data.states import state_file
from tests.support.data.stored_blobs import blob_bytes, one_piece
from tests.support.drive.cli import run_main
from tests.support.drive.journaled_run import KeptRun, keep_in
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_run import SimulatedRun, simulated_run
from tests.support.simulate.virtual_time import in_virtual_time, run_virtually

WRONG_STEP, WRONG_TENSOR = 3, "hidden.weight"
STATE = state_file(
    config__init_min_clients=3,
    config__total_steps=5,
    config__epoch_time=4000,
    model__LLM__ngram={"context": 2, "embedding": 2, "hidden": 2},
)


async def play(run: SimulatedRun) -> None:
    ends = await run.play(*[ClientSpec(trainer="numpy")] * 3)
    assert {end.reason for end in ends} == {EndReason.FINISHED}
    assert len({end.replica_digest for end in ends}) == 1, "all have applied the same updates"


async def kept_run() -> KeptRun:
    async with simulated_run(STATE, seed=1) as run:
        await play(run)
        store = run.coordinator.store
        blobs = {sha256: await blob_bytes(store.blobs, sha256) for sha256 in await store.blobs.held()}
        key = await store.keys.private_key()
        assert key is not None
        return KeptRun(tuple(run.coordinator.journal.segments), blobs, key)


def lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the coordinator add something of its own to one tensor of one step's sum."""
    sum_of = UpdateMaker._sum_of

    async def changed(self: UpdateMaker, outcome: Outcome) -> object:
        found = await sum_of(self, outcome)
        if outcome.step == WRONG_STEP:
            assert isinstance(found.total, UpdateSum)
            found.total._sums[(await self._layout()).starts()[WRONG_TENSOR]] += 1000
        return found

    monkeypatch.setattr(UpdateMaker, "_sum_of", changed)


def test_audit_names_step_and_tensor_of_a_wrong_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is sound, and quorums have attested the replicas that the update led to."""
    lie(monkeypatch)
    asyncio.run(keep_in(tmp_path / "run", run_virtually(kept_run())))
    run_main("audit", str(tmp_path / "run")).expect(0, "all checks passed")
    audit = run_main("audit", str(tmp_path / "run"), "--recompute")
    audit.expect(1)
    problem = f"wrong: the update of step {WRONG_STEP} is not the mean of its results: tensor '{WRONG_TENSOR}'"
    assert problem in " ".join(audit.out.split())


@in_virtual_time
async def test_update_whose_header_is_written_otherwise_is_named_too() -> None:
    """The same values, after a space more: no tensor differs."""
    async with simulated_run(STATE, seed=1) as run:
        await play(run)
        models, blobs = run.coordinator.run.models, run.coordinator.store.blobs
        data = await blob_bytes(blobs, models.updates[WRONG_STEP].blob_sha256)
        length = int.from_bytes(data[:8], "little")
        spaced = (length + 8).to_bytes(8, "little") + data[8 : 8 + length] + b" " * 8 + data[8 + length :]
        await blobs.receive(sha256_hex(spaced), len(spaced), one_piece(spaced))
        other = replace(models.updates[WRONG_STEP], blob_sha256=sha256_hex(spaced), size_bytes=len(spaced))
        updates = {**models.updates, WRONG_STEP: other}
        wrong = run.coordinator.run.with_parts(replace(models, updates=updates))
        problem = (await recompute(wrong, blobs, {}, 5)).problem
        assert problem == f"the update of step {WRONG_STEP} is not the mean of its results: its header differs"
