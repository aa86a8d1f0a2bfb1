"""What a server does wrong over HTTP/2."""

from h2.errors import ErrorCodes

from tests.support.servers.http2_server import Asked, Behave

SIZE = 40_000
"""Size of the ranges that are asked for."""


async def honest(asked: Asked) -> None:
    """Answer rightly."""
    asked.all()


async def resets_in_the_middle(asked: Asked) -> None:
    """Reset the stream after half of a long range."""
    if asked.stop - asked.first <= SIZE // 2:
        return asked.all()
    asked.head()
    asked.body(asked.first, asked.first + SIZE // 2, ends=False)
    return asked.connection.h2.reset_stream(asked.stream, ErrorCodes.INTERNAL_ERROR)


async def refuses_first(asked: Asked) -> None:
    """Refuse the first request for a range."""
    if asked.attempt > 1:
        return asked.all()
    return asked.connection.h2.reset_stream(asked.stream, ErrorCodes.REFUSED_STREAM)


async def says_goodbye_in_the_middle(asked: Asked) -> None:
    """End the connection, as HTTP/2 does, after half of a long range."""
    if asked.stop - asked.first <= SIZE // 2:
        return asked.all()
    asked.head()
    asked.body(asked.first, asked.first + SIZE // 2, ends=False)
    asked.connection.h2.close_connection(ErrorCodes.NO_ERROR, last_stream_id=asked.stream)
    asked.connection.flush()
    raise ConnectionError


async def hangs_up_in_the_middle(asked: Asked) -> None:
    """Close the connection after half of a long range."""
    if asked.stop - asked.first <= SIZE // 2:
        return asked.all()
    asked.head()
    asked.body(asked.first, asked.first + SIZE // 2, ends=False)
    asked.connection.flush()
    await asked.connection.writer.drain()
    raise ConnectionError


async def wants_http1(asked: Asked) -> None:
    """Ask for HTTP/1.1."""
    asked.connection.h2.reset_stream(asked.stream, ErrorCodes.HTTP_1_1_REQUIRED)


def frames(frame: bytes) -> Behave:
    """Answer with 10,000 of these bytes."""

    async def behave(asked: Asked) -> None:
        for _ in range(100):
            asked.connection.writer.write(frame * 100)
            await asked.connection.writer.drain()

    return behave


def answers(length: int | None = None, extra: int = 0, **fields: str) -> Behave:
    """Answer with another length, number of bytes, or head."""

    async def behave(asked: Asked) -> None:
        asked.head(content_length="" if length is None else str(length), **fields)
        asked.body(asked.first, asked.stop + extra)

    return behave


async def unfolds(asked: Asked) -> None:
    """Send a small head that says much."""
    asked.connection.h2.send_headers(asked.stream, [(":status", "206"), *[("x", "y" * 2000)] * 100])


PING = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + b"12345678"
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
EMPTY_DATA = bytes([0, 0, 0, 0, 0, 0, 0, 0, 1])
UNKNOWN = bytes([0, 0, 0, 99, 0, 0, 0, 0, 1])
LARGE = bytes([255, 255, 255, 0, 0, 0, 0, 0, 1])
ENDLESS_GOODBYE = bytes([255, 255, 255, 7, 0, 0, 0, 0, 0])

BAD = {
    "a flood of PING": (frames(PING), "not HTTP/2: more than 1000 frames"),
    "a flood of SETTINGS": (frames(SETTINGS), "not HTTP/2: more than 1000 frames"),
    "a flood of unknown frames": (frames(UNKNOWN), "not HTTP/2: more than 1000 frames"),
    "a flood of empty DATA": (frames(EMPTY_DATA), "not HTTP/2"),
    "a frame of 16 MiB": (frames(LARGE), "not HTTP/2: a frame of 16777215 bytes"),
    "a goodbye without an end": (frames(ENDLESS_GOODBYE), "not HTTP/2: a frame of 16777215 bytes"),
    "no frames": (frames(b"HTTP/1.1 200 OK\r\n\r\n"), "not HTTP/2"),
    "more than its length": (answers(10), "not HTTP/2"),
    "less than its length": (answers(SIZE + 1), "more bytes than|not HTTP/2"),
    "a length of many digits": (answers(int("9" * 30)), "not HTTP/2"),
    "2^63 bytes": (answers(2**63), "not HTTP/2"),
    "more than its range": (answers(extra=100), "sent more bytes than the 40000"),
    "less than its range": (answers(extra=-100), "sent 39900 bytes where it announced 40000"),
    "another range": (answers(content_range="bytes 5-9/300000"), r"answered bytes \[5, 10\)"),
    "a long head": (answers(x="x" * 30_000), "not HTTP/2: a head of more than 16384 bytes"),
    "a head that unfolds": (unfolds, "not HTTP/2"),
    "a secret in a bad head": (answers(location=" https://secret "), "not HTTP/2"),
    "trouble": (answers(status="503"), "answered 503 Service Unavailable"),
}
