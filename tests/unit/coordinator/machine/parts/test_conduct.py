"""How a client's conduct follows from what it does: its share of the work, and its rests."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.coordinator.machine.parts.conduct import (
    FIRST_REST_S,
    LONGEST_REST_S,
    MAX_REASON_CHARS,
    MAX_RESTS_COUNTED,
    MISSES_BEFORE_REST,
    NEWCOMER,
    RESULTS_PER_MISS,
    Conduct,
)


def after_results(conduct: Conduct, count: int, batches: int = 4) -> Conduct:
    for step in range(1, count + 1):
        conduct = conduct.with_result(batches, step)
    return conduct


def after_misses(conduct: Conduct, count: int, now_s: float = 0.0, batches: int = 4) -> Conduct:
    for _ in range(count):
        conduct = conduct.with_miss("late", now_s, batches=batches)
    return conduct


def test_member_may_get_twice_what_it_delivered_last() -> None:
    assert NEWCOMER.earned == 0
    assert [NEWCOMER.with_result(batches, 1).earned for batches in (1, 2, 7)] == [2, 4, 14]


def test_member_may_get_half_of_what_it_missed_last_and_one_batch_at_least() -> None:
    settled = after_results(NEWCOMER, 5, batches=16)
    assert [after_misses(settled, 1, batches=batches).earned for batches in (16, 5, 1)] == [8, 2, 1]
    assert settled.with_miss("no checkpoint", 0.0).earned == settled.earned


def test_member_that_is_sent_to_rest_starts_with_one_batch() -> None:
    settled = after_results(NEWCOMER, 30, batches=1000)
    assert [after_misses(settled, count, batches=1000).earned for count in (2, 3)] == [500, 1]


def test_three_misses_send_to_rest_and_two_do_not() -> None:
    assert MISSES_BEFORE_REST == 3
    assert after_misses(NEWCOMER, 2).rests_until_s is None
    rested = after_misses(NEWCOMER, 3, now_s=100.0)
    assert rested.rest_s(100.0) == FIRST_REST_S
    assert rested.is_resting(100.0 + FIRST_REST_S - 0.1)
    assert not rested.is_resting(100.0 + FIRST_REST_S)
    assert rested.rest_s(100.0 + FIRST_REST_S) is None


def test_each_further_miss_rests_twice_as_long_up_to_the_longest() -> None:
    conduct, now_s, rests = after_misses(NEWCOMER, 2), 0.0, []
    for _ in range(10):
        conduct = conduct.with_miss("late", now_s)
        rests.append(conduct.rest_s(now_s))
        now_s = conduct.rests_until_s or 0.0
    assert rests == [10, 20, 40, 80, 160, 320, 640, 900, 900, 900]
    assert LONGEST_REST_S == 900
    assert conduct.rests == MAX_RESTS_COUNTED


def test_results_make_up_for_misses_and_for_rests() -> None:
    rested = after_misses(NEWCOMER, 3)
    assert after_results(rested, 1).rests == 0
    assert [after_results(rested, n).missed for n in (RESULTS_PER_MISS - 1, RESULTS_PER_MISS)] == [3, 2]
    assert not after_results(rested, 3 * RESULTS_PER_MISS - 1).is_good
    assert after_results(rested, 3 * RESULTS_PER_MISS).is_good


def test_miss_between_results_makes_them_count_anew() -> None:
    conduct = after_misses(NEWCOMER, 1)
    conduct = after_misses(after_results(conduct, RESULTS_PER_MISS - 1), 1)
    assert after_results(conduct, RESULTS_PER_MISS - 1).missed == 2


@pytest.mark.parametrize(("missing_every", "rests"), [(RESULTS_PER_MISS + 1, False), (RESULTS_PER_MISS, True)])
def test_one_missed_round_in_nine_can_go_on_for_ever(missing_every: int, rests: bool) -> None:
    conduct = NEWCOMER
    for step in range(1, 500):
        late = step % missing_every == 0
        conduct = conduct.with_miss("late", 0.0) if late else conduct.with_result(8, step)
    assert (conduct.rests_until_s is not None) is rests


def test_bad_attestations_count_apart_until_a_proper_one() -> None:
    conduct = NEWCOMER
    for _ in range(2):
        conduct = after_results(conduct.with_bad_attestation("none", 0.0), 50)
    assert (conduct.unattested, conduct.missed) == (2, 0)
    assert conduct.with_attestation().is_good
    rested = conduct.with_bad_attestation("none", 0.0)
    assert rested.rest_s(0.0) == FIRST_REST_S
    assert after_results(rested, 50).rests == 1, "results do not make up for attestations"


def test_reason_of_a_miss_is_kept_and_bounded() -> None:
    assert NEWCOMER.with_miss("x" * 1000, 0.0).last_miss == "x" * MAX_REASON_CHARS


@settings(max_examples=settings().max_examples * 2)
@given(st.lists(st.tuples(st.sampled_from(["result", "miss", "bad", "proper"]), st.integers(1, 10**6))))
def test_conduct_stays_within_its_bounds_whatever_happens(events: list[tuple[str, int]]) -> None:
    conduct, now_s, most = NEWCOMER, 0.0, 1
    for step, (event, batches) in enumerate(events, 1):
        most = max(most, 2 * batches)
        match event:
            case "result":
                conduct = conduct.with_result(batches, step)
            case "miss":
                conduct = conduct.with_miss("late", now_s, batches=batches)
            case "bad":
                conduct = conduct.with_bad_attestation("none", now_s)
            case _:
                conduct = conduct.with_attestation()
        now_s += 1.0
        assert 0 <= conduct.earned <= most
        assert 0 <= conduct.misses <= MISSES_BEFORE_REST
        assert 0 <= conduct.rests <= MAX_RESTS_COUNTED
        assert (conduct.rest_s(now_s) or 0.0) <= LONGEST_REST_S
