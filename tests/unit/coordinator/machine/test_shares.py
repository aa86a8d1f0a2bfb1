"""The shares of a round by members' speeds, against a naive oracle, and who has a turn."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.coordinator.machine.parts.speed import Speed, TimedDelivery
from epochal.coordinator.machine.shares import (
    NEARLY,
    ROUNDS_PER_TURN,
    Sharing,
    Timed,
    ending_together,
    for_exams,
    shared_roster,
)
from epochal.state.assignment import assign_data_for_state
from epochal.state.documents import MAX_SHARE, Roster, WorkList
from epochal.state.intervals import BatchId, total_batches
from epochal.state.share_ceiling import PARTS
from epochal.state.wire import ClientId, Seed

SEED = Seed("07" * 32)
TIMES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30), st.integers(1, 40)), min_size=1, max_size=12)
"""Start, time per batch, and bound of each client."""


def timed(*clients: tuple[int, int, int], waits: list[int] | None = None) -> Timed:
    fixed, each, most = (np.array(values, np.int64) for values in zip(*clients, strict=True))
    return Timed(fixed, each, most, np.array(waits or [1] * len(clients), np.int64))


def together(clients: Timed, total: int, last: list[int] | None = None, *, is_for_all: bool = False) -> list[int]:
    known = np.array(last or [0] * len(clients.most), np.int64)
    found: list[int] = ending_together(clients, total, known, is_for_all=is_for_all).tolist()
    return found


def shortest(clients: list[tuple[int, int, int]], total: int) -> int:
    """Return the smallest time in which all batches are done, by giving each to whoever ends it first."""
    counts, end = [0] * len(clients), 0
    for _ in range(total):
        ends = [
            (fixed + (count + 1) * each, place)
            for place, ((fixed, each, most), count) in enumerate(zip(clients, counts, strict=True))
            if count < most
        ]
        time, place = min(ends)
        counts[place], end = counts[place] + 1, max(end, time)
    return end


def test_client_on_probation_has_what_it_has_earned_of_an_equal_part() -> None:
    clients = [sharing(number, last=20)._replace(trusted=trusted) for number, trusted in enumerate((19, 19, 19, 10))]
    shares = shares_of(roster_of(*clients, total=80))
    assert shares[3] == 20 * 10 // 19
    assert sum(shares) == 80


def test_nobody_is_on_probation_where_all_have_earned_alike() -> None:
    alike = [sharing(number, batch_us=1000 * (1 + number))._replace(trusted=3) for number in range(4)]
    assert shares_of(roster_of(*alike, total=40)) == shares_of(
        roster_of(*(one._replace(trusted=0) for one in alike), total=40)
    )


@given(new=st.integers(1, 200), old=st.integers(1, 8), total=st.integers(2, 300), earned=st.integers(1, 9))
def test_keys_that_have_earned_little_have_a_quarter_together_however_many(
    new: int, old: int, total: int, earned: int
) -> None:
    clients = [
        sharing(number, last=100)._replace(trusted=19 if number < old else earned) for number in range(old + new)
    ]
    shares = shares_of(roster_of(*clients, total=total))
    assert sum(shares) == total
    assert sum(shares[old:]) <= max(1, total // 4)


@given(
    unverified=st.lists(st.booleans(), min_size=1, max_size=60),
    earned=st.lists(st.integers(1, 19), min_size=1, max_size=8),
    total=st.integers(2, 300),
    seed=st.integers(0, 9),
)
def test_keys_without_verified_work_have_a_quarter_together(
    unverified: list[bool], earned: list[int], total: int, seed: int
) -> None:
    keys = [sharing(number) if is_applied else newcomer(number) for number, is_applied in enumerate(unverified)]
    others = [sharing(100 + number, last=99)._replace(trusted=rounds) for number, rounds in enumerate(earned)]
    roster = roster_of(*keys, *others, total=total)
    given_out = assign_data_for_state(roster, WorkList((), (BatchId(0, total - 1),)), SEED, Seed(f"{seed:064x}"))
    assert 1 <= sum(total_batches(given_out[one.client_id]) for one in keys) <= max(1, total // 4)
    assert set(roster.electorate()) == {one.client_id for one in others}, "they are no witnesses either"


@given(new=st.integers(1, 60), earned=st.lists(st.integers(1, 19), min_size=1, max_size=8), total=st.integers(1, 300))
def test_exams_take_nothing_from_those_whose_results_count(new: int, earned: list[int], total: int) -> None:
    examined = [newcomer(number)._replace(has_exam=True) for number in range(new)]
    proven = [sharing(100 + number, last=99)._replace(trusted=rounds) for number, rounds in enumerate(earned)]
    exams = for_exams([*examined, *proven], total)
    assert 1 <= exams <= max(1, total // 3)
    roster = roster_of(*examined, *proven, total=total + exams, exams=exams)
    given_out = assign_data_for_state(roster, WorkList((), (BatchId(0, total + exams - 1),)), SEED)
    assert sum(total_batches(given_out[one.client_id]) for one in proven) == total


@given(
    claims=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    new=st.lists(st.integers(1, 60), max_size=6),
    last=st.integers(1, 30),
    total=st.integers(1, 100),
)
def test_nobody_gets_more_than_its_claim_where_claims_leave_room(
    claims: list[int], new: list[int], last: int, total: int
) -> None:
    """Also where the others would have to do more than twice what they did last."""
    proven = [sharing(number, last=last, claim=claim) for number, claim in enumerate(claims)]
    others = [newcomer(100 + number)._replace(claim=claim) for number, claim in enumerate(new)]
    for clients in ([*proven, *others], others):
        if sum(one.claim for one in clients if one.is_proven or not claims or clients is others) < total:
            continue
        roster = roster_of(*clients, total=total)
        given_out = assign_data_for_state(roster, WorkList((), (BatchId(0, total - 1),)), SEED)
        assert all(total_batches(given_out[one.client_id]) <= one.claim for one in clients)


def test_where_all_are_new_there_are_no_exams() -> None:
    assert for_exams([newcomer(number)._replace(has_exam=True) for number in range(9)], 300) == 0


@given(applied=st.lists(st.booleans(), min_size=1, max_size=20), total=st.integers(1, 300))
def test_where_nobody_has_verified_work_nobody_has_less(applied: list[bool], total: int) -> None:
    clients = [sharing(number) if is_applied else newcomer(number) for number, is_applied in enumerate(applied)]
    proven = {entry.client_id: entry.proven for entry in roster_of(*clients, total=total).clients}
    assert proven == {one.client_id: one.is_proven for one in clients}


def sharing(number: int, *, fixed_us: int = 0, batch_us: int = 1000, last: int = 10, claim: int = MAX_SHARE) -> Sharing:
    """Return a client that delivered so many batches in the round before, step 6."""
    speed = Speed((TimedDelivery(last, 1, 0),), fixed_us, batch_us)
    return Sharing(ClientId(f"{number:032x}"), claim, 2 * last, True, 6, speed)


def newcomer(number: int, earned: int = 0) -> Sharing:
    return Sharing(ClientId(f"{number:032x}"), MAX_SHARE, earned, False, 0, Speed())


def shares_of(roster: Roster) -> list[int]:
    return [entry.share for entry in roster.clients]


def roster_of(*clients: Sharing, total: int, step: int = 7, ceiling: int | None = PARTS, exams: int = 0) -> Roster:
    return shared_roster(clients, total, ceiling, step, SEED, exams)


# Ending together


@given(TIMES, st.integers(1, 120))
def test_last_client_ends_as_soon_as_it_can(clients: list[tuple[int, int, int]], total: int) -> None:
    most = sum(bound for _, _, bound in clients)
    total = min(total, most)
    arranged = timed(*clients)
    counts = together(arranged, total)
    assert sum(counts) == total
    assert all(0 <= count <= bound for count, (_, _, bound) in zip(counts, clients, strict=True))
    soonest = shortest(clients, total)
    able = sum(fixed + each <= soonest * 5 // 4 for fixed, each, _ in clients)
    ends = arranged.ends_us(np.array(counts, np.int64))
    assert ends == soonest if able <= total else ends <= soonest * 5 // 4


def test_clients_of_unlike_speeds_get_batches_in_proportion() -> None:
    assert together(timed(*((0, each, 99) for each in (80, 40, 20, 10))), 30) == [2, 4, 8, 16]


def test_start_and_upload_count_as_time() -> None:
    assert together(timed((0, 10, 99), (50, 10, 99)), 15) == [10, 5]


def test_one_batch_too_many_goes_to_the_first_in_the_order() -> None:
    assert together(timed((0, 10, 9), (0, 10, 9), (0, 10, 9)), 7) == [3, 2, 2]


def test_bounds_are_kept_and_the_others_do_the_rest() -> None:
    assert together(timed((0, 10, 2), (0, 10, 99), (0, 10, 99)), 12) == [2, 5, 5]


@pytest.mark.parametrize(("last", "stays"), [([10, 10], True), ([9, 11], False), ([10, 9], False)])
def test_shares_that_nearly_end_together_stay(last: list[int], stays: bool) -> None:
    clients = timed((0, 1000, 99), (0, 1000 * NEARLY[0] // NEARLY[1], 99))
    assert (together(clients, 20, last) == last) is stays


def test_client_that_would_end_two_percent_later_gets_less() -> None:
    assert together(timed((0, 1000, 999), (0, 1020, 999)), 200, [100, 100]) == [101, 99]


# Turns


def test_clients_have_their_turn_where_there_are_fewer_batches() -> None:
    waits, had = [1] * 10, list[int]()
    for _ in range(20):
        counts = together(timed(*((0, 100 + place, 2) for place in range(10)), waits=waits), 4)
        assert sorted(counts) == [0] * 6 + [1] * 4
        had += [place for place, count in enumerate(counts) if count]
        waits = [1 if count else wait + 1 for wait, count in zip(waits, counts, strict=True)]
    assert min(had.count(place) for place in range(10)) >= 6


def test_client_too_slow_for_the_others_has_its_turn_in_rounds_for_all() -> None:
    clients = timed((0, 10, 99), (0, 10, 99), (900, 10, 99), (950, 10, 99), waits=[1, 1, 5, 9])
    assert together(clients, 20) == [10, 10, 0, 0]
    assert together(clients, 20, is_for_all=True) == [9, 9, 1, 1]


def test_slow_clients_take_at_most_half_of_a_round_for_all() -> None:
    slow = [(900, 10, 99)] * 6
    counts = together(timed((0, 10, 99), *slow, waits=[1, *range(6)]), 8, is_for_all=True)
    assert counts == [4, 0, 0, 1, 1, 1, 1], "those that have waited longest"


# The roster


def test_shares_are_the_numbers_of_batches() -> None:
    clients = [sharing(number, batch_us=1000 * 2**number) for number in range(4)]
    assert shares_of(roster_of(*clients, total=30)) == [16, 8, 4, 2]


def test_client_gets_no_more_than_its_claim_and_than_twice_its_last_round() -> None:
    claiming, growing = sharing(0, claim=3), sharing(1, last=4)
    assert shares_of(roster_of(claiming, growing, sharing(2, last=50), sharing(3, last=50), total=60)) == [3, 8, 25, 24]


def test_bounds_without_room_for_the_round_are_shares_in_proportion() -> None:
    assert shares_of(roster_of(sharing(0, claim=1), sharing(1, claim=3), total=40)) == [10, 30]


def test_client_without_a_known_speed_counts_as_usual() -> None:
    unknown = sharing(2)._replace(speed=Speed())
    assert shares_of(roster_of(sharing(0), sharing(1), unknown, total=12)) == [4, 4, 4]


def test_ceiling_bounds_the_fastest() -> None:
    clients = [sharing(number, batch_us=10 if number == 0 else 1000, last=50) for number in range(10)]
    assert shares_of(roster_of(*clients, total=100, ceiling=None))[0] == 20
    assert shares_of(roster_of(*clients, total=100, ceiling=PARTS // 10)) == [10] * 10


def test_newcomers_get_half_of_an_equal_part() -> None:
    clients = [sharing(0, last=40), sharing(1, last=40), newcomer(2), newcomer(3)]
    assert shares_of(roster_of(*clients, total=80)) == [30, 30, 10, 10]
    assert [entry.proven for entry in roster_of(*clients, total=80).clients] == [True, True, False, False]


@pytest.mark.parametrize(("slow_us", "part"), [(1000, 10), (1250, 8), (1900, 5), (10**6, 5)])
def test_newcomers_get_less_where_the_slowest_would_need_longer(slow_us: int, part: int) -> None:
    clients = [*(sharing(number, last=40) for number in range(3)), sharing(3, batch_us=slow_us, last=40)]
    assert shares_of(roster_of(*clients, newcomer(4), total=100))[-1] == part


def test_one_slow_client_of_many_makes_no_newcomers_part_smaller() -> None:
    clients = [*(sharing(number, last=40) for number in range(20)), sharing(20, batch_us=10**6, last=40)]
    assert shares_of(roster_of(*clients, newcomer(21), total=440))[-1] == 10


def test_newcomers_get_a_quarter_where_no_speed_is_known() -> None:
    clients = [sharing(number)._replace(speed=Speed()) for number in range(2)]
    assert shares_of(roster_of(*clients, newcomer(2), total=60))[-1] == 5


def test_newcomer_that_missed_gets_less() -> None:
    assert shares_of(roster_of(sharing(0, last=40), newcomer(1), newcomer(2, earned=2), total=80)) == [65, 13, 2]


def test_first_round_is_shared_out_evenly() -> None:
    assert shares_of(roster_of(*(newcomer(number) for number in range(3)), total=30)) == [10, 10, 10]


@given(
    st.lists(st.tuples(st.integers(0, 10**8), st.integers(1, 10**8), st.integers(1, 50)), min_size=1, max_size=12),
    st.integers(0, 12),
    st.integers(1, 300),
    st.integers(1, 70),
)
def test_assignment_has_exactly_the_shares_that_are_planned(
    times: list[tuple[int, int, int]], newcomers: int, total: int, step: int
) -> None:
    proven = [
        sharing(number, fixed_us=fixed, batch_us=each, last=last) for number, (fixed, each, last) in enumerate(times)
    ]
    others = [newcomer(100 + number) for number in range(newcomers)]
    roster = roster_of(*proven, *others, total=total, step=step, ceiling=None)
    assigned = assign_data_for_state(roster, WorkList((), (BatchId(0, total - 1),)), SEED)
    assert sum(map(total_batches, assigned.values())) == total
    for entry in roster.clients:
        if entry.proven and total > 1:
            assert total_batches(assigned[ClientId(entry.client_id)]) == entry.share


def test_round_for_all_comes_every_so_many_steps() -> None:
    slow = sharing(2, fixed_us=10**8)
    given = [
        bool(shares_of(roster_of(sharing(0), sharing(1), slow, total=20, step=step))[2])
        for step in range(1, 2 * ROUNDS_PER_TURN + 1)
    ]
    assert [step for step, has_work in enumerate(given, 1) if has_work] == [ROUNDS_PER_TURN, 2 * ROUNDS_PER_TURN]


def test_order_of_the_clients_does_not_matter() -> None:
    clients = [sharing(number, batch_us=1000 + number) for number in range(7)]
    assert roster_of(*clients, total=40) == roster_of(*reversed(clients), total=40)


def test_ten_thousand_clients_get_their_shares_in_fifty_milliseconds() -> None:
    clients = [sharing(number, fixed_us=97 * number % 9973, batch_us=1000 + 7 * number) for number in range(10_000)]

    def cost_s(step: int) -> float:
        began_s = time.process_time()
        roster_of(*clients, total=60_000, step=step)
        return time.process_time() - began_s

    assert any(cost_s(step) <= 0.05 for step in range(7, 57)), "of many tries the quickest: others use the core, too"
