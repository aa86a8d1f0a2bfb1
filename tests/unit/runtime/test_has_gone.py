"""`runtime/http/bodies.py`, `has_gone`: whether the sender of a waiting request is still there, without waiting."""

import asyncio

import pytest

from epochal.runtime.http.bodies import has_gone

EMPTY_BODY: dict[str, object] = {"type": "http.request", "body": b"", "more_body": False}
GONE: dict[str, object] = {"type": "http.disconnect"}


@pytest.mark.parametrize("at_hand", [[GONE], [EMPTY_BODY, GONE]])
async def test_closed_connection_is_noticed(at_hand: list[dict[str, object]]) -> None:
    messages = iter(at_hand)

    async def receive() -> dict[str, object]:
        return next(messages)

    assert has_gone(receive)


@pytest.mark.parametrize("at_hand", [[], [EMPTY_BODY]])
async def test_open_connection_is_asked_again_and_again(at_hand: list[dict[str, object]]) -> None:
    messages, closed = iter(at_hand), asyncio.Event()

    async def receive() -> dict[str, object]:
        for message in messages:
            return message
        await closed.wait()
        return GONE

    assert not has_gone(receive)
    assert not has_gone(receive)
    closed.set()
    assert has_gone(receive)
