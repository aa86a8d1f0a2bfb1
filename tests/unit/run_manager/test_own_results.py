"""`run_manager/own_results.py`: the fate of a trainer's inner state."""

from dataclasses import replace

from epochal.run_manager.own_results import OwnResults
from epochal.runtime.files.spool import Spool
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.model_table import NgramConfig
from epochal.state.documents import OwnOutcome
from epochal.state.wire import Sha256
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
