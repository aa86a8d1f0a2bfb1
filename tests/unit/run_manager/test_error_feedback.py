"""What a client's codec leaves out: tentative, kept on disk for the same client, and never trusted when in doubt."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from epochal.run_manager.feedback.error_feedback import MAX_AGE_STEPS, ErrorFeedback
from epochal.run_manager.feedback.residual_file import ResidualMark, ResidualWriter, read_residual
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.codecs.feedback import encode_with_feedback
from epochal.state.documents import Outcome, OutcomeEntry
from epochal.state.errors import InvalidDocument, Refused
from epochal.state.intervals import BatchId
from epochal.state.model.tensors import Float32Array, Tensors, TensorStream, layout_of
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal
from epochal.state.results import ResultHeader, decode_result
from epochal.state.weights import factor_hex, norm_hex
from epochal.state.wire import ClientId, Seed, Sha256, sha256_hex
from tests.support.data.documents import run_document

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


def outcome(step: int, *results: tuple[ClientId, str]) -> Outcome:
    entries = tuple(
        OutcomeEntry(client, (BatchId(0, 0),), Sha256(sha256), 1, norm_hex(1.0), factor_hex(1.0))
        for client, sha256 in results
    )
    return Outcome("demo", step, 0, Seed("11" * 32), DIGEST, DIGEST, DIGEST, entries)


def feedback_in(folder: Path) -> ErrorFeedback:
    return ErrorFeedback(folder / "my.key.demo", ME, DECAY)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def inodes_in(folder: Path) -> set[int]:
    return {path.stat().st_ino for path in folder.iterdir()}


def publish(feedback: ErrorFeedback, step: int, attempt: int = 0, lineage: str = LINEAGE) -> TensorStream:
    file = feedback.encode(header(step, attempt), lineage, DIFFERENCE)
    feedback.published(file.sha256())
    return file


def apply(feedback: ErrorFeedback, step: int, lineage: str = LINEAGE) -> None:
    feedback.settle(outcome(step, (OTHER, "00" * 32), (ME, publish(feedback, step, lineage=lineage).sha256())))


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


async def resumed(folder: Path, step: int, lineage: str = LINEAGE, **outcomes: Outcome) -> ErrorFeedback:
    """A later process's feedback, in a run at this step; the coordinator has the `outcomes` of steps "s<number>"."""

    async def fetch(step: int) -> Outcome:
        if f"s{step}" in outcomes:
            return outcomes[f"s{step}"]
        raise Refused(Refusal.NOT_FOUND, "not kept")

    feedback = feedback_in(folder)
    document = replace(run_document(RunState.ROUND_TRAIN), run_id="demo", lineage=lineage, step=step)
    await feedback.resume(document, CODEC, fetch, InlineWorker())
    return feedback


def test_feedback_grows_with_results_that_count(tmp_path: Path) -> None:
    feedback = feedback_in(tmp_path)
    apply(feedback, 1)
    apply(feedback, 2)
    assert is_round(publish(feedback, 3), 3)
    assert files_in(tmp_path) == ["my.key.demo.feedback", "my.key.demo.feedback-new"]


def test_feedback_is_rolled_back_when_the_outcome_lacks_the_result(tmp_path: Path) -> None:
    feedback = feedback_in(tmp_path)
    apply(feedback, 1)
    publish(feedback, 2)
    feedback.settle(outcome(2, (OTHER, "00" * 32)))
    assert files_in(tmp_path) == ["my.key.demo.feedback", "my.key.demo.feedback-spare"]
    assert is_round(publish(feedback, 3), 2)
    assert files_in(tmp_path) == ["my.key.demo.feedback", "my.key.demo.feedback-new"]


async def test_feedback_written_over_an_older_one_is_whole(tmp_path: Path) -> None:
    feedback, places = feedback_in(tmp_path), set[int]()
    for step in range(1, 7):
        apply(feedback, step)
        places |= inodes_in(tmp_path)
    assert len(places) == 2
    assert is_round(publish(await resumed(tmp_path, 7), 7), 7)


async def test_spare_file_of_an_earlier_process_is_removed_unread(tmp_path: Path) -> None:
    apply(feedback_in(tmp_path), 1)
    (tmp_path / "my.key.demo.feedback").rename(tmp_path / "my.key.demo.feedback-spare")
    assert (await resumed(tmp_path, 2)).kept_step is None
    assert files_in(tmp_path) == []


def test_closed_feedback_leaves_what_counted_and_nothing_unfinished(tmp_path: Path) -> None:
    feedback = feedback_in(tmp_path)
    apply(feedback, 1)
    feedback.encode(header(2), LINEAGE, DIFFERENCE).sha256()
    feedback.close()
    assert files_in(tmp_path) == ["my.key.demo.feedback"]


def test_result_read_after_its_feedback_closed_leaves_no_file(tmp_path: Path) -> None:
    feedback = feedback_in(tmp_path)
    file = feedback.encode(header(1), LINEAGE, DIFFERENCE)
    feedback.close()
    assert is_round(file, 1)
    assert files_in(tmp_path) == []


def test_feedback_dropped_while_a_result_is_encoded_is_not_kept(tmp_path: Path) -> None:
    feedback = feedback_in(tmp_path)
    file = feedback.encode(header(1), LINEAGE, DIFFERENCE)
    pieces = file.pieces()
    for _ in file.header, DIFFERENCE["b"]:
        next(pieces)
    feedback.drop("it is in the way")
    feedback.published(sha256_hex(b"".join(pieces)))
    assert files_in(tmp_path) == []


def test_feedback_of_another_attempt_begins_where_the_first_did(tmp_path: Path) -> None:
    feedback = feedback_in(tmp_path)
    apply(feedback, 1)
    publish(feedback, 2, attempt=0)
    assert is_round(publish(feedback, 2, attempt=1), 2)


def test_feedback_of_a_result_that_was_never_published_is_not_taken(tmp_path: Path) -> None:
    feedback = feedback_in(tmp_path)
    apply(feedback, 1)
    feedback.encode(header(2), LINEAGE, DIFFERENCE)  # overtaken
    feedback.settle(outcome(2, (OTHER, "00" * 32)))
    assert is_round(publish(feedback, 3), 2)


def test_feedback_is_dropped_when_another_result_of_this_client_counted(tmp_path: Path) -> None:
    feedback = feedback_in(tmp_path)
    apply(feedback, 1)
    publish(feedback, 2)
    feedback.settle(outcome(2, (ME, "77" * 32)))
    assert files_in(tmp_path) == []
    assert is_round(publish(feedback, 3), 1)


def test_feedback_stays_when_older_outcomes_are_applied_again(tmp_path: Path) -> None:
    feedback = feedback_in(tmp_path)
    apply(feedback, 1)
    apply(feedback, 2)
    file = publish(feedback, 3)
    for step in (1, 2):
        feedback.settle(outcome(step, (ME, "77" * 32)))
    feedback.settle(outcome(3, (ME, file.sha256())))
    assert is_round(publish(feedback, 4), 4)


def test_feedback_is_dropped_if_the_fate_of_a_result_is_not_known(tmp_path: Path) -> None:
    feedback = feedback_in(tmp_path)
    apply(feedback, 1)
    publish(feedback, 2)
    assert is_round(publish(feedback, 3), 1)


def test_feedback_is_dropped_when_the_run_was_restored(tmp_path: Path) -> None:
    feedback = feedback_in(tmp_path)
    apply(feedback, 1)
    assert is_round(publish(feedback, 2, lineage="22" * 16), 1)


def test_feedback_that_cannot_be_written_is_sent_and_then_gone(tmp_path: Path) -> None:
    feedback = feedback_in(tmp_path)
    apply(feedback, 1)
    (tmp_path / "my.key.demo.feedback-new").mkdir()  # whatever is written there fails
    file = publish(feedback, 2)
    assert is_round(file, 2)
    (tmp_path / "my.key.demo.feedback-new").rmdir()
    feedback.settle(outcome(2, (ME, file.sha256())))
    assert is_round(publish(feedback, 3), 1)


async def test_feedback_goes_on_with_that_of_an_earlier_process(tmp_path: Path) -> None:
    apply(feedback_in(tmp_path), 1)
    later = await resumed(tmp_path, step=2)
    assert later.kept_step == 1
    assert is_round(publish(later, 2), 2)


async def test_feedback_of_a_killed_process_waits_for_the_outcome(tmp_path: Path) -> None:
    earlier = feedback_in(tmp_path)
    apply(earlier, 1)
    file = publish(earlier, 2)
    later = await resumed(tmp_path, step=2)
    later.settle(outcome(2, (ME, file.sha256())))
    assert is_round(publish(later, 3), 3)


@pytest.mark.parametrize(("counted", "rounds"), [(True, 3), (False, 2)])
async def test_feedback_of_a_killed_process_asks_for_the_outcome(tmp_path: Path, counted: bool, rounds: int) -> None:
    earlier = feedback_in(tmp_path)
    apply(earlier, 1)
    mine = (ME, publish(earlier, 2).sha256())
    later = await resumed(tmp_path, step=5, s2=outcome(2, *([mine] if counted else []), (OTHER, "00" * 32)))
    assert is_round(publish(later, 5), rounds)


async def test_feedback_whose_outcome_is_kept_no_longer_is_dropped(tmp_path: Path) -> None:
    earlier = feedback_in(tmp_path)
    apply(earlier, 1)
    publish(earlier, 2)
    later = await resumed(tmp_path, step=5)
    assert files_in(tmp_path) == []
    assert is_round(publish(later, 5), 1)


@pytest.mark.parametrize(
    ("step", "is_used"), [(1, False), (2, True), (MAX_AGE_STEPS + 2, True), (MAX_AGE_STEPS + 3, False)]
)
async def test_feedback_is_used_up_to_an_age_and_never_of_the_future(tmp_path: Path, step: int, is_used: bool) -> None:
    apply(feedback_in(tmp_path), 1)
    assert (await resumed(tmp_path, step)).kept_step == (1 if is_used else None)


async def test_feedback_of_another_history_client_run_or_codec_is_removed(tmp_path: Path) -> None:
    apply(feedback_in(tmp_path), 1)
    good = tmp_path / "my.key.demo.feedback"
    assert (await resumed(tmp_path, 2, lineage="22" * 16)).kept_step is None
    assert files_in(tmp_path) == []
    mark = ResidualMark("demo", LINEAGE, ME, CODEC, 1, 0)
    for wrong in (
        replace(mark, run_id="other"),
        replace(mark, client_id=OTHER),
        replace(mark, codec="sparse-32"),
    ):
        with ResidualWriter(good, layout_of(DIFFERENCE), wrong) as writer:
            for name in sorted(DIFFERENCE):
                writer.add(DIFFERENCE[name])
            writer.finish("00" * 32)
        assert (await resumed(tmp_path, 2)).kept_step is None
        assert files_in(tmp_path) == []


async def test_feedback_of_another_model_is_not_used(tmp_path: Path) -> None:
    apply(feedback_in(tmp_path), 1)
    later = await resumed(tmp_path, 2)
    file = later.encode(header(2), LINEAGE, {"b": DIFFERENCE["b"]})
    assert decode_result(file.to_bytes(), layout_of({"b": DIFFERENCE["b"]}))[0] == header(2)
    assert np.array_equal(file.tensors()["b"], expected(1)["b"])
    later.close()


@pytest.mark.parametrize("place", [0, 9, 40, 600, -1])
async def test_damaged_feedback_is_removed(tmp_path: Path, place: int) -> None:
    apply(feedback_in(tmp_path), 1)
    path = tmp_path / "my.key.demo.feedback"
    data = bytearray(path.read_bytes())
    data[place] ^= 0x41
    path.write_bytes(data)
    with pytest.raises(InvalidDocument):
        read_residual(path)
    assert (await resumed(tmp_path, 2)).kept_step is None
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("data", [b"", b"\0" * 8, b"\xff" * 100])
def test_file_that_is_no_residual_is_said_to_be_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "residual").write_bytes(data)
    with pytest.raises(InvalidDocument):
        read_residual(tmp_path / "residual")


def test_residual_that_does_not_exist_is_none(tmp_path: Path) -> None:
    assert read_residual(tmp_path / "residual") is None


def test_residual_that_is_not_finished_leaves_no_file(tmp_path: Path) -> None:
    mark = ResidualMark("demo", LINEAGE, ME, CODEC, 1, 0)
    with ResidualWriter(tmp_path / "residual", layout_of(DIFFERENCE), mark) as writer:
        writer.add(DIFFERENCE["b"])
    assert files_in(tmp_path) == []


def test_room_for_two_residuals_is_told_with_what_is_held(tmp_path: Path) -> None:
    feedback, layout = feedback_in(tmp_path), layout_of(DIFFERENCE)
    before = feedback.files(layout)
    assert (before.folder, before.held_bytes) == (tmp_path, 0)
    for step in (1, 2):
        apply(feedback, step)
        on_disk = sum(path.stat().st_size for path in tmp_path.iterdir())
        assert feedback.files(layout).held_bytes == on_disk > step * layout.size_bytes
        assert feedback.files(layout).needed_bytes == before.needed_bytes >= on_disk
