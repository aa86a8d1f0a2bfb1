"""`training_service/sessions.py`: a round whose parameters cannot be loaded leaves what the last one has earned."""

from collections.abc import Mapping

import numpy as np
import pytest

from epochal.batching.micro_batches import Example
from epochal.state.config.model_table import ModelSpec
from epochal.state.errors import TrainerFailed
from epochal.state.model.tensors import Float32Array, encode_tensor_file, parse_tensor_file
from epochal.trainers.architectures import ARCHITECTURES, ArchitectureEntry
from epochal.trainers.learner import NO_INNER_STATE, InnerState
from epochal.trainers.remote.service_messages import OptimStepRequest, SessionRequest
from epochal.training_service.sessions import TrainingSession
from tests.support.models.bag_of_bytes import ARCHITECTURE, BagLearner, BagOfBytes
from tests.support.models.local_training import ADAMW

START = encode_tensor_file(BagOfBytes().initial_parameters(bytes(32)), {})
EXAMPLES = [Example(np.frombuffer(b"a byte follows a byte", np.uint8))]


class FailingLearner(BagLearner):
    """One whose device is gone for some loads: it then gives back what it holds, as learners of torch do."""

    def __init__(self, fails: set[int]) -> None:
        super().__init__()
        self._fails = fails
        self._load_count = 0

    def load(self, parameters: Mapping[str, Float32Array], inner_state: InnerState = NO_INNER_STATE) -> None:
        self._load_count += 1
        super().load(parameters, inner_state)
        if self._load_count in self._fails:
            super().load(parameters, NO_INNER_STATE)
            raise TrainerFailed("the device is gone")


class FailingBag(BagOfBytes):
    def __init__(self, fails: set[int]) -> None:
        self._fails = fails

    def learner(self) -> BagLearner:
        return FailingLearner(self._fails)


def after_two_rounds(monkeypatch: pytest.MonkeyPatch, fails: set[int]) -> Float32Array:
    """Return the weight after two rounds that count, each begun again when its load fails."""
    entry = ArchitectureEntry(lambda spec, options: FailingBag(fails))
    monkeypatch.setitem(ARCHITECTURES, ARCHITECTURE, entry)
    session = TrainingSession(SessionRequest(ModelSpec(architecture=ARCHITECTURE), ADAMW, "keep"))
    for number in range(2):
        for attempt in range(3):
            try:
                session.begin_round(f"{number}-{attempt}", START, keep_last=number > 0)
            except TrainerFailed:
                continue
            break
        key = f"{number}-{attempt}"
        session.forward_backward(key, 0, EXAMPLES)
        session.optim_step(OptimStepRequest(key, 0, len(EXAMPLES), 0.1))
    (weight,) = parse_tensor_file(session.parameters(key, 1)).tensors().values()
    return weight


def test_failed_load_does_not_commit_an_empty_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = after_two_rounds(monkeypatch, set())
    second_round_twice = {2, 3}
    assert np.array_equal(undisturbed, after_two_rounds(monkeypatch, second_round_twice))
