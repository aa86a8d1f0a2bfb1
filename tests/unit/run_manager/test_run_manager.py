"""`run_manager/run_manager.py` and what it drives: real agents on the real machine, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coordinator.machine.stimuli import ClientsFellSilent
from coordinator_client.session import ClientProfile, CoordinatorFound, CoordinatorLost, CoordinatorSession, Joined
from data_providers.dummy import DummyDataProvider
from data_providers.protocol import CorruptData, DataProvider, DatasetSpec, SourceUnavailable, TokenBatch
from run_manager.agent import ClientEnd, EndReason
from run_manager.context import RunAccess, TentativeState
from run_manager.events import (
    Attested,
    BecameReady,
    DocumentArrived,
    Event,
    ReplicaDistrusted,
    ReplicaHeld,
    RoundFailed,
    RoundTrained,
    StepEntered,
)
from run_manager.exchange.star import StarExchange
from run_manager.replica.keeper import HeldReplica, ReplicaKeeper
from run_manager.replica.merger import Merger
from runtime.retry import RetryPolicy
from runtime.worker_thread import InlineWorker, Worker
from state.config.model import NgramConfig
from state.config.state_file import StateFile
from state.documents import CheckpointRef, Outcome, OutcomeEntry, RunDocument
from state.errors import CoordinatorUnreachable, Desync, Refused, TrainerFailed
from state.intervals import BatchId, DataIds
from state.merging import OuterStep
from state.phases import RunState
from state.refusals import Refusal
from state.replica import Replica, checkpoint_bytes, parse_checkpoint, replica_digest
from state.wire import Seed, Sha256, sha256_hex
from tests.support.fake_clients import ClientSpec, FakeClient, fake_client, key_of
from tests.support.fake_coordinator import FakeCoordinator
from tests.support.fake_documents import run_document
from tests.support.states import state_file
from tests.support.virtual_time import VirtualClock, run_virtually
from trainers.ngram.learner import NgramModel
from trainers.null import NullTrainer


@asynccontextmanager
async def serving(state: StateFile) -> AsyncIterator[tuple[FakeCoordinator, asyncio.TaskGroup]]:
    coordinator = FakeCoordinator(state)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(coordinator.serve())
        async with asyncio.timeout(5000):
            yield coordinator, group
        task.cancel()


async def play(state: StateFile, *specs: ClientSpec) -> tuple[FakeCoordinator, list[FakeClient], list[ClientEnd]]:
    """A whole run with one client per spec."""
    async with serving(state) as (coordinator, group):
        clients = [fake_client(coordinator, number, spec) for number, spec in enumerate(specs, start=1)]
        tasks = [group.create_task(client.agent.run()) for client in clients]
        ends = [await task for task in tasks]
    return coordinator, clients, ends


def test_run_three_clients_hold_equal_replicas_at_every_step() -> None:
    numpy = ClientSpec(trainer="numpy")
    coordinator, clients, ends = run_virtually(play(state_file(config__total_steps=4), numpy, numpy, numpy))
    held = [{event.step: event.replica_digest for event in client.of(ReplicaHeld)} for client in clients]
    assert held[0] == held[1] == held[2]
    assert sorted(held[0]) == [0, 1, 2, 3, 4]
    assert {end.reason for end in ends} == {EndReason.FINISHED}
    assert {end.step for end in ends} == {4}
    checkpoint = coordinator.document.checkpoint
    assert checkpoint is not None
    assert checkpoint.replica_digest == ends[0].replica_digest == held[0][4]
    assert replica_digest(parse_checkpoint(coordinator.blobs[checkpoint.blob_sha256])) == held[0][4]
    assert len(coordinator.outcomes) == 4
    assert len(set(held[0].values())) == 5


def test_run_a_fast_rounds_requests_are_few() -> None:
    """Round trips are what a round costs, so a change that adds one must be meant."""
    coordinator, _, _ = run_virtually(play(state_file(config__total_steps=6), *[ClientSpec()] * 3))
    counts = {name: sum(asked == name for _, asked in coordinator.requests) for _, name in coordinator.requests}
    rounds = 6 * 3
    assert counts["commit_result"] == counts["put_blob"] - 2 == rounds
    assert counts["outcome"] == counts["work"] == rounds
    assert counts["roster"] <= 3 * 2
    assert counts["get_blob"] <= 2 * rounds + 3
    assert counts["attest"] <= rounds
    assert counts["results"] <= 3 * rounds


class _Provider(DummyDataProvider):
    """Made-up data, of which some indices are corrupt."""

    def __init__(self, bad: frozenset[int] = frozenset(), fingerprint: str | None = None) -> None:
        super().__init__(DatasetSpec(2, 16))
        self.bad = bad
        self.other_fingerprint = fingerprint
        self.closed = 0

    @property
    def fingerprint(self) -> str:
        return self.other_fingerprint or super().fingerprint

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        if any(index in data_ids for index in self.bad):
            raise CorruptData(f"a checksum differs in {data_ids}")
        return await super().get_samples(data_ids)

    async def aclose(self) -> None:
        self.closed += 1
        await super().aclose()


def with_provider(provider: DataProvider, **fields: Any) -> ClientSpec:
    async def open_provider(request: RunAccess) -> DataProvider:
        assert request.ticket().startswith("ticket ")
        return provider

    return ClientSpec(open_provider=open_provider, **fields)


def test_run_batch_that_fails_everywhere_is_reported_narrowly_and_quarantined() -> None:
    specs = [with_provider(_Provider(frozenset({17}))) for _ in range(3)]
    coordinator, clients, ends = run_virtually(play(state_file(config__total_steps=6), *specs))
    assert {failure.report.batch_id for failure in coordinator.failures} == {BatchId(17, 17)}
    assert {failure.report.kind for failure in coordinator.failures} == {"corrupt"}
    assert [item.batch_id for item in coordinator.run.quarantined] == [BatchId(17, 17)]
    failed = [event for client in clients for event in client.of(RoundFailed)]
    assert failed
    assert all("checksum" in event.message for event in failed)
    assert len({end.replica_digest for end in ends}) == 1


def test_run_trainer_that_fails_is_reported_and_the_round_goes_on() -> None:
    class Failing(NullTrainer):
        async def train(self, *args: Any) -> Any:
            raise TrainerFailed("no memory")

    def open_failing(state: StateFile, worker: Worker) -> NullTrainer:
        return Failing(NgramModel(NgramConfig()))

    async def main() -> None:
        async with serving(state_file(config__total_steps=2)) as (coordinator, group):
            clients = [fake_client(coordinator, 1, ClientSpec(open_trainer=open_failing)), fake_client(coordinator, 2)]
            tasks = [group.create_task(client.agent.run()) for client in clients]
            await coordinator.wait_for(lambda: len(coordinator.failures) > 0 and len(coordinator.outcomes) > 0)
            assert coordinator.failures[0].report.kind == "trainer"
            assert coordinator.failures[0].report.batch_id is None
            assert [entry.client_id for entry in coordinator.outcomes[0].entries] == [key_of(2).client_id]
            for task in tasks:
                task.cancel()

    run_virtually(main())


@pytest.mark.parametrize("kind", ["blobs-full", "body-timeout"])
def test_run_result_that_is_not_taken_is_reported_and_the_round_goes_on(kind: str) -> None:
    async def main() -> None:
        async with serving(state_file(config__total_steps=2, config__init_min_clients=3)) as (coordinator, group):

            def no_result_taken(name: str, leg: str) -> None:
                if name == "put_blob" and coordinator.run.round is not None:
                    raise Refused(Refusal.of(kind), "there is no room")

            specs = [ClientSpec(), ClientSpec(), ClientSpec(faults=no_result_taken)]
            clients = [fake_client(coordinator, number, spec) for number, spec in enumerate(specs, start=1)]
            tasks = [group.create_task(client.agent.run()) for client in clients]
            await coordinator.wait_for(lambda: coordinator.run.round is not None)
            begun_s = asyncio.get_running_loop().time()
            await coordinator.wait_for(lambda: bool(coordinator.outcomes))
            assert asyncio.get_running_loop().time() < begun_s + 1, "the round waited for what cannot come"
            failed = coordinator.failures[0]
            assert (failed.client_id, failed.report.kind, failed.report.batch_id) == (
                key_of(3).client_id,
                "unavailable",
                None,
            )
            assert failed.report.message == f"the result was not taken: {kind}: there is no room"
            included = {entry.client_id for entry in coordinator.outcomes[0].entries}
            assert included == {key_of(1).client_id, key_of(2).client_id}
            assert coordinator.run.suspects == (), "nobody's data are to blame"
            for task in tasks:
                task.cancel()

    run_virtually(main())


class _Varying(NullTrainer):
    """Comes to another result each time, as arithmetic in another order does."""

    async def train(self, *args: Any) -> Any:
        trained = await super().train(*args)
        return replace(trained, difference={name: values + 0.5 for name, values in trained.difference.items()})


def test_run_client_killed_before_its_upload_and_back_with_another_result_reports_that_it_failed() -> None:
    """The commitment binds it to bytes that nobody has; the round must not wait for them."""

    async def main() -> None:
        async with serving(state_file(config__total_steps=2, config__init_min_clients=2)) as (coordinator, group):
            killed = asyncio.Event()

            def dies_at_the_upload(name: str, leg: str) -> None:
                if killed.is_set() or (name == "put_blob" and coordinator.run.round is not None):
                    killed.set()
                    raise CoordinatorUnreachable("this process is gone")

            tasks = [group.create_task(fake_client(coordinator, 1).agent.run())]
            dying = group.create_task(fake_client(coordinator, 2, ClientSpec(faults=dies_at_the_upload)).agent.run())
            await killed.wait()
            dying.cancel()
            begun_s = asyncio.get_running_loop().time()
            again = fake_client(
                coordinator, 2, ClientSpec(open_trainer=lambda state, worker: _Varying(NgramModel(NgramConfig())))
            )
            tasks.append(group.create_task(again.agent.run()))
            await coordinator.wait_for(lambda: bool(coordinator.outcomes))
            assert asyncio.get_running_loop().time() < begun_s + 5, "the round waited for what cannot come"
            assert [(failed.client_id, failed.report.kind) for failed in coordinator.failures] == [
                (key_of(2).client_id, "unavailable")
            ]
            assert "already-committed" in coordinator.failures[0].report.message
            assert [entry.client_id for entry in coordinator.outcomes[0].entries] == [key_of(1).client_id]
            for task in tasks:
                await task

    run_virtually(main())


def test_run_dataset_with_another_fingerprint_ends_the_client_with_both_named() -> None:
    async def main() -> None:
        async with serving(state_file(config__init_min_clients=2)) as (coordinator, group):
            provider = _Provider(fingerprint="ff" * 32)
            odd = fake_client(coordinator, 3, with_provider(provider))
            clients = [fake_client(coordinator, number) for number in (1, 2)]
            tasks = [group.create_task(client.agent.run()) for client in clients]
            await coordinator.wait_for(lambda: coordinator.document.run_state is RunState.ROUND_TRAIN)
            with pytest.raises(Refused) as caught:
                await odd.agent.run()
            assert caught.value.kind == "fingerprint-differs"
            assert "ff" * 32 in caught.value.message
            assert str(coordinator.document.data_fingerprint) in caught.value.message
            assert key_of(3).client_id not in coordinator.run.members
            assert provider.closed == 1
            for task in tasks:
                await task

    run_virtually(main())


def test_init_run_data_source_that_comes_later_is_waited_for() -> None:
    opened: list[float] = []

    async def open_provider(request: RunAccess) -> DataProvider:
        opened.append(asyncio.get_running_loop().time())
        if len(opened) < 4:
            raise SourceUnavailable("the data server is not up")
        return _Provider()

    _, clients, ends = run_virtually(play(state_file(), ClientSpec(), ClientSpec(open_provider=open_provider)))
    assert len(opened) == 4
    assert ends[0].replica_digest == ends[1].replica_digest
    assert clients[1].of(BecameReady)


def test_init_run_data_that_cannot_be_opened_ends_the_client() -> None:
    async def open_provider(request: RunAccess) -> DataProvider:
        raise CorruptData("there are no token files")

    async def main() -> None:
        async with serving(state_file(config__init_min_clients=1)) as (coordinator, _):
            with pytest.raises(CorruptData):
                await fake_client(coordinator, 1, ClientSpec(open_provider=open_provider)).agent.run()
            assert not coordinator.run.members

    run_virtually(main())


def test_run_newcomer_mid_epoch_rebuilds_from_checkpoint_and_outcomes() -> None:
    async def main() -> None:
        async with serving(state_file(config__total_steps=40)) as (coordinator, group):
            clients = [fake_client(coordinator, number, ClientSpec(trainer="numpy")) for number in (1, 2)]
            tasks = [group.create_task(client.agent.run()) for client in clients]
            await coordinator.wait_for(lambda: coordinator.document.step == 8)
            late = fake_client(coordinator, 3, ClientSpec(trainer="numpy"))
            tasks.append(group.create_task(late.agent.run()))
            ends = [await task for task in tasks]
        assert len({end.replica_digest for end in ends}) == 1
        assert late.of(ReplicaHeld)[0].origin == "checkpoint"
        first = late.of(BecameReady)[0].step
        assert first >= 7
        assert late.of(RoundTrained)[0].step in (first + 1, first + 2, first + 3)
        mine = {event.step: event.replica_digest for event in late.of(ReplicaHeld)}
        theirs = {event.step: event.replica_digest for event in clients[0].of(ReplicaHeld)}
        assert mine == theirs

    run_virtually(main())


def test_run_all_clients_gone_mid_epoch_newcomers_continue_to_the_same_model() -> None:
    """The digest equals that of a run without the interruption, because the same clients do the same work."""

    async def interrupted(at_step: int | None) -> dict[int, Sha256]:
        state = state_file(config__total_steps=6, config__init_min_clients=1, merge__inner_state="reset")
        async with serving(state) as (coordinator, group):
            client = fake_client(coordinator, 1, ClientSpec(trainer="numpy"))
            task = group.create_task(client.agent.run())
            if at_step is not None:
                await coordinator.wait_for(lambda: coordinator.document.step == at_step)
                task.cancel()
                await asyncio.sleep(300)
                assert not coordinator.run.members
                client = fake_client(coordinator, 1, ClientSpec(trainer="numpy"))
                task = group.create_task(client.agent.run())
            await task
        return {event.step: event.replica_digest for event in client.of(ReplicaHeld)}

    whole = run_virtually(interrupted(None))
    rest = run_virtually(interrupted(4))
    assert rest[0] == whole[0]
    assert rest[6] == whole[6]


def test_run_coordinator_away_for_minutes_is_met_again_by_all_clients() -> None:
    async def main() -> None:
        async with serving(state_file(config__total_steps=12)) as (coordinator, group):
            clients = [fake_client(coordinator, number) for number in (1, 2, 3)]
            tasks = [group.create_task(client.agent.run()) for client in clients]
            await coordinator.wait_for(lambda: coordinator.document.step == 5)
            coordinator.away = True
            await asyncio.sleep(240)
            coordinator.away = False
            ends = [await task for task in tasks]
        assert len({end.replica_digest for end in ends}) == 1
        for client in clients:
            assert len(client.of(CoordinatorLost)) == len(client.of(CoordinatorFound)) == 1

    run_virtually(main())


def test_run_coordinator_away_beyond_the_bound_ends_the_client() -> None:
    async def main() -> None:
        async with serving(state_file()) as (coordinator, _):
            client = fake_client(coordinator, 1, ClientSpec(reconnect_bound_s=60))
            coordinator.away = True
            with pytest.raises(CoordinatorUnreachable):
                await client.agent.run()
            assert 60 <= asyncio.get_running_loop().time() < 70

    run_virtually(main())


def test_run_member_taken_for_silent_joins_again_and_is_ready_again() -> None:
    async def main() -> None:
        state = state_file(config__total_steps=30, config__client_timeout_s=20)
        async with serving(state) as (coordinator, group):
            clients = [fake_client(coordinator, number) for number in (1, 2)]
            tasks = [group.create_task(client.agent.run()) for client in clients]
            await coordinator.wait_for(lambda: coordinator.document.step == 3)
            coordinator.submit(ClientsFellSilent((key_of(2).client_id,)))
            ends = [await task for task in tasks]
        assert len(clients[1].of(Joined)) == 2
        assert clients[1].of(RoundTrained)[-1].step > 5
        assert ends[0].replica_digest == ends[1].replica_digest

    run_virtually(main())


def test_finish_and_withdraw_in_a_round_delivers_its_result_first() -> None:
    async def main() -> None:
        async with serving(state_file(config__total_steps=20)) as (coordinator, group):
            clients = [fake_client(coordinator, number) for number in (1, 2)]
            tasks = [group.create_task(client.agent.run()) for client in clients]
            await coordinator.wait_for(lambda: _step(clients[0]) == 4)
            clients[0].agent.finish_and_withdraw()
            end = await tasks[0]
            assert end.reason is EndReason.WITHDREW
            assert coordinator.run.step <= 5
            assert clients[0].of(RoundTrained)[-1].step == 4
            assert key_of(1).client_id in {entry.client_id for entry in coordinator.outcomes[3].entries}
            assert key_of(1).client_id not in coordinator.run.members
            assert (await tasks[1]).step == 20

    run_virtually(main())


def _step(client: FakeClient) -> int:
    return max((entered.document.step for entered in client.of(StepEntered)), default=0)


def test_finish_and_withdraw_between_rounds_leaves_at_once() -> None:
    async def main() -> None:
        async with serving(state_file(config__init_min_clients=2)) as (coordinator, group):
            client = fake_client(coordinator, 1)
            task = group.create_task(client.agent.run())
            await coordinator.wait_for(lambda: len(coordinator.run.members) == 1)
            await asyncio.sleep(1)
            before_s = asyncio.get_running_loop().time()
            client.agent.finish_and_withdraw()
            end = await task
            assert end == ClientEnd(EndReason.WITHDREW, None, None)
            assert asyncio.get_running_loop().time() - before_s < 0.1
            assert not coordinator.run.members

    run_virtually(main())


class _FaultyWorker(InlineWorker):
    """Merges wrongly: the first `fault_count` merged replicas are not what they should be."""

    def __init__(self, fault_count: int) -> None:
        self.fault_count = fault_count

    async def run(self, call: Callable[[], Any]) -> Any:
        result = call()
        if isinstance(result, Replica) and self.fault_count:
            self.fault_count -= 1
            wrong = {name: values + np.float32(1e-3) for name, values in result.momentum.items()}
            return Replica(result.step, result.parameters, wrong)
        return result


def with_faulty_merges(fault_count: int) -> ClientSpec:
    def new_worker(name: str) -> Worker:
        return _FaultyWorker(fault_count) if name == "epochal-merge" else InlineWorker()

    return ClientSpec(trainer="numpy", new_worker=new_worker)


def test_run_replica_that_differs_is_rebuilt_and_equal_again() -> None:
    async def main() -> None:
        async with serving(state_file(config__total_steps=10)) as (coordinator, group):
            specs = [with_faulty_merges(1), *[ClientSpec(trainer="numpy")] * 3]
            clients = [fake_client(coordinator, number, spec) for number, spec in enumerate(specs)]
            tasks = [group.create_task(client.agent.run()) for client in clients]
            ends = [await task for task in tasks]
        assert len({end.replica_digest for end in ends}) == 1
        assert [event.step for event in clients[0].of(ReplicaDistrusted)] == [1]
        assert clients[0].of(RoundTrained)[-1].step > 3
        assert not clients[1].of(ReplicaDistrusted)

    run_virtually(main())


def test_run_restored_under_another_lineage_is_rebuilt() -> None:
    """The run goes back to an older truth; the clients follow it because its lineage says so."""

    async def main() -> None:
        async with serving(state_file(config__total_steps=20)) as (coordinator, group):
            clients = [fake_client(coordinator, number, ClientSpec(trainer="numpy")) for number in (1, 2)]
            tasks = [group.create_task(client.agent.run()) for client in clients]
            await coordinator.wait_for(lambda: coordinator.document.step == 3)
            backup, applied = coordinator.run, list(coordinator.applied)
            await coordinator.wait_for(lambda: coordinator.document.step == 9)
            coordinator.applied = applied
            coordinator.publish(replace(backup, lineage="cd" * 8))
            ends = [await task for task in tasks]
        assert len({end.replica_digest for end in ends}) == 1
        assert [event.reason for event in clients[0].of(ReplicaDistrusted)] == ["the run was restored"]

    run_virtually(main())


def test_attestation_counts_every_known_result() -> None:
    _, clients, _ = run_virtually(play(state_file(config__total_steps=3), *[ClientSpec()] * 3))
    attested = [event for client in clients for event in client.of(Attested)]
    assert attested
    assert {(event.received_count, event.known_count) for event in attested} == {(3, 3)}


class _CountingTrainer(NullTrainer):
    def __init__(self) -> None:
        super().__init__(NgramModel(NgramConfig()))
        self.fate: list[str] = []

    def commit_inner_state(self) -> None:
        self.fate.append("commit")

    def roll_back_inner_state(self) -> None:
        self.fate.append("roll back")


def _outcome(*results: str) -> Outcome:
    entries = tuple(OutcomeEntry(key_of(1).client_id, (BatchId(0, 0),), Sha256(result * 64)) for result in results)
    digest = Sha256("00" * 32)
    return Outcome("run", 1, 0, Seed("11" * 32), digest, digest, digest, entries)


def test_tentative_state_is_kept_only_with_an_outcome_that_contains_the_result() -> None:
    trainer = _CountingTrainer()
    tentative = TentativeState(trainer)
    tentative.published(Sha256("a" * 64))
    tentative.settle(_outcome("b", "a"))
    tentative.settle(_outcome("a"))
    tentative.published(Sha256("c" * 64))
    tentative.settle(_outcome("b"))
    tentative.settle(_outcome("c"))
    assert trainer.fate == ["commit", "roll back", "roll back", "roll back"]


def test_run_replica_that_differs_however_often_it_is_rebuilt_ends_the_client() -> None:
    """A client whose arithmetic differs must not stay: it would rebuild for ever."""

    async def main() -> None:
        async with serving(state_file(config__total_steps=30)) as (coordinator, group):
            clients = [fake_client(coordinator, number, ClientSpec(trainer="numpy")) for number in (1, 2, 3)]
            tasks = [group.create_task(client.agent.run()) for client in clients]
            with pytest.raises(Desync) as caught:
                await fake_client(coordinator, 4, with_faulty_merges(10_000)).agent.run()
            assert "still differs" in caught.value.message
            assert key_of(4).client_id not in coordinator.run.members
            ends = [await task for task in tasks]
        assert len({end.replica_digest for end in ends}) == 1

    run_virtually(main())


def test_warmup_member_that_had_to_join_again_reports_ready_again() -> None:
    async def open_late(request: RunAccess) -> DataProvider:
        await asyncio.sleep(15)
        return _Provider()

    async def main() -> None:
        async with serving(state_file(config__total_steps=1)) as (coordinator, group):
            clients = [fake_client(coordinator, 1, ClientSpec(open_provider=open_late)), fake_client(coordinator, 2)]
            tasks = [group.create_task(client.agent.run()) for client in clients]
            await coordinator.wait_for(lambda: len(coordinator.run.ready_members()) == 1)
            await asyncio.sleep(1)
            assert coordinator.run.phase is RunState.WARMUP
            coordinator.submit(ClientsFellSilent((key_of(2).client_id,)))
            await coordinator.wait_for(lambda: coordinator.document.run_state is RunState.ROUND_TRAIN)
            assert coordinator.document.reason == "all 2 members are ready"
            assert coordinator.document.round is not None
            assert coordinator.document.round.roster_count == 2
            for task in tasks:
                await task

    run_virtually(main())


def _epochs_of_30_s(**fields: Any) -> StateFile:
    """A round takes about a second, because data do."""
    times = {"config__warmup_time": 3, "config__max_round_train_time": 5, "config__epoch_time": 30}
    return state_file(**times, **fields)


async def _open_slow(request: RunAccess) -> DataProvider:
    class Slow(_Provider):
        async def get_samples(self, data_ids: DataIds) -> TokenBatch:
            await asyncio.sleep(1)
            return await super().get_samples(data_ids)

    return Slow()


def _epoch_starts(client: FakeClient) -> list[RunDocument]:
    documents = [event.document for event in client.of(DocumentArrived)]
    return [d for d in documents if d.run_state is RunState.ROUND_TRAIN and d.round and d.round.height == 0]


def test_run_every_epoch_begins_as_soon_as_all_are_ready_again() -> None:
    spec = ClientSpec(open_provider=_open_slow)
    _, clients, _ = run_virtually(play(_epochs_of_30_s(config__total_steps=70), spec, spec))
    starts = _epoch_starts(clients[0])
    assert len(starts) >= 3
    assert {document.reason for document in starts} == {"all 2 members are ready"}


def test_run_client_that_slept_through_a_warmup_is_taken_back_into_the_roster() -> None:
    async def main() -> None:
        state = _epochs_of_30_s(config__total_steps=55, config__client_timeout_s=600)
        async with serving(state) as (coordinator, group):

            def asleep_once(name: str, leg: str) -> None:
                rounds = (RunState.ROUND_TRAIN, RunState.ROUND_WITNESS)
                if leg == "answer" and 20 < coordinator.run.step < 40 and coordinator.run.phase not in rounds:
                    raise CoordinatorUnreachable("asleep")

            specs = [
                ClientSpec(open_provider=_open_slow),
                ClientSpec(open_provider=_open_slow, faults=asleep_once),
            ]
            clients = [fake_client(coordinator, number, spec) for number, spec in enumerate(specs)]
            tasks = [group.create_task(client.agent.run()) for client in clients]
            ends = [await task for task in tasks]
        assert ends[0].replica_digest == ends[1].replica_digest
        assert len(clients[1].of(Joined)) == 1
        (late,) = [document for document in _epoch_starts(clients[0]) if "1 of 2 members" in document.reason]
        trained = {event.step for event in clients[1].of(RoundTrained)}
        assert late.step not in trained
        assert trained & set(range(late.step, late.step + 15))

    run_virtually(main())


def test_witness_that_cannot_fetch_a_result_attests_what_it_holds() -> None:
    async def main() -> None:
        async with serving(state_file(config__total_steps=6)) as (coordinator, group):
            cut_off = [False]

            def no_blobs(name: str, leg: str) -> None:
                if name == "get_blob" and cut_off[0]:
                    raise CoordinatorUnreachable("the way to the blobs is cut")

            specs = [ClientSpec(faults=no_blobs), ClientSpec(), ClientSpec()]
            clients = [fake_client(coordinator, number, spec) for number, spec in enumerate(specs)]
            tasks = [group.create_task(client.agent.run()) for client in clients]
            await coordinator.wait_for(lambda: coordinator.document.step == 3)
            cut_off[0] = True
            await coordinator.wait_for(lambda: coordinator.document.step == 5)
            cut_off[0] = False
            ends = [await task for task in tasks]
        assert len({end.replica_digest for end in ends}) == 1
        partial = [event for event in clients[0].of(Attested) if event.received_count < event.known_count]
        assert partial
        assert partial[0].received_count >= 1

    run_virtually(main())


def test_keeper_replica_other_than_the_verified_checkpoint_is_exchanged_for_it() -> None:
    """Two checkpointers in a row may have made different initial parameters; the verified ones are the run's."""

    async def main() -> None:
        coordinator = FakeCoordinator(state_file())
        right = Replica(0, {"w": np.ones(3, np.float32)}, {"w": np.zeros(3, np.float32)})
        wrong = Replica(0, {"w": np.zeros(3, np.float32)}, {"w": np.zeros(3, np.float32)})
        data = checkpoint_bytes(right)
        blob, digest = sha256_hex(data), Sha256(replica_digest(right))
        coordinator.blobs[blob] = data
        events: list[Event] = []
        retry_policy = RetryPolicy(VirtualClock(), lambda: 0.5)
        member = CoordinatorSession(coordinator.api(), ClientProfile(key_of(1)), retry_policy, events.append)
        await member.join()
        worker = InlineWorker()
        merger, exchange = Merger(OuterStep(0.7, 0.9), worker), StarExchange(member, worker)
        keeper = ReplicaKeeper(member, exchange, merger, worker, lambda outcome: None, events.append)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(keeper.run())
            keeper.aim(run_document(RunState.WARMUP))
            keeper.adopt(HeldReplica(wrong, Sha256(replica_digest(wrong))))
            assert (await keeper.at(0)).replica is wrong
            checkpoint = CheckpointRef(0, blob, len(data), digest)
            keeper.aim(run_document(RunState.WARMUP, version=2, checkpoint=checkpoint))
            assert (await keeper.at(0)).digest == digest
            running.cancel()

    run_virtually(main())
