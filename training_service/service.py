"""A training service without HTTP: its options, and its sessions' requests in turn."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from epochal.runtime.clock import Clock
from epochal.runtime.worker_thread import Worker
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.trainers.remote.service_messages import ServiceLimits, SessionOpened, SessionRequest
from epochal.training_service.body_room import BodyRoom
from epochal.training_service.metrics import TrainingMetrics
from epochal.training_service.sessions import SessionBounds, SessionTable, TrainingSession

log = logging.getLogger(__name__)

MAX_WAITING = 512
"""Maximum number of requests that wait for the arithmetic."""

DEFAULT_LIMITS = ServiceLimits()
DEFAULT_BOUNDS = SessionBounds()

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TrainingServiceOptions:
    """Options of a training service.

    Attributes:
        limits: limits of one request of examples.
        token: the bearer token that clients have to present; None admits every client.
        sessions: bounds of the sessions.
    """

    limits: ServiceLimits = DEFAULT_LIMITS
    token: str | None = None
    sessions: SessionBounds = DEFAULT_BOUNDS


class TrainingService:
    """The sessions of the clients. `worker` runs the arithmetic, one request after the other."""

    def __init__(self, options: TrainingServiceOptions, worker: Worker, clock: Clock, metrics: TrainingMetrics) -> None:
        self.options = options
        self.metrics = metrics
        self.sessions = SessionTable(options.sessions, clock)
        self.bodies = BodyRoom()
        self._worker = worker
        self._waiting = 0

    @property
    def accepting(self) -> bool:
        """Whether another request may wait for the arithmetic."""
        return self._waiting < MAX_WAITING

    def open(self, request: SessionRequest) -> SessionOpened:
        """Open a session. Raise `Refused`: `overloaded`, `body-too-large`, `invalid-body`."""
        session = TrainingSession(request)
        session_id = self.sessions.open(session)
        log.info("session_opened", extra={"sessions": len(self.sessions)})
        return SessionOpened(session_id, self.options.limits, self.options.sessions.idle_s, session.computed)

    async def run(self, session_id: str, act: Callable[[TrainingSession], T]) -> T:
        """Call `act` with the session, in the worker, in the order of the requests, and return its result.

        Raises:
            Refused: `unknown-session`, `overloaded`, or what `act` raises.
        """
        with self.sessions.using(session_id) as session:
            if not self.accepting:
                raise Refused(Refusal.OVERLOADED, "too many requests are waiting")
            self._waiting += 1
            try:
                with self.metrics.waiting.track_inprogress():
                    return await self._worker.run(partial(self._timed, partial(act, session)))
            finally:
                self._waiting -= 1

    def _timed(self, call: Callable[[], T]) -> T:
        with self.metrics.arithmetic.time():
            return call()

    async def run_once(self, session_id: str, key: tuple[str, str], act: Callable[[TrainingSession], bytes]) -> bytes:
        """Do as `run` does, but answer a request repeated under the same path and key with its first answer."""
        return await self.run(session_id, lambda session: session.once(key, lambda: act(session)))
