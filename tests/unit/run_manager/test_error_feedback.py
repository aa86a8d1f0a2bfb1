"""What a client's codec leaves out: tentative, and never trusted when in doubt."""

import gc
from dataclasses import replace

import numpy as np
import pytest

from epochal.run_manager.error_feedback import ErrorFeedback
from epochal.runtime.files.spool import Spool
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.documents import OwnOutcome
from epochal.state.model.tensors import Float32Array, Tensors, TensorStream, layout_of
from epochal.state.results import ResultHeader, decode_result
from epochal.state.wire import ClientId, Sha256
from tests.support.data.fed_back import encode_with_feedback
from tests.support.data.spooled import SPOOL_PARENT

CODEC = "sparse-64"
DECAY = 0.95
ME, OTHER = ClientId("ab" * 16), ClientId("cd" * 16)
DIGEST = Sha256("ef" * 32)
DIFFERENCE: Tensors = {
    "b": np.random.default_rng(1).standard_normal(300).astype(np.float32),
    "w": np.random.default_rng(2).standard_normal((70, 60)).astype(np.float32),
}
LINEAGE = "11" * 16


def header(step: int, attempt: int = 0) -> ResultHeader:
    return ResultHeader("demo", step, attempt, ME, DIGEST, DIGEST, CODEC)


def outcome(step: int, result_sha256: str | None) -> OwnOutcome:
    return OwnOutcome("demo", step, DIGEST, DIGEST, None if result_sha256 is None else Sha256(result_sha256))


def new_feedback() -> ErrorFeedback:
    return ErrorFeedback(Spool(SPOOL_PARENT))


def publish(feedback: ErrorFeedback, step: int, attempt: int = 0, lineage: str = LINEAGE) -> TensorStream:
    file = feedback.encode(header(step, attempt), lineage, DIFFERENCE, DECAY)
    feedback.published(file.sha256())
    return file


def apply(feedback: ErrorFeedback, step: int, lineage: str = LINEAGE) -> None:
    feedback.settle(outcome(step, publish(feedback, step, lineage=lineage).sha256()))


def expected(rounds: int) -> Tensors:
    """What is sent in the last of some rounds, all of which counted, of the same difference."""
    sent: Tensors = {}
    left: dict[str, Float32Array | None] = dict.fromkeys(DIFFERENCE)
    for _ in range(rounds):
        for name, values in DIFFERENCE.items():
            block, left[name] = encode_with_feedback(codec_named(CODEC), values, left[name], DECAY)
            sent[name] = block
    return sent


def is_round(file: TensorStream, rounds: int) -> bool:
    """Whether a result is that of a client of whose results so many count, with this one."""
    return all(np.array_equal(file.tensors()[name], block) for name, block in expected(rounds).items())


def test_feedback_grows_with_results_that_count() -> None:
    feedback = new_feedback()
    apply(feedback, 1)
    apply(feedback, 2)
    assert is_round(publish(feedback, 3), 3)


def test_feedback_is_rolled_back_when_the_outcome_lacks_the_result() -> None:
    feedback = new_feedback()
    apply(feedback, 1)
    publish(feedback, 2)
    feedback.settle(outcome(2, None))
    assert is_round(publish(feedback, 3), 2)


def test_feedback_of_another_attempt_begins_where_the_first_did() -> None:
    feedback = new_feedback()
    apply(feedback, 1)
    publish(feedback, 2, attempt=0)
    assert is_round(publish(feedback, 2, attempt=1), 2)


def test_feedback_of_a_result_that_was_never_published_is_not_taken() -> None:
    feedback = new_feedback()
    apply(feedback, 1)
    feedback.encode(header(2), LINEAGE, DIFFERENCE, DECAY)  # overtaken
    feedback.settle(outcome(2, None))
    assert is_round(publish(feedback, 3), 2)


def test_feedback_is_dropped_when_another_result_of_this_client_counted() -> None:
    feedback = new_feedback()
    apply(feedback, 1)
    publish(feedback, 2)
    feedback.settle(outcome(2, "77" * 32))
    assert is_round(publish(feedback, 3), 1)


def test_feedback_stays_when_older_outcomes_are_applied_again() -> None:
    feedback = new_feedback()
    apply(feedback, 1)
    apply(feedback, 2)
    file = publish(feedback, 3)
    for step in (1, 2):
        feedback.settle(outcome(step, "77" * 32))
    feedback.settle(outcome(3, file.sha256()))
    assert is_round(publish(feedback, 4), 4)


def test_feedback_is_dropped_if_the_fate_of_a_result_is_not_known() -> None:
    feedback = new_feedback()
    apply(feedback, 1)
    publish(feedback, 2)
    assert is_round(publish(feedback, 3), 1)


def test_feedback_is_dropped_when_the_run_was_restored() -> None:
    feedback = new_feedback()
    apply(feedback, 1)
    assert is_round(publish(feedback, 2, lineage="22" * 16), 1)


def test_feedback_that_finds_no_room_is_sent_and_then_gone() -> None:
    feedback = ErrorFeedback(Spool(SPOOL_PARENT, max_bytes=2 * layout_of(DIFFERENCE).size_bytes))
    apply(feedback, 1)
    held = feedback._spool.file().prepared(layout_of(DIFFERENCE).size_bytes)
    file = publish(feedback, 2)
    assert is_round(file, 2)
    del held
    feedback.settle(outcome(2, file.sha256()))
    assert is_round(publish(feedback, 3), 1)


def test_feedback_of_another_model_is_not_used() -> None:
    feedback = new_feedback()
    apply(feedback, 1)
    file = feedback.encode(header(2), LINEAGE, {"b": DIFFERENCE["b"]}, DECAY)
    assert decode_result(file.to_bytes(), layout_of({"b": DIFFERENCE["b"]}))[0] == header(2)
    assert np.array_equal(file.tensors()["b"], expected(1)["b"])


@pytest.mark.nightly
def test_residuals_take_two_files_of_the_spool() -> None:
    feedback = new_feedback()
    for step in range(1, 4):
        apply(feedback, step)
        publish(feedback, step + 1)
        gc.collect()
        assert feedback._spool.used_bytes == 2 * layout_of(DIFFERENCE).size_bytes
        feedback.settle(outcome(step + 1, None))


def publish_from(feedback: ErrorFeedback, step: int, start: str) -> TensorStream:
    """A result that was trained before its round, from another result of this client."""
    file = feedback.encode(replace(header(step), start=start), LINEAGE, DIFFERENCE, DECAY)
    feedback.published(file.sha256())
    return file


def test_result_that_begins_from_an_undecided_one_continues_its_residual() -> None:
    feedback = new_feedback()
    first = publish(feedback, 1).sha256()
    second = publish_from(feedback, 2, first)
    assert is_round(second, 2)
    feedback.settle(outcome(1, first))
    assert is_round(publish_from(feedback, 3, second.sha256()), 3)


def test_residuals_of_a_result_that_did_not_count_are_dropped_together() -> None:
    feedback = new_feedback()
    apply(feedback, 1)
    second = publish(feedback, 2).sha256()
    publish_from(feedback, 3, second)
    feedback.settle(outcome(2, None))
    assert is_round(publish(feedback, 3), 2)
