"""Plain transfers: what arrives slowly is passed on before all of it is there."""

import asyncio

import pytest

from epochal.runtime.http import blocking_bodies as plain_http
from epochal.runtime.http.blocking_bodies import PlainAnswer, PlainHttp, PlainPlace, PlainTimeouts
from tests.support.bounds import BOUND_S
from tests.support.servers.raw_http import head_of, raw_server


async def test_slow_body_is_passed_on_as_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_http, "RECEIVED_S", 0.0)  # every body is slow
    loop, first_taken, taken = asyncio.get_running_loop(), asyncio.Event(), list[bytes]()

    def take(answer: PlainAnswer, offset: int, piece: memoryview) -> None:
        taken.append(bytes(piece))
        loop.call_soon_threadsafe(first_taken.set)

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc")
        await asyncio.wait_for(first_taken.wait(), BOUND_S)
        writer.write(b"def")

    async with raw_server(speak) as port:
        http = PlainHttp(PlainPlace("127.0.0.1", port, ""), PlainTimeouts(BOUND_S, BOUND_S, BOUND_S))
        try:
            await http.get("/", {}, take)
        finally:
            await http.aclose()
    assert taken[0] == b"abc"[: len(taken[0])]
    assert b"".join(taken) == b"abcdef"
