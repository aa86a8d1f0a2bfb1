"""`run_manager/readiness.py`: how long the run's rounds usually take, as its documents say."""

import pytest

from epochal.run_manager.readiness import usual_round_s
from epochal.state.phase_names import RunState
from tests.support.data.documents import run_document
from tests.support.data.states import state_file

STATE = state_file(config__max_round_train_time=60)


@pytest.mark.parametrize(
    ("limit_s", "usual_s"),
    [(9.0, 4.5), (59.0, 29.5), (60.0, 0.0), (3.0, 0.0)],
    ids=["followed", "followed for long", "not followed yet", "too short to say"],
)
def test_limit_of_round_train_says_how_long_rounds_take(limit_s: float, usual_s: float) -> None:
    document = run_document(RunState.ROUND_TRAIN, phase_started_s=100.0, phase_ends_s=100.0 + limit_s)
    assert usual_round_s(document, STATE) == usual_s


def test_other_phases_say_nothing_of_the_rounds() -> None:
    document = run_document(RunState.WARMUP, phase_started_s=100.0, phase_ends_s=110.0)
    assert usual_round_s(document, STATE) is None
