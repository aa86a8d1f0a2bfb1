"""`run_manager/own_results.py`: how results are encoded, and the fate of a trainer's inner state."""

from dataclasses import replace

import numpy as np
import pytest

from epochal.run_manager import own_results
from epochal.run_manager.error_feedback import ErrorFeedback
from epochal.run_manager.own_results import OwnResults
from epochal.runtime.files.spool import Spool
from epochal.runtime.side_by_side import side_by_side
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.model_table import NgramConfig
from epochal.state.config.state_file import MergeConfig
from epochal.state.documents import OwnOutcome
from epochal.state.results import ResultHeader
from epochal.state.wire import ClientId, Sha256
from epochal.trainers.ngram.learner import NgramModel
from epochal.trainers.null import NullTrainer
from tests.support.data.spooled import SPOOL_PARENT


class _CountingTrainer(NullTrainer):
    def __init__(self) -> None:
        super().__init__(NgramModel(NgramConfig()))
        self.fate: list[str] = []

    def commit_inner_state(self) -> None:
        self.fate.append("commit")

    def roll_back_inner_state(self) -> None:
        self.fate.append("roll back")

    def forget_inner_state(self) -> None:
        self.fate.append("forget")


def _outcome(result: str) -> OwnOutcome:
    digest = Sha256("00" * 32)
    return OwnOutcome("run", 1, digest, digest, Sha256(result * 64))


def test_inner_state_is_kept_only_with_an_outcome_of_its_result() -> None:
    trainer = _CountingTrainer()
    results = OwnResults(trainer, Spool(SPOOL_PARENT), InlineWorker())
    results.published(1, Sha256("a" * 64))
    results.settle(_outcome("a"))
    results.settle(_outcome("a"))
    results.published(1, Sha256("c" * 64))
    results.settle(_outcome("b"))
    results.settle(_outcome("c"))
    assert trainer.fate == ["commit", "roll back", "roll back", "roll back"]


def test_two_undecided_results_are_settled_in_their_order() -> None:
    trainer = _CountingTrainer()
    results = OwnResults(trainer, Spool(SPOOL_PARENT), InlineWorker())
    results.published(1, Sha256("a" * 64))
    results.published(2, Sha256("b" * 64))
    results.settle(_outcome("a"))
    assert trainer.fate == ["commit"]
    results.settle(_outcome("a"))  # applied again, as the replica is rebuilt
    results.settle(replace(_outcome("c"), step=2))
    assert trainer.fate == ["commit", "roll back"]


def test_client_that_starts_over_forgets_its_own_results() -> None:
    trainer = _CountingTrainer()
    results = OwnResults(trainer, Spool(SPOOL_PARENT), InlineWorker())
    results.published(1, Sha256("a" * 64))
    results.start_over()
    results.settle(_outcome("a"))  # of the other branch, in which its result has the same bytes
    assert trainer.fate == ["roll back", "forget", "roll back"]


@pytest.mark.parametrize("has_feedback", [True, False])
async def test_large_result_has_the_same_bytes_when_threads_encode_it(
    has_feedback: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    difference = {"w": np.random.default_rng(1).standard_normal(300_000).astype(np.float32)}
    digest, merge = Sha256("ef" * 32), MergeConfig(codec="int2", error_feedback=True)
    header = ResultHeader("run", 1, 0, ClientId("ab" * 16), digest, digest, "int2")
    begun: list[int] = []

    def counted(*arguments: object) -> object:
        begun.append(1)
        return side_by_side(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(own_results, "side_by_side", counted)
    found = set()
    for from_bytes in (0, difference["w"].nbytes + 1):
        monkeypatch.setattr(own_results, "ENCODED_BESIDE_BYTES", from_bytes)
        spool = Spool(SPOOL_PARENT)
        feedback = ErrorFeedback(spool) if has_feedback else None
        results = OwnResults(_CountingTrainer(), spool, InlineWorker(), feedback)
        found.add((await results.encoded(header, "11" * 16, difference, merge)).sha256())
    assert (len(found), begun) == (1, [1])
