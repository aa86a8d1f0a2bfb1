"""The requests of one model, executed in the order of their numbers, and their results.

The SDK numbers a model's requests from 1 and sends them in any order. Each is answered at once with a *future*, an id
under which its result is fetched later. The rules kept here: requests are executed in the order of their numbers, each
once, however often it is sent; and a request that never arrives delays the others for a bounded time only.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from epochal.runtime.clock import Clock
from epochal.runtime.worker_thread import Worker
from epochal.state.errors import EpochalError, Refused
from epochal.state.refusals import Refusal

log = logging.getLogger(__name__)

MAX_PENDING_BYTES = 256 * 1024**2
"""Bound on a model's waiting requests; the next in turn is always accepted."""
MAX_PENDING = 8192
"""Maximum number of a model's waiting requests, however small."""
MAX_RESULT_BYTES = 512 * 1024**2
MAX_RESULTS = 8192
"""Maximum number of a model's results that are kept; the oldest is dropped first."""
GAP_TIMEOUT_S = 60.0
"""Time after which the requests that follow a missing one are executed without it."""


@dataclass(slots=True)
class Result:
    """The result of a request: `data` of a media type, or the `error` and whose fault it is."""

    finished: asyncio.Event = field(default_factory=asyncio.Event)
    data: bytes = b""
    media_type: str = "application/json"
    error: str | None = None
    category: Literal["user", "server"] = "user"


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A request that waits for its turn.

    Attributes:
        act: executes the request in the worker and returns its result.
        media_type: media type of the result.
        size: size of the request in bytes.
        is_part: whether the next optimizer step depends on it, and fails with it.
    """

    act: Callable[[], bytes]
    media_type: str = "application/json"
    size: int = 0
    is_part: bool = False


class RequestQueue:
    """One model's requests.

    Args:
        worker: executes them.
        failed: called with the reason when a part of a step fails or a request never arrives.
    """

    def __init__(self, worker: Worker, clock: Clock, failed: Callable[[str], None]) -> None:
        self._worker = worker
        self._clock = clock
        self._failed = failed
        self._next = 0
        self._pending: dict[int, QueuedRequest] = {}
        self._pending_bytes = 0
        self._results: dict[int, Result] = {}
        self._finished: deque[int] = deque()
        self._result_bytes = 0
        self._running = False
        self._stuck_since_s: float | None = None

    def submit(self, seq_id: int, request: QueuedRequest) -> None:
        """Add a request, unless it was added before, for `run` to execute. Number 0 creates the model.

        Raises:
            Refused: `overloaded`: too many requests wait.
        """
        if seq_id < self._next or seq_id in self._pending:
            return
        if seq_id != self._next and self._pending_bytes + request.size > MAX_PENDING_BYTES:
            raise Refused(Refusal.OVERLOADED, f"{self._pending_bytes} bytes of requests wait for request {self._next}")
        if seq_id != self._next and len(self._pending) >= MAX_PENDING:
            raise Refused(Refusal.OVERLOADED, f"{len(self._pending)} requests wait for request {self._next}")
        self._pending[seq_id] = request
        self._pending_bytes += request.size
        self._results[seq_id] = Result()

    async def run(self) -> None:
        """Execute the requests whose turn it is; return at once if another call is doing so."""
        if self._running:
            return
        self._running = True
        try:
            while (request := self._pending.pop(self._next, None)) is not None:
                self._pending_bytes -= request.size
                number, self._next = self._next, self._next + 1
                self._stuck_since_s = None
                await self._execute(number, request)
        finally:
            self._running = False
        if self._pending and self._stuck_since_s is None:
            self._stuck_since_s = self._clock.monotonic_s()

    async def result(self, seq_id: int, timeout_s: float) -> Result | None:
        """Wait for a request's result; return None if it has not come after that time.

        Raises:
            Refused: `unknown-future`: there is no such request, or its result is no longer kept.
        """
        found = self._results.get(seq_id)
        if found is None:
            raise Refused(Refusal.UNKNOWN_FUTURE, f"no result of request {seq_id} is kept")
        try:
            async with asyncio.timeout(timeout_s):
                await found.finished.wait()
        except TimeoutError:
            await self._skip_missing()
        return found if found.finished.is_set() else None

    async def _execute(self, number: int, request: QueuedRequest) -> None:
        result = self._results[number]
        try:
            result.data = await self._worker.run(request.act)
            result.media_type = request.media_type
        except EpochalError as error:
            result.error = error.message
        except Exception as error:
            log.error("request_failed", exc_info=error)
            result.error, result.category = "the service failed at this request; its log says more", "server"
        if result.error is not None and request.is_part:
            self._failed(result.error)
        result.finished.set()
        self._finished.append(number)
        self._result_bytes += len(result.data)
        while len(self._finished) > 1 and (self._result_bytes > MAX_RESULT_BYTES or len(self._finished) > MAX_RESULTS):
            self._result_bytes -= len(self._results.pop(self._finished.popleft()).data)

    async def _skip_missing(self) -> None:
        since_s = self._stuck_since_s
        if since_s is None or self._running or self._clock.monotonic_s() - since_s < GAP_TIMEOUT_S:
            return
        missing, self._next = self._next, min(self._pending)
        log.warning("request_missing", extra={"request": missing, "next": self._next})
        self._failed(f"request {missing} never arrived")
        await self.run()
