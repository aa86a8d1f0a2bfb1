"""Which step a document leads to, by `run_manager/step_table.py`, and how `step_state_machine.py` carries it out."""

import asyncio
from dataclasses import replace

import pytest

from data_providers.dummy import DummyDataProvider
from data_providers.protocol import DataProvider, DatasetSpec, TokenBatch
from run_manager.context import RunAccess
from run_manager.events import RoundTrained, StepEntered
from run_manager.step_table import News, StepName, due_step, news_of
from state.documents import RunDocument
from state.errors import Desync
from state.intervals import DataIds
from state.phases import RunState
from state.wire import ClientId, Seed
from tests.support.fake_clients import ClientSpec, fake_client
from tests.support.fake_coordinator import FakeCoordinator
from tests.support.fake_documents import round_head, run_document
from tests.support.states import state_file
from tests.support.virtual_time import run_virtually

ME = ClientId("01" * 16)


def step_after(step: StepName, document: RunDocument) -> StepName | None:
    """The step that a client in `step`, which saw round 5 attempt 1 last, takes for the document, or None."""
    try:
        return due_step(step, document, round_head(5, 1), ME).name
    except Desync:
        return None


@pytest.mark.parametrize("step", StepName)
@pytest.mark.parametrize(
    ("run_state", "goal"),
    [
        (RunState.WAITING_FOR_MEMBERS, StepName.OBSERVING),
        (RunState.PAUSED, StepName.OBSERVING),
        (RunState.WARMUP, StepName.WARMUP),
        (RunState.ROUND_TRAIN, StepName.TRAINING),
        (RunState.ROUND_WITNESS, StepName.WITNESS),
        (RunState.COOLDOWN, StepName.COOLDOWN),
        (RunState.FINISHED, StepName.FINISHED),
    ],
)
def test_document_ahead_leads_from_every_step_to_its_own(step: StepName, run_state: RunState, goal: StepName) -> None:
    assert step_after(step, run_document(run_state, 6, 0)) is goal


@pytest.mark.parametrize("step", StepName)
@pytest.mark.parametrize("run_state", [RunState.ROUND_TRAIN, RunState.ROUND_WITNESS, RunState.COOLDOWN])
def test_document_of_the_past_is_allowed_in_no_step(step: StepName, run_state: RunState) -> None:
    assert step_after(step, run_document(run_state, 4, 0)) is None


def test_round_that_was_seen_is_trained_only_while_training() -> None:
    document = run_document(RunState.ROUND_TRAIN, 5, 1)
    assert [step for step in StepName if step_after(step, document)] == [StepName.TRAINING]


def test_round_that_was_seen_is_witnessed_only_after_training_it() -> None:
    document = run_document(RunState.ROUND_WITNESS, 5, 1)
    assert [step for step in StepName if step_after(step, document)] == [StepName.TRAINING, StepName.WITNESS]


def test_run_that_was_never_started_is_allowed_only_at_first() -> None:
    document = run_document(RunState.UNINITIALIZED, 5, 1)
    assert [step for step in StepName if step_after(step, document)] == [StepName.OBSERVING]


def test_warmup_starts_again_when_this_client_becomes_the_checkpointer() -> None:
    before = run_document(RunState.WARMUP, 6)
    due = due_step(StepName.WARMUP, before, None, ME)
    assert due == due_step(StepName.WARMUP, replace(before, reason="another", version=before.version + 1), None, ME)
    assert due != due_step(StepName.WARMUP, replace(before, checkpointer=ME), None, ME)


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
def test_news_of_document_after_round_5_attempt_1(run_state: RunState, step: int, attempt: int, news: News) -> None:
    assert news_of(run_document(run_state, step, attempt), round_head(5, 1)) is news


def test_news_of_another_round_under_the_same_number_is_past() -> None:
    other = replace(round_head(5, 1), seed=Seed("99" * 32))
    assert news_of(run_document(RunState.ROUND_TRAIN, 5, 1, round=other), round_head(5, 1)) is News.PAST


def test_due_step_document_that_goes_back_is_a_desync_that_names_both() -> None:
    with pytest.raises(Desync) as caught:
        due_step(StepName.WITNESS, run_document(RunState.ROUND_TRAIN, 5, 1), round_head(5, 1), ME)
    assert "Witness" in caught.value.message
    assert "RoundTrain" in caught.value.message
    assert "round 5 attempt 1" in caught.value.message


def test_due_step_round_phase_without_a_round_is_a_desync() -> None:
    with pytest.raises(Desync):
        due_step(StepName.OBSERVING, run_document(RunState.ROUND_TRAIN, 1, round=None), None, ME)


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
