"""The hours of a client, against a naive list of the day's minutes."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.run_manager.terms.hours import DAY_MINUTES, Hours
from epochal.state.errors import InvalidInput

START = datetime(2026, 3, 1, tzinfo=UTC)
MINUTES = st.integers(0, DAY_MINUTES - 1)
WINDOWS = st.lists(
    st.tuples(MINUTES, st.integers(0, DAY_MINUTES)).filter(lambda one: one[0] != one[1]), min_size=1, max_size=4
)


def written(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def parsed(windows: list[tuple[int, int]]) -> Hours:
    return Hours.parse("--hours", ",".join(f"{written(first)}-{written(last)}" for first, last in windows))


def naive(windows: list[tuple[int, int]]) -> set[int]:
    """Return the minutes of the day within the windows, walked one after the other."""
    found = set()
    for first, last in windows:
        minute = first
        while minute != last % DAY_MINUTES:
            found.add(minute)
            minute = (minute + 1) % DAY_MINUTES
    return found


@given(
    WINDOWS.filter(lambda all_: all(first != last % DAY_MINUTES for first, last in all_)), MINUTES, st.integers(0, 59)
)
def test_time_is_within_the_hours_as_a_walk_through_the_day_finds(
    windows: list[tuple[int, int]], minute: int, second: int
) -> None:
    assert parsed(windows).hold(START + timedelta(minutes=minute, seconds=second)) == (minute in naive(windows))


@given(WINDOWS, MINUTES, st.integers(0, 59))
def test_next_change_is_the_first_minute_that_differs(windows: list[tuple[int, int]], minute: int, second: int) -> None:
    hours, local = parsed(windows), START + timedelta(minutes=minute, seconds=second)
    at, now = hours.next_change(local), hours.hold(local)
    whole = local.replace(second=0)
    between = [whole + timedelta(minutes=wait) for wait in range(1, int((at - whole).total_seconds() // 60))]
    assert all(hours.hold(time) == now for time in between)
    assert hours.hold(at) != now or at == whole + timedelta(days=1)


@pytest.mark.parametrize("text", ["00-24", "0:00-24"])
def test_whole_day_holds_always(text: str) -> None:
    hours = Hours.parse("--hours", text)
    assert all(hours.hold(START + timedelta(minutes=minute)) for minute in range(DAY_MINUTES))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        ("22", "'22'"),
        ("22-07,", "''"),
        ("22-22", "'22-22'"),
        ("24-07", "'24-07'"),
        ("22-25", "'22-25'"),
        ("22:60-07", "'22:60-07'"),
        ("10pm-7am", "'10pm-7am'"),
        ("22–07", "'22–07'"),
        (",".join(["22-07"] * 25), "25 windows"),
    ],
)
def test_other_hours_are_refused_with_the_part_that_is_wrong(text: str, named: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Hours.parse("--hours", text)
    assert refused.value.message.startswith("--hours ")
    assert f"{named}" in refused.value.message
    assert "allowed: windows of local time, such as 22-07" in refused.value.message
