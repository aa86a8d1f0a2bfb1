"""`run_manager/steps/training.py`: clients that cannot train, or whose result is refused."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from epochal.coordinator.run.liveness import KEY_FREE_AFTER_S
from epochal.run_manager import exchange
from epochal.run_manager.events import RoundFailed
from epochal.runtime.worker_thread import Worker
from epochal.state.config.model_table import NgramConfig
from epochal.state.config.state_file import StateFile
from epochal.state.errors import CoordinatorUnreachable, Refused, TrainerFailed
from epochal.state.intervals import BatchId
from epochal.state.refusals import Refusal
from epochal.trainers.ngram.learner import NgramModel
from epochal.trainers.null import NullTrainer
from tests.support.data.states import state_file
from tests.support.simulate.simulated_client import ClientSpec, FaultyData, key_of, with_data
from tests.support.simulate.simulated_run import SimulatedRun, simulated_run
from tests.support.simulate.virtual_time import in_virtual_time


def failures(run: SimulatedRun) -> list[tuple[int, RoundFailed]]:
    """Return the failures that clients reported, with the clients' numbers."""
    return [(client.number, event) for client in run.clients for event in client.of(RoundFailed)]


async def first_outcome(run: SimulatedRun) -> set[int]:
    """Return the numbers of the clients in the first outcome, once it is decided."""
    await run.coordinator.wait_for(lambda: bool(run.coordinator.outcomes))
    included = {entry.client_id for entry in run.coordinator.outcomes[0].entries}
    return {client.number for client in run.clients if client.client_id in included}


@in_virtual_time
async def test_batch_that_fails_everywhere_is_reported_narrowly() -> None:
    async with simulated_run(state_file(config__total_steps=6), seed=0) as run:
        ends = await run.play(*(with_data(FaultyData(frozenset({17}))) for _ in range(3)))
        assert {(event.kind, event.batch_id) for _, event in failures(run)} == {("corrupt", BatchId(17, 17))}
        assert all("checksum" in event.message for _, event in failures(run))
        assert [item.batch_id for item in run.coordinator.run.work.quarantined] == [BatchId(17, 17)]
        assert len({end.replica_digest for end in ends}) == 1


@in_virtual_time
async def test_trainer_that_fails_is_reported_and_the_round_goes_on() -> None:
    class Failing(NullTrainer):
        async def train(self, *args: Any) -> Any:
            raise TrainerFailed("no memory")

    def open_failing(state: StateFile, worker: Worker) -> NullTrainer:
        return Failing(NgramModel(NgramConfig()))

    async with simulated_run(state_file(config__total_steps=2), seed=0) as run:
        run.start(run.client(1, ClientSpec(open_trainer=open_failing)))
        run.start(run.client(2))
        assert await first_outcome(run) == {2}
        number, failed = failures(run)[0]
        assert (number, failed.kind, failed.batch_id) == (1, "trainer", None)


async def _with_a_result_refused(run: SimulatedRun, kind: str) -> None:
    """Start three clients, of which the third one's results are refused."""

    def no_result_taken(name: str, leg: str) -> None:
        if name == "send_result":
            raise Refused(Refusal.of(kind), "there is no room")

    for client in (run.client(1), run.client(2), run.client(3, faults=no_result_taken)):
        run.start(client)
    await run.coordinator.wait_for(lambda: run.coordinator.run.round is not None)


@pytest.mark.parametrize("kind", ["blobs-full", "body-timeout"])
@in_virtual_time
async def test_result_that_is_refused_is_reported_and_blames_no_data(kind: str) -> None:
    async with simulated_run(state_file(config__total_steps=2, config__init_min_clients=3), seed=0) as run:
        await _with_a_result_refused(run, kind)
        assert await first_outcome(run) == {1, 2}
        number, failed = failures(run)[0]
        assert (number, failed.kind, failed.batch_id) == (3, "unavailable", None)
        assert failed.message == f"the result was not taken: {kind}: there is no room"
        assert run.coordinator.run.work.suspects == (), "no data are to blame"


@in_virtual_time
async def test_result_that_is_refused_is_not_waited_for() -> None:
    async with simulated_run(state_file(config__total_steps=2, config__init_min_clients=3), seed=0) as run:
        await _with_a_result_refused(run, "blobs-full")
        begun_s = asyncio.get_running_loop().time()
        await first_outcome(run)
        assert asyncio.get_running_loop().time() < begun_s + 1


class _Varying(NullTrainer):
    """Computes another result than `NullTrainer`, as a sum in another order would."""

    async def train(self, *args: Any) -> Any:
        trained = await super().train(*args)
        return replace(trained, difference={name: values + 0.5 for name, values in trained.difference.items()})


@in_virtual_time
async def test_client_back_with_another_result_reports_that_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed before its upload, so the bytes that it committed to are lost."""
    monkeypatch.setattr(exchange, "MAX_DELIVERED_BYTES", 0)
    async with simulated_run(state_file(config__total_steps=2, config__init_min_clients=2), seed=0) as run:
        killed = asyncio.Event()

        def dies_at_the_upload(name: str, leg: str) -> None:
            if name == "put_blob" and run.coordinator.run.round is not None:
                killed.set()
                raise CoordinatorUnreachable("this process is gone")

        run.start(run.client(1))
        dying = run.start(run.client(2, faults=dies_at_the_upload))
        await killed.wait()
        dying.vanish()
        begun_s = asyncio.get_running_loop().time()
        run.start(run.client(2, ClientSpec(open_trainer=lambda *_: _Varying(NgramModel(NgramConfig())))))
        await run.coordinator.wait_for(lambda: bool(run.coordinator.outcomes))
        bound_s = 2 * KEY_FREE_AFTER_S + 5  # the first attempt may come before the key is free
        assert asyncio.get_running_loop().time() < begun_s + bound_s, "the round waited for a result that is lost"
        ((number, failed),) = failures(run)
        assert (number, failed.kind) == (2, "unavailable")
        assert "already-committed" in failed.message
        included = [entry.client_id for entry in run.coordinator.outcomes[0].entries]
        assert included == [key_of(1).client_id]
