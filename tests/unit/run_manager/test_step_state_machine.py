"""`run_manager/step_state_machine.py`: the step for each document, and how steps start and end."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import ParamSpec, TypeVar

import pytest

from epochal.coordinator_client.api import DocumentMark
from epochal.data_providers.protocol import DatasetSpec, TokenBatch
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.run_manager.events import DocumentArrived, RoundTrained, StepEntered
from epochal.run_manager.step_state_machine import News, StepName, due_step, goes_on, news_of
from epochal.state.documents import RunDocument
from epochal.state.errors import Desync
from epochal.state.intervals import DataIds
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId, Seed
from tests.support.data.documents import round_head, run_document
from tests.support.data.states import state_file
from tests.support.simulate.simulated_client import ClientSpec, simulated_client, with_data
from tests.support.simulate.simulated_network import ForwardedApi, SimulatedApi
from tests.support.simulate.simulated_run import BOUND_S, simulated_run
from tests.support.simulate.virtual_time import in_virtual_time

P = ParamSpec("P")
T = TypeVar("T")
ME = ClientId("01" * 16)


def step_after(step: StepName, document: RunDocument) -> StepName | None:
    """Return the step for the document after `step` and round 5 attempt 1, or None if it is a desync."""
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


def test_upload_of_a_checkpoint_goes_on_after_its_turn() -> None:
    others_turn = run_document(RunState.COOLDOWN, 6)
    elected = due_step(StepName.TRAINING, replace(others_turn, checkpointer=ME), None, ME)
    waiting = due_step(StepName.TRAINING, others_turn, None, ME)
    assert goes_on(elected, waiting)
    assert not goes_on(waiting, elected)
    assert not goes_on(
        elected, due_step(StepName.TRAINING, replace(others_turn, epoch=others_turn.epoch + 1), None, ME)
    )


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
    """Hangs in its first request, and counts its cancellations."""

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


@in_virtual_time
async def test_apply_state_overtaken_training_is_cancelled() -> None:
    """One client's data hang until the round's time is over."""
    state = state_file(config__total_steps=2, config__max_round_train_time=10, config__round_witness_time=4)
    async with simulated_run(state, seed=0) as run:
        data = _HangingProvider()
        ends = await run.play(with_data(data), ClientSpec())
        slow = run.clients[0]
        assert data.cancelled == 1
        assert len({end.replica_digest for end in ends}) == 1
        steps = [entered.step_name for entered in slow.of(StepEntered)]
        assert steps[steps.index("Training") :][:3] == ["Training", "Witness", "Training"]
        trained = [event.step for event in slow.of(RoundTrained)]
        assert trained[0] != 1
        assert 2 in trained


class RepetitiveApi(ForwardedApi):
    """Repeats every document once, as a newer one that differs only in its reason."""

    def __init__(self, api: SimulatedApi) -> None:
        super().__init__(api)
        self._last: RunDocument | None = None

    async def _carry(self, request: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await request(*args, **kwargs)

    async def run_document(self, after: DocumentMark | None, wait_s: float) -> RunDocument | None:
        if self._last is not None and after is not None and after.version == 2 * self._last.version:
            return replace(self._last, version=after.version + 1, reason="another reason")
        known = None if after is None else DocumentMark(after.lineage, after.version // 2)
        found = await super().run_document(known, wait_s)
        self._last = found or self._last
        return None if found is None else replace(found, version=2 * found.version)


@in_virtual_time
async def test_apply_state_document_that_changes_nothing_is_ignored() -> None:
    async with simulated_run(state_file(config__total_steps=1), seed=0) as run:
        data = _HangingProvider()
        api, link = run.api()
        client = run.start(simulated_client(RepetitiveApi(api), 1, link, with_data(data)))
        other = run.start(run.client(2))
        await run.ends([client, other], BOUND_S)
        assert data.cancelled == 0
        shown = [event.document for event in client.of(DocumentArrived)]
        assert sum(document.reason == "another reason" for document in shown) >= 3
        assert [entered.step_name for entered in client.of(StepEntered)].count("Training") == 1
        assert [trained.step for trained in client.of(RoundTrained)] == [1]
