"""`epochal/tools/replays/replay_worker.py`: by how much a part of a result lowers the loss on held-out samples."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from epochal.runtime.clock import SystemClock
from epochal.runtime.permissions import Permissions
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.model.replica import first_replica
from epochal.state.results import ResultHeader, result_of
from epochal.state.wire import ClientId
from epochal.tools.evaluate.losses import EvaluationOptions, LossComputation, opened_evaluation
from epochal.tools.replays.replay_worker import SCORED_SAMPLES, Scores
from epochal.trainers.architectures import open_model
from tests.support.data.states import state_file
from tests.support.drive.processes import SMALL_MODEL

STATE = state_file(model__LLM__ngram=SMALL_MODEL)
MEMBER, FACTOR = ClientId("ab" * 16), 0.5
START = first_replica(0, open_model(STATE.model.LLM.spec).initial_parameters(bytes(32)))


def result(push: float) -> bytes:
    """Return a result that moves each value by so much times a number of its own."""
    numbers = np.random.default_rng(1)
    moved = {
        name: (push * numbers.standard_normal(values.shape)).astype(np.float32)
        for name, values in START.parameters.items()
    }
    header = ResultHeader("run", 1, 0, MEMBER, "0" * 64, "0" * 64, "float32")
    return result_of(header, moved, STATE.merge.max_abs).to_bytes()


@asynccontextmanager
async def opened(folder: Path, samples: int) -> AsyncIterator[tuple[LossComputation, Scores]]:
    tokens = np.random.default_rng(2).integers(0, 16, samples * STATE.model.LLM.max_seq_len)
    tokens.astype("<u2").tofile(folder / "tokens.bin")
    options = EvaluationOptions(Permissions.of_own_run(), str(folder))
    async with opened_evaluation(STATE, STATE.model.LLM.spec, options) as losses:

        async def at(_: int) -> LossComputation:
            return losses

        yield losses, Scores(at, InlineWorker(), SystemClock())


async def test_score_is_the_gain_of_fifteen_hundredths_of_a_result(tmp_path: Path) -> None:
    async with opened(tmp_path, SCORED_SAMPLES) as (losses, scores):
        found = {push: (await scores.score(START, result(push), MEMBER, FACTOR)).gain for push in (0.5, -0.5, 0.0)}
        nats = []
        for push in (0.0, 0.15 * FACTOR * 0.5):
            numbers = np.random.default_rng(1)
            parameters = {
                name: values - (push * numbers.standard_normal(values.shape)).astype(np.float32)
                for name, values in START.parameters.items()
            }
            await losses.load(0, parameters)
            loss = await losses.loss()
            nats.append(loss.finite_nats() / loss.token_count)
    assert found[0.5] == pytest.approx(nats[0] - nats[1], rel=1e-3)
    assert found[0.0] == 0.0
    assert found[0.5] * found[-0.5] < 0


async def test_score_is_of_samples_that_nobody_knew_before(tmp_path: Path) -> None:
    async with opened(tmp_path, 50 * SCORED_SAMPLES) as (_, scores):
        gains = {(await scores.score(START, result(0.5), MEMBER, FACTOR)).gain for _ in range(6)}
    assert len(gains) > 1
