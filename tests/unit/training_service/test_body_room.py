"""Room for bodies: how many bytes are held, of whom, and how slow a body may be."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.requests import Request
from starlette.types import Message

from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.training_service.body_room import BodyRoom
from tests.support.simulate.virtual_time import run_virtually


def request_of(pieces: AsyncIterator[bytes], announced_bytes: int | None = None) -> Request:
    async def receive() -> Message:
        piece = await anext(pieces, None)
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    headers = [] if announced_bytes is None else [(b"content-length", str(announced_bytes).encode())]
    return Request({"type": "http", "method": "PUT", "headers": headers, "client": ("192.0.2.1", 1)}, receive)


async def pieces_of(count: int, size: int, pause_s: float = 0.0) -> AsyncIterator[bytes]:
    for _ in range(count):
        await asyncio.sleep(pause_s)
        yield b"x" * size


async def refusal_of(room: BodyRoom, request: Request) -> Refusal:
    with pytest.raises(Refused) as refused:
        async with room.body(request, 1000):
            pass
    return refused.value.kind


def test_one_more_is_refused_until_another_is_answered() -> None:
    async def main() -> None:
        room = BodyRoom(100)
        async with room.body(request_of(pieces_of(7, 10)), 1000) as body:
            assert (len(body), room.held_bytes) == (70, 70)
            assert await refusal_of(room, request_of(pieces_of(4, 10))) == Refusal.OVERLOADED
            assert room.held_bytes == 70, "a refused body leaves nothing"
            async with room.body(request_of(pieces_of(3, 10)), 1000):
                assert room.held_bytes == 100
        async with room.body(request_of(pieces_of(7, 10)), 1000):
            assert room.held_bytes == 70

    run_virtually(main())


def test_body_for_which_there_is_no_room_is_not_read() -> None:
    async def main() -> None:
        pieces = pieces_of(8, 10)
        assert await refusal_of(BodyRoom(100), request_of(pieces, announced_bytes=101)) == Refusal.OVERLOADED
        assert len([piece async for piece in pieces]) == 8

    run_virtually(main())


@pytest.mark.parametrize(("size", "pause_s"), [(1, 10.5), (1, 4.0), (10, 0.1)])
def test_body_below_the_minimum_rate_is_refused(size: int, pause_s: float) -> None:
    async def main() -> None:
        room = BodyRoom()
        started_s = asyncio.get_running_loop().time()
        assert await refusal_of(room, request_of(pieces_of(1000, size, pause_s))) == Refusal.BODY_TIMEOUT
        assert asyncio.get_running_loop().time() - started_s == pytest.approx(10, abs=0.1)
        assert room.held_bytes == 0

    run_virtually(main())


def test_body_that_was_fast_may_not_become_slow_for_long() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"x" * 2**25
        async for piece in pieces_of(1000, 1, 10.0):
            yield piece

    async def main() -> None:
        started_s = asyncio.get_running_loop().time()
        with pytest.raises(Refused, match="needed after 10 s: at least 65536 bytes/s"):
            async with BodyRoom().body(request_of(pieces()), 2**26):
                pass
        assert asyncio.get_running_loop().time() - started_s == pytest.approx(30, abs=1)

    run_virtually(main())


def test_arriving_bodies_share_the_minimum_rate() -> None:
    async def main() -> None:
        room = BodyRoom()

        async def send() -> int:
            async with room.body(request_of(pieces_of(40, 4096, 1.0)), 2**20) as body:
                return len(body)

        assert await asyncio.gather(*(send() for _ in range(16))) == [40 * 4096] * 16

    run_virtually(main())
