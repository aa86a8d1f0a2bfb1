"""`coordinator/run/long_polls.py`: pools of members, data servers and strangers; nobody takes another's place."""

import contextlib

import pytest

from epochal.coordinator.run.long_polls import (
    MAX_HOLD_S,
    MAX_MORE_HOLD_S,
    RETRY_AFTER_S,
    LongPolls,
    Pool,
    Reader,
    ReaderKind,
    stranger_at,
)
from epochal.state.errors import Refused
from tests.support.simulate.virtual_time import VirtualClock, in_virtual_time

SMALL = dict.fromkeys(ReaderKind, Pool(total=4, each=2))


def readers(kind: ReaderKind, count: int, each: int) -> list[Reader]:
    return [Reader(kind, str(number)) for number in range(count) for _ in range(each)]


async def places(polls: LongPolls, wanted: list[Reader], stack: contextlib.AsyncExitStack) -> None:
    for reader in wanted:
        await stack.enter_async_context(polls.place(reader, 0.1))


@pytest.fixture(autouse=True)
def small_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.coordinator.run.long_polls.POOLS", SMALL)


@pytest.mark.nightly
async def test_each_kind_fills_its_own_pool_and_gives_it_back() -> None:
    polls = LongPolls()
    async with contextlib.AsyncExitStack() as stack:
        for kind in ReaderKind:
            await places(polls, readers(kind, 2, 2), stack)
        assert polls.count == len(ReaderKind) * 4
        for kind in ReaderKind:
            assert polls.count_of(kind) == 4
            with pytest.raises(Refused, match=f"requests of {kind.value}s"):
                await places(polls, [Reader(kind, "new")], stack)
    assert polls.count == 0
    async with polls.place(Reader(ReaderKind.MEMBER, "new"), 0.1):
        assert polls.count == 1


async def test_reader_beyond_its_own_places_is_refused_alone() -> None:
    polls = LongPolls()
    async with contextlib.AsyncExitStack() as stack:
        await places(polls, readers(ReaderKind.MEMBER, 1, 2), stack)
        with pytest.raises(Refused):
            await places(polls, readers(ReaderKind.MEMBER, 1, 1), stack)
        await places(polls, [Reader(ReaderKind.MEMBER, "another")], stack)


@pytest.mark.parametrize(("wait_s", "held_s"), [(2.0, 2.0), (600.0, MAX_HOLD_S)])
@in_virtual_time
async def test_stranger_hears_its_refusal_late(wait_s: float, held_s: float) -> None:
    polls = LongPolls()
    async with contextlib.AsyncExitStack() as stack:
        await places(polls, readers(ReaderKind.STRANGER, 1, 2), stack)
        started_s = VirtualClock().monotonic_s()
        with pytest.raises(Refused) as refused:
            await stack.enter_async_context(polls.place(Reader(ReaderKind.STRANGER, "0"), wait_s))
        assert held_s <= VirtualClock().monotonic_s() - started_s <= held_s + MAX_MORE_HOLD_S
        assert refused.value.context == {"retry_after_s": RETRY_AFTER_S}


async def test_request_that_does_not_wait_needs_no_place() -> None:
    polls = LongPolls()
    async with contextlib.AsyncExitStack() as stack:
        await places(polls, readers(ReaderKind.STRANGER, 1, 2), stack)
        async with polls.place(Reader(ReaderKind.STRANGER, "0"), 0.0):
            assert polls.count == 2


def test_addresses_of_one_site_are_one_stranger() -> None:
    assert stranger_at("2001:db8:1:2::7") == stranger_at("2001:db8:1:2:ffff::1%eth0")
    assert stranger_at("192.0.2.1") != stranger_at("192.0.2.2")
    assert stranger_at("a socket").is_stranger
