"""Reading an object by a signed URL, a range at a time. It blocks."""

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
    """The source of an object's bytes: a URL that may be replaced meanwhile, and whether to continue."""

    url: str
    is_over: threading.Event = field(default_factory=threading.Event)


def read_range(http: httpx.Client, reading: Reading, start: int, stop: int) -> bytes:
    """Return the bytes `[start, stop)` of an object. Raise `NotCarriedOut` if the store does not give them."""
    reason = "the lease is over"
    for attempt in range(READ_ATTEMPTS):
        if reading.is_over.wait(RETRY_S if attempt else 0):
            break
        try:
            answer, data = _answer(http, reading, start, stop)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            continue
        is_part = answer.status_code == httpx.codes.PARTIAL_CONTENT
        is_it = is_part and answer.headers.get("Content-Range", "").startswith(f"bytes {start}-{stop - 1}/")
        if (is_it or (answer.status_code == httpx.codes.OK and start == 0)) and len(data) == stop - start:
            return data
        reason = f"the object store answered {answer.status_code}, with {len(data)} bytes or more"
    raise NotCarriedOut(f"bytes {start} to {stop}: {reason}")


def _answer(http: httpx.Client, reading: Reading, start: int, stop: int) -> tuple[httpx.Response, bytes]:
    """Return the answer to a request for a range, and its body; of a longer body little more than was asked for."""
    headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
    data = bytearray()
    with http.stream("GET", reading.url, headers=headers) as answer:
        for piece in answer.iter_raw():
            data += piece
            if len(data) > stop - start or reading.is_over.is_set():
                break
    return answer, bytes(data)
