"""`runtime/connections/token_buckets.py`: token buckets, against a count of what they may let through."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.runtime.connections import token_buckets
from epochal.runtime.connections.token_buckets import TokenBuckets

BURST, PERIOD_S = 3, 5.0


@given(st.lists(st.floats(min_value=0, max_value=20), max_size=60))
def test_any_span_lets_a_burst_and_one_a_period_through(waits_s: list[float]) -> None:
    buckets = TokenBuckets[str](BURST, PERIOD_S)
    now_s, taken_s = 0.0, list[float]()
    for wait_s in waits_s:
        now_s += wait_s
        if not buckets.take("sender", now_s):
            taken_s.append(now_s)
    for first, since_s in enumerate(taken_s):
        for last, until_s in enumerate(taken_s[first:], first):
            assert last - first + 1 <= BURST + (until_s - since_s) / PERIOD_S + 1e-6


def test_refusal_names_the_time_after_which_there_is_a_token() -> None:
    buckets = TokenBuckets[str](BURST, PERIOD_S)
    assert [buckets.take("sender", 100.0) for _ in range(BURST)] == [0.0] * BURST
    wait_s = buckets.take("sender", 101.0)
    assert wait_s == pytest.approx(4.0)
    assert buckets.take("sender", 101.0 + wait_s + 1e-6) == 0.0
    assert buckets.take("another", 101.0) == 0.0


def test_another_occasion_fills_the_bucket() -> None:
    buckets = TokenBuckets[str](BURST, PERIOD_S)
    for occasion in ("train", "witness"):
        assert [bool(buckets.take("sender", 0.0, occasion)) for _ in range(BURST + 1)] == [False] * BURST + [True]


def test_longest_silent_sender_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_buckets, "MAX_BUCKETS", 2)
    buckets = TokenBuckets[str](1, PERIOD_S)
    assert [buckets.take(sender, 0.0) for sender in "abac"] == [0.0, 0.0, PERIOD_S, 0.0]
    assert buckets.take("a", 0.0) == PERIOD_S
    assert buckets.take("b", 0.0) == 0.0


def test_debt_is_paid_before_there_is_another_token() -> None:
    buckets = TokenBuckets[str](BURST, PERIOD_S)
    assert buckets.wait_s("sender", 0.0) == 0.0
    buckets.spend("sender", BURST + 2.0)
    assert buckets.wait_s("sender", 0.0) == 3 * PERIOD_S


def test_tokens_given_back_fill_no_bucket_beyond_its_burst() -> None:
    buckets = TokenBuckets[str](BURST, PERIOD_S)
    for count in (1.0, -5.0):
        assert buckets.wait_s("sender", 0.0) == 0.0
        buckets.spend("sender", count)
    assert [bool(buckets.take("sender", 0.0)) for _ in range(BURST + 1)] == [False] * BURST + [True]
