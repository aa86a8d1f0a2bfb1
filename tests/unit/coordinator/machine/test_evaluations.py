"""The history of a run's evaluations: what is taken, what is refused, and that it is replayed."""

from dataclasses import replace
from typing import Any

import pytest

from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.instructions import Instruction, Recorded
from epochal.coordinator.machine.journal_records import Segment
from epochal.coordinator.machine.records import Kept, encode_record, encode_snapshot, replay
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.views import document_of
from epochal.state.messages.evaluation_reports import Evaluation, EvaluationReport, newest_evaluations
from epochal.state.wire import Seed, document_digest
from tests.support.drive.machine_driver import Driver, digest_of, in_round

DATA = digest_of("held-out data")


def report(step: int = 0, loss: float = 2.5, name: str = "validation", **fields: Any) -> EvaluationReport:
    return replace(EvaluationReport(name, step, digest_of(f"replica {step}"), loss, 640, 10, DATA), **fields)


def reported(step: int = 0, loss: float = 2.5, name: str = "validation") -> stimuli.EvaluationReported:
    return stimuli.EvaluationReported(report(step, loss, name))


def kept(driver: Driver) -> list[tuple[str, int, float | None]]:
    return [(one.name, one.step, one.loss) for one in driver.projection().evaluations]


def test_evaluation_of_a_replica_is_kept_with_its_time() -> None:
    driver = in_round(1, 2)
    driver.now_s += 7
    told = driver.send(reported())
    expected = Evaluation("validation", 0, 2.5, 640, 10, DATA, recorded_s=driver.now_s)
    assert driver.projection().evaluations == (expected,)
    assert told == (Recorded(reported(), 0, driver.now_s),), "no operator's action: they would crowd out those"


def test_evaluation_publishes_no_new_document() -> None:
    driver = in_round(1, 2)
    before = document_of(driver.run, 1)
    driver.send(reported())
    assert document_of(driver.run, 1) == before


def test_repeated_evaluation_is_shown_once_as_it_came_first() -> None:
    driver = in_round(1, 2)
    first_s = driver.now_s
    driver.send(reported())
    driver.now_s += 0.001
    driver.send(reported())
    assert [one.recorded_s for one in driver.projection().evaluations] == [first_s]


def test_later_evaluation_under_a_name_replaces_the_one_of_its_step() -> None:
    driver = in_round(1, 2)
    driver.play_round()
    for stimulus in (reported(0, 3.0), reported(1, 2.0), reported(0, 9.0, "test"), reported(0, 3.5)):
        driver.send(stimulus)
    assert kept(driver) == [("validation", 1, 2.0), ("test", 0, 9.0), ("validation", 0, 3.5)]
    newest = newest_evaluations(driver.projection().evaluations)
    assert [(one.name, one.step) for one in newest] == [("validation", 1), ("test", 0)]


def test_only_the_last_evaluations_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.coordinator.insight.projection.MAX_EVALUATIONS", 2)
    driver = in_round(1, 2)
    for name in ("a", "b", "c"):
        driver.send(reported(name=name))
    assert [name for name, _, _ in kept(driver)] == ["b", "c"]


def test_journal_replays_to_the_same_history() -> None:
    driver, projection = in_round(1, 2), Projection()
    run = driver.run
    digest = document_digest(document_of(run, 1))
    stamped = stimuli.Stamped(reported(), run.clock.now_s + 3, Seed(digest_of("seed")))
    record = encode_record(8, 1, digest, (stamped,))
    segment = Segment(0, encode_snapshot(7, 1, digest, run), (record,))

    def watch(_run: Run, instructions: tuple[Instruction, ...], kept: Kept) -> None:
        projection.take(instructions, kept.version)

    replay(segment, watch)
    expected = (Evaluation("validation", 0, 2.5, 640, 10, DATA, recorded_s=run.clock.now_s + 3),)
    assert projection.evaluations == expected
    assert Projection.decoded(projection.encoded()).evaluations == expected
