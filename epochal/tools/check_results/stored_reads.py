"""Reading an object by a signed URL, a range at a time, in a thread: it waits for the event loop, which receives."""

import asyncio
import threading
from dataclasses import dataclass, field

import httpx

from epochal.tools.check_results.leases import NotCarriedOut

READ_ATTEMPTS = 3
"""Number of attempts to read one range."""
READ_TIMEOUT_S = 30.0
RETRY_S = 2.0
"""Time before the next attempt."""


@dataclass(slots=True)
class Reading:
    """The source of an object's bytes, for threads; it is made in the event loop in which its client connects.

    Attributes:
        http: sends requests.
        url: of the object; it may be replaced meanwhile.
        is_over: set when nothing more is to be read.
    """

    http: httpx.AsyncClient
    url: str
    is_over: threading.Event = field(default_factory=threading.Event)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)


def read_range(reading: Reading, start: int, stop: int) -> bytes:
    """Return the bytes `[start, stop)` of an object. Raise `NotCarriedOut` if the store does not give them."""
    reason = "the lease is over"
    for attempt in range(READ_ATTEMPTS):
        if reading.is_over.wait(RETRY_S if attempt else 0):
            break
        try:
            asked = asyncio.run_coroutine_threadsafe(_answer(reading, start, stop), reading.loop)
            answer, data = asked.result()
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            continue
        is_part = answer.status_code == httpx.codes.PARTIAL_CONTENT
        is_it = is_part and answer.headers.get("Content-Range", "").startswith(f"bytes {start}-{stop - 1}/")
        if (is_it or (answer.status_code == httpx.codes.OK and start == 0)) and len(data) == stop - start:
            return data
        reason = f"the object store answered {answer.status_code}, with {len(data)} bytes or more"
    raise NotCarriedOut(f"bytes {start} to {stop}: {reason}")


async def _answer(reading: Reading, start: int, stop: int) -> tuple[httpx.Response, bytes]:
    """Return the answer to a request for a range, and its body; of a longer body little more than was asked for."""
    headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
    data = bytearray()
    async with reading.http.stream("GET", reading.url, headers=headers, timeout=READ_TIMEOUT_S) as answer:
        async for piece in answer.aiter_raw():
            data += piece
            if len(data) > stop - start or reading.is_over.is_set():
                break
    return answer, bytes(data)
