"""Long work is counted cheaply, and shown by the display that is set."""

from collections.abc import AsyncIterator

import pytest

from epochal.runtime import long_work as module
from epochal.runtime.long_work import BYTES, LongWork, counted_pieces, long_work, shown_on


class Recording:
    def __init__(self) -> None:
        self.shown: list[tuple[str, float]] = []
        self.forgotten: list[str] = []

    def show(self, work: LongWork) -> None:
        self.shown.append((work.title, work.done))

    def forget(self, work: LongWork) -> None:
        self.forgotten.append(work.title)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_work_is_shown_at_most_every_update_and_then_forgotten(clock: list[float]) -> None:
    display = Recording()
    with shown_on(display), long_work("reading", 10) as work:
        for _ in range(10):
            clock[0] += module.UPDATE_S * 0.4
            work.advance()
    assert display.shown == [("reading", 3), ("reading", 6), ("reading", 9)]
    assert display.forgotten == ["reading"]


def test_work_that_fails_is_forgotten_too() -> None:
    display = Recording()
    with shown_on(display), pytest.raises(ValueError, match="no"), long_work("reading"):
        raise ValueError("no")
    assert display.forgotten == ["reading"]


def test_work_is_counted_without_a_display() -> None:
    with long_work("reading", 4) as work:
        work.advance(3)
        work.advance()
    assert work.done == 4


def test_the_display_before_is_back_afterwards(clock: list[float]) -> None:
    outer, inner = Recording(), Recording()
    with shown_on(outer):
        with shown_on(inner):
            pass
        with long_work("reading") as work:
            clock[0] += 1
            work.advance()
    assert (outer.shown, inner.shown) == ([("reading", 1)], [])


def test_the_time_left_is_that_of_the_rest_at_the_mean_rate(clock: list[float]) -> None:
    with long_work("reading", 100) as work:
        work.advance(25)
    assert work.seconds_left(clock[0] + 10) == 30.0


def test_no_time_left_is_guessed_of_an_unknown_total(clock: list[float]) -> None:
    with long_work("reading") as work:
        work.advance(25)
    assert work.seconds_left(clock[0] + 10) is None


async def test_pieces_are_counted_by_their_bytes() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"abc"
        yield b"de"

    with long_work("reading", 5, BYTES) as work:
        found = [piece async for piece in counted_pieces(pieces(), work)]
    assert (found, work.done) == ([b"abc", b"de"], 5)
