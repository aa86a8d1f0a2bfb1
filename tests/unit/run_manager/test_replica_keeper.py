"""`run_manager/replica/keeper.py`: replicas that are rebuilt, in whole runs and alone."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from epochal.run_manager.events import BecameReady, Event, ReplicaDistrusted, ReplicaHeld, RoundTrained
from epochal.run_manager.exchange import Exchange
from epochal.run_manager.replica.checkpoint_download import CheckpointDownload
from epochal.run_manager.replica.keeper import MISSING_RETRY_S, ReplicaKeeper
from epochal.runtime.files.spool import Spool
from epochal.runtime.merging.merger import HeldReplica, Merger
from epochal.runtime.worker_thread import InlineWorker, Worker
from epochal.state.config.state_file import MergeConfig
from epochal.state.documents import CheckpointRef, Outcome, OwnOutcome, UpdateRef
from epochal.state.errors import Desync, Refused
from epochal.state.model.replica import Replica, checkpoint_bytes, replica_digest
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal
from epochal.state.wire import Blake3, Sha256, sha256_hex
from tests.support.data.documents import run_document
from tests.support.data.held_blobs import HeldBlobs
from tests.support.data.spooled import SPOOL_PARENT, spooled
from tests.support.data.states import state_file
from tests.support.simulate.simulated_client import ClientSpec, SimulatedClient, key_of
from tests.support.simulate.simulated_run import BOUND_S, simulated_run
from tests.support.simulate.virtual_time import in_virtual_time, run_virtually

NUMPY = ClientSpec(trainer="numpy")


def digests_of(client: SimulatedClient) -> dict[int, Blake3]:
    return {event.step: event.replica_digest for event in client.of(ReplicaHeld)}


@pytest.mark.nightly
@in_virtual_time
async def test_newcomer_mid_epoch_rebuilds_from_checkpoint_and_outcomes() -> None:
    async with simulated_run(state_file(config__total_steps=40), seed=0) as run:
        early = [run.start(run.client(number, NUMPY)) for number in (1, 2)]
        await run.coordinator.wait_for(lambda: run.coordinator.document.step == 8)
        late = run.start(run.client(3, NUMPY))
        await run.ends([*early, late], BOUND_S)
        assert late.of(ReplicaHeld)[0].origin == "checkpoint"
        assert digests_of(late) == digests_of(early[0])
        first = late.of(BecameReady)[0].step
        assert first >= 7
        assert late.of(RoundTrained)[0].step in (first + 1, first + 2, first + 3)


def test_newcomers_after_all_were_gone_continue_to_the_same_model() -> None:
    """The digest equals that of a run without the interruption, because the same clients do the same work."""

    async def interrupted(at_step: int | None) -> dict[int, Blake3]:
        state = state_file(config__total_steps=6, config__init_min_clients=1, merge__inner_state="reset")
        async with simulated_run(state, seed=0) as run:
            client = run.start(run.client(1, NUMPY))
            if at_step is not None:
                await run.coordinator.wait_for(lambda: run.coordinator.document.step == at_step)
                client.kill()
                await run.coordinator.wait_for(lambda: not run.coordinator.run.members.by_id)
                client = run.start(run.client(1, NUMPY))
            await run.ends([client], BOUND_S)
            return digests_of(client)

    whole, rest = run_virtually(interrupted(None)), run_virtually(interrupted(4))
    assert (rest[0], rest[6]) == (whole[0], whole[6])


class _FaultyWorker(InlineWorker):
    """Merges wrongly: the first `fault_count` merged replicas differ from the right ones."""

    def __init__(self, fault_count: int) -> None:
        self.fault_count = fault_count

    async def run(self, call: Callable[[], Any]) -> Any:
        result = call()
        if isinstance(result, Replica) and self.fault_count:
            self.fault_count -= 1
            for values in result.momentum.values():
                values.flags.writeable = True
                values += np.float32(1e-3)
        return result


def with_faulty_merges(fault_count: int) -> ClientSpec:
    def new_worker(name: str) -> Worker:
        return _FaultyWorker(fault_count) if name == "epochal-merge" else InlineWorker()

    return ClientSpec(trainer="numpy", new_worker=new_worker, saw=lambda event: None)


@in_virtual_time
async def test_replica_that_differs_is_rebuilt_and_equal_again() -> None:
    async with simulated_run(state_file(config__total_steps=10), seed=0) as run:
        ends = await run.play(with_faulty_merges(1), *[NUMPY] * 3)
        assert len({end.replica_digest for end in ends}) == 1
        assert [event.step for event in run.clients[0].of(ReplicaDistrusted)] == [1]
        assert run.clients[0].of(RoundTrained)[-1].step > 3
        assert not run.clients[1].of(ReplicaDistrusted)


@pytest.mark.nightly
@in_virtual_time
async def test_replica_that_differs_after_every_rebuild_ends_the_client() -> None:
    """A client whose arithmetic differs must not stay: it would rebuild for ever."""
    async with simulated_run(state_file(config__total_steps=30), seed=0) as run:
        clients = [run.start(run.client(number, NUMPY)) for number in (1, 2, 3)]
        with pytest.raises(Desync, match="still differs"):
            await run.client(4, with_faulty_merges(10_000)).agent.run()
        assert key_of(4).client_id not in run.coordinator.run.members
        ends = await run.ends(clients, BOUND_S)
        assert len({end.replica_digest for end in ends}) == 1


@pytest.mark.nightly
@in_virtual_time
async def test_replica_of_a_run_restored_from_a_backup_is_rebuilt() -> None:
    """The run goes back to an older state; the clients follow it because its lineage has changed."""
    async with simulated_run(state_file(config__total_steps=20), seed=0) as run:
        clients = [run.start(run.client(number, NUMPY)) for number in (1, 2)]
        await run.coordinator.wait_for(lambda: run.coordinator.document.step == 3)
        backup = run.coordinator.backup()
        await run.coordinator.wait_for(lambda: run.coordinator.document.step == 9)
        run.coordinator.restore(backup)
        ends = await run.ends(clients, BOUND_S)
        assert len({end.replica_digest for end in ends}) == 1
        assert [event.reason for event in clients[0].of(ReplicaDistrusted)] == ["the run's history changed"]


class NoOutcomes:
    """The requests of a coordinator that keeps no outcomes."""

    async def outcome(self, step: int) -> Outcome:
        raise Refused(Refusal.NOT_FOUND, f"no outcome of step {step} is kept")

    async def own_outcome(self, step: int) -> OwnOutcome:
        raise Refused(Refusal.NOT_FOUND, f"no outcome of step {step} is kept")

    async def update(self, step: int) -> UpdateRef:
        raise Refused(Refusal.NOT_FOUND, f"no update of step {step} is kept")


def keeper_of(blobs: HeldBlobs, events: list[Event]) -> ReplicaKeeper:
    """Return a keeper whose coordinator has these blobs and no outcomes."""
    worker = InlineWorker()
    spool = Spool(SPOOL_PARENT)
    merger, exchange = Merger(MergeConfig(outer_lr=0.7, outer_momentum=0.9), spool, worker), Exchange(blobs, spool)
    download = CheckpointDownload(blobs, spool, worker)
    return ReplicaKeeper(
        NoOutcomes(), download, exchange, merger, spool, worker, lambda _: None, lambda _: None, events.append, 0.0
    )


@asynccontextmanager
async def at_work(keeper: ReplicaKeeper) -> AsyncIterator[None]:
    """Let a keeper run until the context is left."""
    async with asyncio.TaskGroup() as group:
        running = group.create_task(keeper.run())
        yield
        running.cancel()


FIRST = Replica(0, {"w": np.ones(3, np.float32)}, {"w": np.zeros(3, np.float32)})


def warnings(caplog: pytest.LogCaptureFixture, event: str) -> list[tuple[str, int]]:
    """Return what each warning of this event names."""
    return [
        (vars(record)["what"], vars(record)["step"])
        for record in caplog.records
        if record.levelname == "WARNING" and record.getMessage() == event
    ]


@in_virtual_time
async def test_keeper_warns_once_of_a_checkpoint_that_the_coordinator_lacks(caplog: pytest.LogCaptureFixture) -> None:
    data, blobs = checkpoint_bytes(FIRST), HeldBlobs()
    checkpoint = CheckpointRef(0, sha256_hex(data), len(data), replica_digest(FIRST))
    keeper = keeper_of(blobs, [])
    async with at_work(keeper):
        for version in range(1, 4):
            await keeper.apply_state(run_document(RunState.WARMUP, version=version, checkpoint=checkpoint))
            await asyncio.sleep(3 * MISSING_RETRY_S)
            assert warnings(caplog, "coordinator_lacks") == [("checkpoint", 0)]
        await blobs.put_blob(checkpoint.blob_sha256, spooled(data))
        assert (await keeper.at(0)).digest == checkpoint.replica_digest, "it is asked for again"


@in_virtual_time
async def test_keeper_says_nothing_of_a_checkpoint_that_a_newer_one_replaced(caplog: pytest.LogCaptureFixture) -> None:
    data = checkpoint_bytes(FIRST)
    newer = CheckpointRef(0, sha256_hex(data), len(data), replica_digest(FIRST))
    keeper = keeper_of(HeldBlobs(data), [])
    async with at_work(keeper):
        await keeper.apply_state(
            run_document(RunState.WARMUP, checkpoint=CheckpointRef(0, Sha256("ab" * 32), 9, Sha256("cd" * 32)))
        )
        await asyncio.sleep(MISSING_RETRY_S / 2)
        await keeper.apply_state(run_document(RunState.WARMUP, version=2, checkpoint=newer))
        await keeper.at(0)
        await asyncio.sleep(2 * MISSING_RETRY_S)
        assert warnings(caplog, "coordinator_lacks") == []


@in_virtual_time
async def test_keeper_warns_once_of_an_outcome_that_the_coordinator_lacks(caplog: pytest.LogCaptureFixture) -> None:
    data = checkpoint_bytes(FIRST)
    checkpoint = CheckpointRef(0, sha256_hex(data), len(data), replica_digest(FIRST))
    keeper = keeper_of(HeldBlobs(data), [])
    async with at_work(keeper):
        await keeper.apply_state(run_document(RunState.WARMUP, step=3, checkpoint=checkpoint))
        await asyncio.sleep(5 * MISSING_RETRY_S)
        assert warnings(caplog, "coordinator_lacks") == [("results or outcome", 1)]


@in_virtual_time
async def test_keeper_takes_the_verified_checkpoint_over_a_replica_of_its_own() -> None:
    """Two checkpointers in a row may have made different initial parameters; the verified ones are the run's."""
    right = Replica(0, {"w": np.ones(3, np.float32)}, {"w": np.zeros(3, np.float32)})
    wrong = Replica(0, {"w": np.zeros(3, np.float32)}, {"w": np.zeros(3, np.float32)})
    data, digest = checkpoint_bytes(right), replica_digest(right)
    events: list[Event] = []

    keeper = keeper_of(HeldBlobs(data), events)
    async with at_work(keeper):
        await keeper.apply_state(run_document(RunState.WARMUP))
        keeper.adopt(HeldReplica(wrong, replica_digest(wrong)))
        assert (await keeper.at(0)).replica is wrong
        checkpoint = CheckpointRef(0, sha256_hex(data), len(data), digest)
        await keeper.apply_state(run_document(RunState.WARMUP, version=2, checkpoint=checkpoint))
        assert (await keeper.at(0)).digest == digest
