"""The causes of a trainer's waits for samples: fetching, decoding, or packing.

A provider says what of a request is decoding (decompression, parsing of columns) with `decoding`; the rest of it is
fetching. The fetcher divides the time for which a receiver waited for an answer as the request's time is divided.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class WaitTimes:
    """Seconds for which a receiver of samples has waited, by cause."""

    fetching_s: float = 0.0
    decoding_s: float = 0.0
    packing_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All of them."""
        return self.fetching_s + self.decoding_s + self.packing_s

    def add_answer(self, waited_s: float, decoding_part: float) -> None:
        """Add the wait for one answer, of whose time `decoding_part` (0 to 1) was decoding."""
        self.decoding_s += waited_s * decoding_part
        self.fetching_s += waited_s * (1.0 - decoding_part)


@dataclass(slots=True)
class RequestTimes:
    """Seconds that one request took, and those of them that were decoding, summed over threads."""

    total_s: float = 0.0
    decoding_s: float = 0.0

    @property
    def decoding_part(self) -> float:
        """The part of the time that was decoding, from 0 to 1."""
        return min(1.0, max(0.0, self.decoding_s / self.total_s)) if self.total_s > 0 else 0.0


_request: ContextVar[RequestTimes | None] = ContextVar("request_times", default=None)
_is_decoding: ContextVar[bool] = ContextVar("is_decoding", default=False)


@contextmanager
def timed_request() -> Iterator[RequestTimes]:
    """Measure a request to a provider, made in this context; threads that it starts with `to_thread` count too."""
    times = RequestTimes()
    token = _request.set(times)
    began_s = time.perf_counter()
    try:
        yield times
    finally:
        times.total_s = time.perf_counter() - began_s
        _request.reset(token)


@contextmanager
def decoding() -> Iterator[None]:
    """Count the time in this context as decoding of the request that is under way, if there is one.

    Of nested ones the outermost counts.
    """
    times = _request.get()
    if times is None or _is_decoding.get():
        yield
        return
    token = _is_decoding.set(True)
    began_s = time.perf_counter()
    try:
        yield
    finally:
        times.decoding_s += time.perf_counter() - began_s
        _is_decoding.reset(token)
