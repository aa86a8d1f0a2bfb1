"""`run_manager/step_table.py` cell by cell, and how `step_state_machine.py` carries it out in virtual time."""

import asyncio
from dataclasses import replace

import pytest

from data_providers.dummy import DummyDataProvider
from data_providers.protocol import DataProvider, DatasetSpec, TokenBatch
from run_manager.context import RunAccess
from run_manager.events import RoundTrained, StepEntered
from run_manager.step_table import News, StepName, destination, news_of, next_step
from state.errors import Desync
from state.intervals import DataIds
from state.phases import RunState
from state.wire import Seed
from tests.support.fake_clients import ClientSpec, fake_client
from tests.support.fake_coordinator import FakeCoordinator
from tests.support.fake_documents import round_head, run_document
from tests.support.states import state_file
from tests.support.virtual_time import run_virtually

N, U, T, W, C, F = (StepName(name) for name in ("Observing", "Warmup", "Training", "Witness", "Cooldown", "Finished"))

CELLS: dict[StepName, tuple[StepName | None, ...]] = {
    # waiting, warmup, train_next, train_same, witness_next, witness_same, cooldown, finished, unstarted, past
    N: (N, U, T, None, W, None, C, F, N, None),
    U: (N, U, T, None, W, None, C, F, None, None),
    T: (N, U, T, T, W, W, C, F, None, None),
    W: (N, U, T, None, W, W, C, F, None, None),
    C: (N, U, T, None, W, None, C, F, None, None),
    F: (N, U, T, None, W, None, C, F, None, None),
}


@pytest.mark.parametrize(
    ("step", "news", "goal"),
    [(step, news, goal) for step, goals in CELLS.items() for news, goal in zip(News, goals, strict=True)],
)
def test_table_every_cell_leads_where_the_docstring_says(step: StepName, news: News, goal: StepName | None) -> None:
    assert destination(step, news) is goal


def test_table_has_no_step_or_news_beyond_the_cells() -> None:
    assert set(CELLS) == set(StepName)


@pytest.mark.parametrize(
    ("run_state", "step", "attempt", "news"),
    [
        (RunState.ROUND_TRAIN, 5, 1, News.TRAIN_SAME),
        (RunState.ROUND_TRAIN, 5, 2, News.TRAIN_NEXT),
        (RunState.ROUND_TRAIN, 6, 0, News.TRAIN_NEXT),
        (RunState.ROUND_TRAIN, 5, 0, News.PAST),
        (RunState.ROUND_TRAIN, 4, 7, News.PAST),
        (RunState.ROUND_WITNESS, 5, 1, News.WITNESS_SAME),
        (RunState.ROUND_WITNESS, 9, 0, News.WITNESS_NEXT),
        (RunState.ROUND_WITNESS, 5, 0, News.PAST),
        (RunState.COOLDOWN, 5, 0, News.COOLDOWN),
        (RunState.COOLDOWN, 4, 0, News.PAST),
        (RunState.WARMUP, 6, 0, News.WARMUP),
        (RunState.WAITING_FOR_MEMBERS, 6, 0, News.WAITING),
        (RunState.PAUSED, 6, 0, News.WAITING),
        (RunState.FINISHED, 6, 0, News.FINISHED),
        (RunState.UNINITIALIZED, 5, 0, News.UNSTARTED),
    ],
)
def test_news_of_document_after_round_5_try_1(run_state: RunState, step: int, attempt: int, news: News) -> None:
    assert news_of(run_document(run_state, step, attempt), round_head(5, 1)) is news


def test_news_of_another_round_under_the_same_number_is_past() -> None:
    other = replace(round_head(5, 1), seed=Seed("99" * 32))
    assert news_of(run_document(RunState.ROUND_TRAIN, 5, 1, round=other), round_head(5, 1)) is News.PAST


def test_next_step_document_that_goes_back_is_a_desync_that_names_both() -> None:
    with pytest.raises(Desync) as caught:
        next_step(StepName.WITNESS, run_document(RunState.ROUND_TRAIN, 5, 1), round_head(5, 1))
    assert "Witness" in caught.value.message
    assert "RoundTrain" in caught.value.message
    assert "round 5 try 1" in caught.value.message


def test_next_step_round_phase_without_a_round_is_a_desync() -> None:
    with pytest.raises(Desync):
        next_step(StepName.OBSERVING, run_document(RunState.ROUND_TRAIN, 1, round=None), None)


class _HangingProvider(DummyDataProvider):
    """Hangs in its first request, and tells when that is cancelled."""

    def __init__(self) -> None:
        super().__init__(DatasetSpec(2, 16))
        self.asked = 0
        self.cancelled = 0

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        self.asked += 1
        if self.asked == 1:
            try:
                await asyncio.sleep(25)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return await super().get_samples(data_ids)


def test_apply_state_overtaken_training_is_cancelled_and_the_next_round_trains() -> None:
    """One client's data hang, so the round's time runs out under it."""

    async def main() -> None:
        coordinator = FakeCoordinator(
            state_file(config__total_steps=2, config__max_round_train_time=10, config__round_witness_time=4)
        )
        provider = _HangingProvider()

        async def open_provider(request: RunAccess) -> DataProvider:
            return provider

        slow = fake_client(coordinator, 1, ClientSpec(open_provider=open_provider))
        other = fake_client(coordinator, 2)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(coordinator.serve())
            ends = [group.create_task(client.agent.run()) for client in (slow, other)]
            async with asyncio.timeout(200):
                digests = {(await end).replica_digest for end in ends}
            serving.cancel()
        assert len(digests) == 1
        assert provider.cancelled == 1
        assert [trained.step for trained in slow.of(RoundTrained)][:1] != [1]
        assert {trained.step for trained in slow.of(RoundTrained)} >= {2}
        steps = [entered.step_name for entered in slow.of(StepEntered)]
        assert steps[steps.index("Training") :][:3] == ["Training", "Witness", "Training"]

    run_virtually(main())


def test_apply_state_document_that_changes_nothing_for_the_step_leaves_it_alone() -> None:
    async def main() -> None:
        coordinator = FakeCoordinator(state_file(config__total_steps=1))
        provider = _HangingProvider()

        async def open_provider(request: RunAccess) -> DataProvider:
            return provider

        client = fake_client(coordinator, 1, ClientSpec(open_provider=open_provider))
        other = fake_client(coordinator, 2)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(coordinator.serve())
            ends = [group.create_task(each.agent.run()) for each in (client, other)]
            await coordinator.wait_for(lambda: coordinator.document.run_state is RunState.ROUND_TRAIN)
            await asyncio.sleep(1)
            version = coordinator.document.version
            coordinator.document = run_document(
                RunState.ROUND_TRAIN,
                version=version + 1,
                **{
                    name: getattr(coordinator.document, name)
                    for name in ("round", "checkpoint", "config_sha256", "cursor", "total_steps", "coordinator_key")
                },
                reason="another reason",
            )
            coordinator.publish(coordinator.run)
            for end in ends:
                await end
            serving.cancel()
        assert provider.cancelled == 0
        assert len([entered for entered in client.of(StepEntered) if entered.step_name == "Training"]) == 1
        assert [trained.step for trained in client.of(RoundTrained)] == [1]

    run_virtually(main())
