"""`run_manager/agent.py`: a client says what it waits for, once, with a warning once it takes long."""

import asyncio
from dataclasses import replace

import pytest

from epochal.run_manager.agent import WAIT_WARNING_S, WaitingNotice
from epochal.state.documents import CheckpointRef
from epochal.state.phase_names import RunState
from epochal.state.shown.waiting_words import awaited_by
from epochal.state.wire import Sha256
from tests.support.data.documents import run_document
from tests.support.simulate.virtual_time import in_virtual_time

CHECKPOINT = CheckpointRef(3, Sha256("aa" * 32), 100, Sha256("bb" * 32))


@pytest.mark.parametrize(
    ("phase", "phrase"),
    [
        (RunState.WAITING_FOR_MEMBERS, "more members ("),
        (RunState.PAUSED, "an operator, who must resume the run ("),
        (RunState.WARMUP, "the run's first model"),
        (RunState.COOLDOWN, "the epoch's checkpoint"),
    ],
)
def test_awaited_is_named(phase: RunState, phrase: str) -> None:
    document = replace(run_document(phase), checkpoint=None)
    assert str(awaited_by(document)).startswith(phrase)


def test_client_that_is_ready_before_the_others_waits_for_them() -> None:
    document = replace(run_document(RunState.WARMUP), checkpoint=CHECKPOINT)
    assert str(awaited_by(document)).startswith("members, until enough")


@pytest.mark.parametrize("phase", [RunState.ROUND_TRAIN, RunState.ROUND_WITNESS, RunState.FINISHED])
def test_nothing_is_awaited_while_the_run_goes_on(phase: RunState) -> None:
    assert awaited_by(run_document(phase)) is None


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.message) for record in caplog.records]


@in_virtual_time
async def test_wait_that_takes_long_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    notice = WaitingNotice()
    for version in range(5):
        notice.saw(replace(run_document(RunState.WAITING_FOR_MEMBERS), version=version))
        await asyncio.sleep(WAIT_WARNING_S)
    assert said(caplog) == [("INFO", "waits"), ("WARNING", "still_waits")]
    notice.close()


@in_virtual_time
async def test_run_that_goes_on_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    notice = WaitingNotice()
    for phase in (RunState.WARMUP, RunState.ROUND_TRAIN) * 5:
        notice.saw(run_document(phase))
        await asyncio.sleep(WAIT_WARNING_S * 0.9)
    assert said(caplog) == []
    notice.close()
