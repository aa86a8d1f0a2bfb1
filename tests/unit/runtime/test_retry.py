"""`runtime/retry.py`: how long to wait, when to give up, and what `Retry-After` asks for."""

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from epochal.runtime.retry import DEFAULT_BOUND_S, MAX_DELAY_S, Backoff, RetryPolicy, retry_after_s
from tests.support.simulate.virtual_time import VirtualClock, in_virtual_time

WEDNESDAY_S = datetime(2015, 10, 21, 7, 28, tzinfo=UTC).timestamp()


class Failed(Exception):
    """Why an attempt failed."""


def policy(jitter: Callable[[], float] = lambda: 1.0, **changes: Any) -> RetryPolicy:
    return RetryPolicy(VirtualClock(), jitter, **changes)


async def waits(backoff: Backoff, count: int, at_least_s: float = 0.0) -> list[float]:
    """Return the next waits of a backoff."""
    loop, found = asyncio.get_running_loop(), []
    for _ in range(count):
        before_s = loop.time()
        await backoff.wait(Failed(), at_least_s)
        found.append(round(loop.time() - before_s, 6))
    return found


@in_virtual_time
async def test_waits_double_up_to_the_longest() -> None:
    assert await waits(policy().begin(), 8) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, MAX_DELAY_S, MAX_DELAY_S]


@in_virtual_time
async def test_waits_of_one_undertaking_may_be_bounded_further() -> None:
    assert await waits(policy().begin(0.3), 4) == [0.1, 0.2, 0.3, 0.3]


@pytest.mark.parametrize(("chance", "wait_s"), [(0.0, 0.05), (0.5, 0.075)])
@in_virtual_time
async def test_jitter_shortens_a_wait_to_half_of_it_at_most(chance: float, wait_s: float) -> None:
    assert await waits(policy(lambda: chance).begin(), 1) == [wait_s]


@in_virtual_time
async def test_reset_begins_with_the_first_wait_again() -> None:
    backoff = policy().begin()
    await waits(backoff, 3)
    backoff.reset()
    assert await waits(backoff, 2) == [0.1, 0.2]


@pytest.mark.parametrize(("asked_s", "wait_s"), [(3.0, 3.0), (900.0, 30.0), (0.01, 0.1)])
@in_virtual_time
async def test_wait_is_as_long_as_asked_for_within_the_bound(asked_s: float, wait_s: float) -> None:
    assert await waits(policy(max_asked_s=30.0).begin(), 1, asked_s) == [wait_s]


@in_virtual_time
async def test_error_is_raised_once_the_bound_has_passed() -> None:
    with pytest.raises(Failed):
        await waits(policy().begin(), 10_000)
    assert DEFAULT_BOUND_S <= asyncio.get_running_loop().time() <= DEFAULT_BOUND_S + MAX_DELAY_S


@in_virtual_time
async def test_bound_of_zero_allows_a_second_attempt_and_no_third() -> None:
    backoff = policy(bound_s=0.0).begin()
    await backoff.wait(Failed())
    with pytest.raises(Failed):
        await backoff.wait(Failed())


@in_virtual_time
async def test_error_is_raised_when_the_other_side_asks_for_more_than_is_left() -> None:
    with pytest.raises(Failed):
        await policy(bound_s=10.0, max_asked_s=60.0).begin().wait(Failed(), 11.0)
    assert asyncio.get_running_loop().time() == 0


@in_virtual_time
async def test_error_is_raised_after_the_last_attempt() -> None:
    backoff = policy(attempts=3, bound_s=math.inf).begin()
    await waits(backoff, 2)
    with pytest.raises(Failed):
        await backoff.wait(Failed())


@in_virtual_time
async def test_thousands_of_failures_keep_the_longest_wait() -> None:
    assert (await waits(policy(bound_s=math.inf).begin(), 2000))[-1] == MAX_DELAY_S


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("0", 0.0), ("17", 17.0), ("Wed, 21 Oct 2015 07:28:30 GMT", 30.0), ("Wed, 21 Oct 2015 07:27:00 GMT", 0.0)]
    + [(header, 0.0) for header in (None, "", "soon", "-3", "1e9", "²")]
    + [("Wed, 21 Oct 99999999999 07:28:30 GMT", 0.0), ("Wed, 21 Oct 2015 07:28:30 +99999999999999999999", 0.0)],
)
def test_retry_after_is_a_number_or_a_date_or_nothing(header: str | None, seconds: float) -> None:
    assert retry_after_s(header, WEDNESDAY_S) == seconds
