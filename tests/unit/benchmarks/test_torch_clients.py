"""The parts of a client's round, from the lines of its log."""

from typing import Any

import pytest

from benchmarks.training.torch_clients import EVENT_LOG, PARTS, rounds_of, shares


def line(event: str, time_s: float, **fields: Any) -> dict[str, Any]:
    return {"event": event, "time_s": time_s, "logger": EVENT_LOG, **fields}


def entered(time_s: float, step: int, name: str = "Training") -> dict[str, Any]:
    return line("step_entered", time_s, run_step=step, step_name=name)


def log(offset_s: float = 0.0) -> list[dict[str, Any]]:
    """A client's log of two rounds with a checkpoint between them; its results are late by the offset."""
    return [
        line("replica_held", 9.0, step=0),
        entered(10.0, 1),
        {"event": "step_entered", "time_s": 10.0, "logger": "another", "version": 3},
        line("blob_sent", 42.0 + offset_s, duration_s=1.0),
        line("round_trained", 42.5 + offset_s, step=1, train_s=30.0 + offset_s, data_wait_s=2.0),
        line("attested", 46.0, step=1),
        entered(47.0, 2, "Cooldown"),
        line("outcome_merged", 48.0, step=1, merge_s=0.5),
        line("replica_held", 48.5, step=1),
        line("blob_sent", 49.0, duration_s=0.3),
        entered(50.0, 2),
        line("blob_sent", 81.0, duration_s=1.0),
        line("round_trained", 81.5, step=2, train_s=30.0, data_wait_s=2.0),
        line("attested", 82.0, step=2),
        line("outcome_merged", 83.0, step=2, merge_s=0.5),
    ]


def test_parts_of_a_round_sum_to_the_time_until_the_next() -> None:
    rounds = rounds_of(log())
    assert sum(rounds[1].parts(slowest_s=44.5, next_started_s=rounds[2].started_s)) == pytest.approx(50.0 - 10.0)


def test_parts_of_a_round_are_those_of_the_log() -> None:
    found = rounds_of(log())[1].parts(slowest_s=44.5, next_started_s=50.0)
    expected = (28.0, 2.0, 1.5, 1.0, 2.0, 1.5, 1.5, 0.5, 0.0, 2.0)
    assert dict(zip(PARTS, found, strict=True)) == pytest.approx(dict(zip(PARTS, expected, strict=True)))


def test_shares_are_means_over_the_clients_and_sum_to_one() -> None:
    round_s, found = shares([rounds_of(log()), rounds_of(log(offset_s=2.0))])
    assert round_s == pytest.approx(40.0)
    assert sum(found) == pytest.approx(1.0)
    assert found[0] == pytest.approx(29.0 / 40.0)


def test_round_that_was_not_finished_is_left_out() -> None:
    assert set(rounds_of(log()[:-3])) == {1}
