"""The work of a round: suspects alone, then carried work, then new batches, up to the size of a round."""

from dataclasses import replace
from typing import Any

import pytest

from epochal.coordinator.machine.parts.run_work import Suspect
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.work import begin_round
from epochal.state.documents import WorkList
from epochal.state.intervals import BatchId
from epochal.state.wire import Seed
from tests.support.drive.machine_driver import client, digest_of, in_round

SEED = Seed(digest_of("seed"))
TARGET = 12


def run_with(members: int = 4, **fields: Any) -> Run:
    """Return a run between two rounds with these fields, as if it had come to them."""
    run = in_round(*range(1, members + 1), config__init_min_clients=members, config__total_steps=9).run
    work = {name: value for name, value in fields.items() if hasattr(run.work, name)}
    progress = {name: value for name, value in fields.items() if name not in work}
    return replace(
        run, round=None, work=replace(run.work, **{"cursor": 100, **work}), progress=replace(run.progress, **progress)
    )


def suspect(start: int, end: int, retry_step: int = 0) -> Suspect:
    return Suspect(BatchId(start, end), (client(1),), "corrupt", retry_step=retry_step)


def begun(run: Run) -> tuple[Run, WorkList]:
    after = begin_round(run, SEED)
    assert after.round is not None
    return after, after.round.tasks.work


def test_carried_work_comes_before_new_batches_up_to_the_rounds_size() -> None:
    after, work = begun(run_with(carried=(BatchId(40, 44), BatchId(7, 8))))
    assert work.shared == (BatchId(40, 44), BatchId(7, 8), BatchId(100, 104))
    assert work.batch_count() == TARGET
    assert (after.work.cursor, after.work.carried) == (105, ())


def test_carried_work_beyond_the_rounds_size_stays_carried() -> None:
    after, work = begun(run_with(carried=(BatchId(40, 49), BatchId(7, 10))))
    assert work.shared == (BatchId(40, 49), BatchId(7, 8))
    assert (after.work.cursor, after.work.carried) == (100, (BatchId(9, 10),))


@pytest.mark.parametrize(
    ("last", "shared"), [(26, (BatchId(100, 104),)), (30, (BatchId(100, 100),)), (31, ()), (60, ())]
)
def test_suspects_count_towards_the_rounds_size(last: int, shared: tuple[BatchId, ...]) -> None:
    after, work = begun(run_with(suspects=(suspect(20, last),)))
    assert [item.batch_id for item in work.isolated] == [BatchId(20, last)]
    assert work.shared == shared
    assert after.work.cursor == 100 + sum(part.count for part in shared)


@pytest.mark.parametrize(("members", "alone"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)])
def test_at_most_half_of_the_clients_take_suspects(members: int, alone: int) -> None:
    _, work = begun(run_with(members, suspects=tuple(suspect(number, number) for number in range(9))))
    assert [item.batch_id.start for item in work.isolated] == list(range(alone))
    assert work.isolated[0].tried == (client(1),)


def test_lone_client_that_takes_a_suspect_takes_nothing_else() -> None:
    after, work = begun(run_with(1, suspects=(suspect(5, 5),), carried=(BatchId(40, 41),)))
    assert work.shared == ()
    assert (after.work.cursor, after.work.carried) == (100, (BatchId(40, 41),))


@pytest.mark.parametrize(("retry_step", "is_due"), [(4, True), (5, True), (6, False)])
def test_suspect_is_due_from_the_step_of_its_next_attempt(retry_step: int, is_due: bool) -> None:
    _, work = begun(run_with(step=5, suspects=(suspect(5, 5, retry_step),)))
    assert bool(work.isolated) is is_due


def test_last_step_takes_new_batches_and_counts_no_drain_round() -> None:
    after, work = begun(run_with(step=9))
    assert work.shared == (BatchId(100, 111),)
    assert after.progress.drain_rounds == 0


def test_drain_round_takes_carried_work_and_does_not_wait_for_a_pause() -> None:
    run = run_with(step=10, carried=(BatchId(40, 41),), suspects=tuple(suspect(n, n, 99) for n in range(3)))
    after, work = begun(run)
    assert [item.batch_id.start for item in work.isolated] == [0, 1]
    assert work.shared == (BatchId(40, 41),)
    assert (after.work.cursor, after.progress.drain_rounds) == (100, 1)


def test_drain_round_without_carried_work_gives_suspects_to_every_client() -> None:
    _, work = begun(run_with(step=10, suspects=tuple(suspect(n, n, 99) for n in range(6))))
    assert [item.batch_id.start for item in work.isolated] == [0, 1, 2, 3]
    assert work.shared == ()


def test_round_has_the_runs_height_and_waits_for_those_with_work() -> None:
    after, _ = begun(run_with(2, height=7, attempt=3, suspects=(suspect(5, 5),)))
    assert after.round is not None
    assert (after.round.number.height, after.round.number.attempt) == (7, 3)
    assert after.round.missing.pending == {client(1), client(2)}
    nothing_left, _ = begun(run_with(2, step=10, suspects=(suspect(5, 5),)))
    assert nothing_left.round is not None
    assert len(nothing_left.round.missing.pending) == 1
