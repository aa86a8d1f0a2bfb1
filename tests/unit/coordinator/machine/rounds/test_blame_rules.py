"""Blame of one round by itself: what each failure makes of the suspects, at each bound."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from epochal.coordinator.machine.blame import (
    MAX_QUARANTINED_INTERVALS,
    MAX_SUSPECT_MESSAGE_CHARS,
    MAX_SUSPECTED_INTERVALS,
    MAX_TRIED,
    Blame,
    blame_after,
    release,
)
from epochal.coordinator.machine.parts.run_work import Suspect
from epochal.coordinator.machine.round_conduct import with_conduct
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import BatchesReleased
from epochal.coordinator.machine.work import begin_round
from epochal.state.intervals import BatchId
from epochal.state.messages.requests import FailureReport
from epochal.state.wire import ClientId, Seed
from tests.support.drive.machine_driver import client, digest_of, in_round

FAR = tuple(Suspect(BatchId(10_000 + number, 10_000 + number), (), "", retry_step=99) for number in range(2_000))
"""Suspects that wait."""
EVERYONE = {1: 1, 2: 1, 3: 1}
"""The step that last applied a result of each member."""


def run_with(*suspects: Suspect, applied_steps: Mapping[int, int | None] = EVERYONE) -> Run:
    """Return a run in step 2 whose round has these suspects, by whom results were applied last in these steps."""
    run = in_round(1, 2, 3, config__init_min_clients=3, config__total_steps=50).run
    members = dict(run.members.by_id)
    for number, step in applied_steps.items():
        member = members[client(number)]
        members[client(number)] = replace(member, conduct=replace(member.conduct, last_applied_step=step))
    run = replace(
        run,
        round=None,
        progress=replace(run.progress, step=2),
        work=replace(run.work, cursor=100, suspects=suspects),
        members=replace(run.members, by_id=members),
    )
    return begin_round(run, Seed(digest_of("seed")))


def who_has(run: Run, batch_id: BatchId) -> ClientId:
    assert run.round is not None
    return next(who for who, parts in run.round.tasks.plan.assignments.items() if parts == (batch_id,))


def blamed(
    run: Run, *failing: ClientId, named: BatchId | None = None, delivering: Sequence[ClientId] = (), text: str = "bad"
) -> Blame:
    """Return the blame of the round if these clients fail on their data and these deliver."""
    assert run.round is not None
    failures = {who: FailureReport(2, 0, "corrupt", text, named) for who in failing}
    included = frozenset(delivering)
    applied = [part for who in delivering for part in run.round.tasks.plan.assignments[who]]
    return blame_after(run, run.round.with_parts(replace(run.round.missing, failures=failures)), included, applied)


def single(blame: Blame) -> Suspect:
    (found,) = blame.suspects
    return found


def test_shared_batch_that_a_deliverer_names_is_attempted_two_steps_later() -> None:
    run = run_with()
    assert run.round is not None
    first = BatchId(*[run.round.tasks.plan.assignments[client(1)][0].start] * 2)
    blame = blamed(run, client(1), named=first)
    assert blame.blamed == (first,)
    assert single(blame) == Suspect(first, (client(1),), "corrupt: bad", (client(1),), 1, 3, from_deliverer=True)


def test_named_batches_that_the_client_was_not_given_blame_all_that_it_was() -> None:
    run = run_with()
    assert run.round is not None
    given = run.round.tasks.plan.assignments[client(1)]
    blame = blamed(run, client(1), named=BatchId(5_000, 5_000))
    assert blame.blamed == given
    assert [(suspect.failures, suspect.against) for suspect in blame.suspects] == [(0, ())] * len(given)


@pytest.mark.parametrize(
    ("others", "is_suspected"), [(MAX_SUSPECTED_INTERVALS - 1, True), (MAX_SUSPECTED_INTERVALS, False)]
)
def test_failure_beyond_the_bound_of_suspects_is_carried(others: int, is_suspected: bool) -> None:
    run = run_with(*FAR[:others])
    assert run.round is not None
    named = BatchId(*[run.round.tasks.plan.assignments[client(1)][0].start] * 2)
    blame = blamed(run, client(1), named=named)
    assert len(blame.suspects) == others + is_suspected
    assert blame.blamed == ((named,) if is_suspected else ())


@pytest.mark.parametrize(
    ("others", "parts"),
    [(MAX_SUSPECTED_INTERVALS - 1, [BatchId(40, 41), BatchId(42, 43)]), (MAX_SUSPECTED_INTERVALS, [BatchId(40, 43)])],
)
def test_suspects_are_bisected_while_there_is_room_for_more(others: int, parts: list[BatchId]) -> None:
    run = run_with(Suspect(BatchId(40, 43), (), ""), *FAR[:others])
    blame = blamed(run, who_has(run, BatchId(40, 43)))
    assert [suspect.batch_id for suspect in blame.suspects if suspect.batch_id.start < 100] == parts
    assert blame.quarantined == ()


def test_halves_of_a_suspect_were_tried_by_nobody_yet() -> None:
    run = run_with(Suspect(BatchId(40, 41), (client(9),), "", (client(9),), 1, 0))
    blame = blamed(run, who_has(run, BatchId(40, 41)))
    assert blame.suspects == (
        Suspect(BatchId(40, 40), (), "corrupt: bad"),
        Suspect(BatchId(41, 41), (), "corrupt: bad"),
    )


def test_part_that_the_client_named_counts_as_a_failure_of_exactly_this() -> None:
    run = run_with(Suspect(BatchId(40, 44), (), ""))
    failing = who_has(run, BatchId(40, 44))
    blame = blamed(run, failing, named=BatchId(42, 42))
    assert blame.suspects == (
        Suspect(BatchId(42, 42), (failing,), "corrupt: bad", (failing,), 1, 3),
        Suspect(BatchId(40, 41), (), "corrupt: bad"),
        Suspect(BatchId(43, 44), (), "corrupt: bad"),
    )


def test_only_a_single_batch_is_paused_for_a_failure() -> None:
    run = run_with(Suspect(BatchId(40, 44), (), ""))
    blame = blamed(run, who_has(run, BatchId(40, 44)), named=BatchId(41, 42))
    named = blame.suspects[0]
    assert (named.batch_id, named.failures, named.retry_step, named.against) == (BatchId(41, 42), 0, 0, ())


def test_client_that_names_all_of_a_suspect_bisects_it() -> None:
    run = run_with(Suspect(BatchId(40, 43), (), ""))
    blame = blamed(run, who_has(run, BatchId(40, 43)), named=BatchId(40, 43))
    assert [suspect.batch_id for suspect in blame.suspects] == [BatchId(40, 41), BatchId(42, 43)]


def test_clients_that_tried_a_suspect_are_the_last_ones_each_once() -> None:
    others = tuple(client(number) for number in range(10, 10 + MAX_TRIED))
    run = run_with(Suspect(BatchId(40, 40), others, "", (), 4, 0))
    failing = who_has(run, BatchId(40, 40))
    assert single(blamed(run, failing)).tried == (*others[1:], failing)
    again = run_with(Suspect(BatchId(40, 40), (client(1), client(2), client(3), client(9)), "", (), 4, 0))
    failing = who_has(again, BatchId(40, 40))
    kept = [who for who in (client(1), client(2), client(3), client(9)) if who != failing]
    assert single(blamed(again, failing)).tried == (*kept, failing)


@pytest.mark.parametrize(("failures", "pause"), [(0, 1), (1, 2), (5, 32), (6, 64), (7, 64)])
def test_pause_before_the_next_attempt_doubles_up_to_the_longest(failures: int, pause: int) -> None:
    run = run_with(Suspect(BatchId(40, 40), (), "", (), failures, 0))
    found = single(blamed(run, who_has(run, BatchId(40, 40))))
    assert (found.failures, found.retry_step) == (failures + 1, 2 + pause)


def test_member_that_failed_before_counts_once_against_a_batch() -> None:
    run = run_with(Suspect(BatchId(40, 40), (), "", (client(8), client(1), client(2), client(3))[1:], 3, 0))
    failing = who_has(run, BatchId(40, 40))
    blame = blamed(run, failing)
    assert [item.against for item in blame.quarantined] == [(client(1), client(2), client(3))]
    fewer = tuple(who for who in (client(1), client(2), client(3)) if who != failing)
    run = run_with(Suspect(BatchId(40, 40), (), "", (failing, fewer[0]), 3, 0))
    assert single(blamed(run, failing)).against == (failing, fewer[0])


def test_member_that_delivered_nothing_is_not_believed_beside_one() -> None:
    suspect = Suspect(BatchId(40, 41), (), "before", (), 0, 0)
    run = run_with(suspect)
    failing = who_has(run, BatchId(40, 41))
    number = next(number for number in (1, 2, 3) if client(number) == failing)
    others = tuple(client(other) for other in (1, 2, 3) if other != number)
    suspect = replace(suspect, tried=others)
    run = run_with(suspect, applied_steps={**EVERYONE, number: None})
    assert single(blamed(run, failing)) == replace(suspect, tried=(*others, failing))


def test_member_is_not_believed_where_somebody_delivers_in_this_round() -> None:
    suspect = Suspect(BatchId(40, 41), (), "before", (), 0, 0)
    run = run_with(suspect, applied_steps=dict.fromkeys((1, 2, 3)))
    failing = who_has(run, BatchId(40, 41))
    deliverer = next(client(number) for number in (1, 2, 3) if client(number) != failing)
    assert single(blamed(run, failing, delivering=[deliverer])) == replace(suspect, tried=(failing,))
    parts = blamed(run, failing).suspects
    assert [part.batch_id for part in parts] == [BatchId(40, 40), BatchId(41, 41)], "where nobody delivers, it is"
    assert not any(part.from_deliverer for part in parts)


def test_failure_of_a_client_whose_result_is_applied_blames_nothing() -> None:
    run = run_with()
    blame = blamed(run, client(1), delivering=[client(1)])
    assert (blame.suspects, blame.blamed) == ((), ())


def test_suspect_that_was_delivered_but_not_applied_stays() -> None:
    run = run_with(Suspect(BatchId(40, 41), (), "before"))
    assert single(blamed(run)).batch_id == BatchId(40, 41)
    assert blamed(run, delivering=[who_has(run, BatchId(40, 41))]).suspects == ()


@pytest.mark.parametrize(
    ("quarantined", "may"), [(MAX_QUARANTINED_INTERVALS - 1, True), (MAX_QUARANTINED_INTERVALS, False)]
)
def test_run_stops_rather_than_quarantine_beyond_the_bound(quarantined: int, may: bool) -> None:
    against = tuple(client(number) for number in (1, 2, 3))
    run = run_with(Suspect(BatchId(40, 40), (), "", against, 3, 0))
    run = run.with_parts(replace(run.work, quarantined=FAR[:quarantined]))
    blame = blamed(run, who_has(run, BatchId(40, 40)))
    assert len(blame.quarantined) == may
    assert blame.must_stop is not may
    assert blame.suspects == (() if may else (Suspect(BatchId(40, 40), (), "corrupt: bad"),))


def test_message_of_a_suspect_is_bounded() -> None:
    run = run_with(Suspect(BatchId(40, 40), (), ""))
    found = single(blamed(run, who_has(run, BatchId(40, 40)), text="x" * 400))
    assert found.message == ("corrupt: " + "x" * 400)[:MAX_SUSPECT_MESSAGE_CHARS]


def test_bound_of_quarantine_counts_what_this_round_quarantines_too() -> None:
    against = tuple(client(number) for number in (1, 2, 3))
    bad = tuple(Suspect(BatchId(number, number), (), "", against, 3, 0) for number in (40, 41))
    before = run_with()
    run = begin_round(
        replace(
            before, round=None, progress=replace(before.progress, step=51), work=replace(before.work, suspects=bad)
        ),
        Seed(digest_of("seed")),
    )
    assert run.round is not None
    failing = tuple(run.round.tasks.plan.assignments)
    blame = blamed(
        run.with_parts(
            replace(run.progress, step=2), replace(run.work, quarantined=FAR[: MAX_QUARANTINED_INTERVALS - 1])
        ),
        *failing,
    )
    assert (len(blame.quarantined), len(blame.suspects), blame.must_stop) == (1, 1, True)


def test_only_single_batches_leave_the_run() -> None:
    against = tuple(client(number) for number in (1, 2, 3))
    run = run_with(Suspect(BatchId(40, 41), (), "", against, 3, 0), *FAR[:MAX_SUSPECTED_INTERVALS])
    blame = blamed(run, who_has(run, BatchId(40, 41)))
    assert blame.quarantined == ()
    assert BatchId(40, 41) in [suspect.batch_id for suspect in blame.suspects]


def test_released_batches_get_the_last_rounds_anew() -> None:
    work = replace(run_with().work, quarantined=FAR[:2])
    after, _ = release(work, BatchesReleased((FAR[1].batch_id,)))
    assert after.quarantined == FAR[:1]
    assert after.carried == (FAR[1].batch_id, *work.carried)
    assert replace(run_with().progress, drain_rounds=3).draining_anew().drain_rounds == 0


@pytest.mark.parametrize(
    ("delivered_lately", "is_void", "missed"), [(True, True, 0), (False, True, 1), (False, False, 0)]
)
def test_failure_on_a_suspect_is_no_miss_of_who_delivers_or_beside_results(
    delivered_lately: bool, is_void: bool, missed: int
) -> None:
    suspect = Suspect(BatchId(40, 41), (), "before")
    run = run_with(suspect, applied_steps=dict.fromkeys((1, 2, 3), 1 if delivered_lately else None))
    assert run.round is not None
    failing = who_has(run, suspect.batch_id)
    current = run.round.with_parts(
        replace(run.round.missing, failures={failing: FailureReport(2, 0, "corrupt", "bad", None)})
    )
    applied = (
        frozenset[ClientId]() if is_void else frozenset({next(who for who in run.members.by_id if who != failing)})
    )
    after, _ = with_conduct(run, current, applied, None if is_void else digest_of("replica 1"))
    assert after.by_id[failing].conduct.missed == missed
