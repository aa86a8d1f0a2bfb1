"""A training service without HTTP: its options, and its sessions' requests in turn."""

import hmac
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
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
        sessions: bounds of the sessions of each protocol.
        tinker: whether the `tinker` SDK's own clients are served too, which needs the extra of that name.
        weights_dir: folder for those clients' weights; None refuses to save any.
    """

    limits: ServiceLimits = DEFAULT_LIMITS
    token: str | None = None
    sessions: SessionBounds = DEFAULT_BOUNDS
    tinker: bool = False
    weights_dir: Path | None = None

    def check_token(self, shown: str, wanted_as: str) -> None:
        """Raise `Refused` (`unauthorized`) unless `shown` is the token, or the service has none."""
        if self.token is not None and not hmac.compare_digest(shown.encode(), self.token.encode()):
            raise Refused(Refusal.UNAUTHORIZED, f"this training service {wanted_as}")


class TrainingService:
    """The sessions of Epochal's own clients. `worker` runs the arithmetic, one request after the other."""

    def __init__(self, options: TrainingServiceOptions, worker: Worker, clock: Clock, metrics: TrainingMetrics) -> None:
        self.options = options
        self.metrics = metrics
        self.sessions: SessionTable[TrainingSession] = SessionTable(options.sessions, clock, Refusal.UNKNOWN_SESSION)
        self.bodies = BodyRoom()
        self._worker = worker
        self._waiting = 0

    @property
    def accepting(self) -> bool:
        """Whether another request may wait for the arithmetic."""
        return self._waiting < MAX_WAITING

    def open(self, request: SessionRequest, sender: str) -> SessionOpened:
        """Open a session for a sender. Raise `Refused`: `overloaded`, `body-too-large`, `invalid-body`."""
        session_id = self.sessions.open(TrainingSession(request), sender)
        log.info("session_opened", extra={"sessions": len(self.sessions)})
        return SessionOpened(session_id, self.options.limits, self.options.sessions.idle_s)

    async def run(self, session_id: str, act: Callable[[TrainingSession], T]) -> T:
        """Call `act` with the session, in the worker, in the order of the requests, and return its result.

        Raises:
            Refused: `unknown-session`, `overloaded`, or what `act` raises.
        """
        with self.sessions.using(session_id) as session:
            return await self._run(partial(act, session))

    async def _run(self, call: Callable[[], T]) -> T:
        if not self.accepting:
            raise Refused(Refusal.OVERLOADED, "too many requests are waiting")
        self._waiting += 1
        try:
            return await self._worker.run(call)
        finally:
            self._waiting -= 1

    async def run_once(self, session_id: str, key: tuple[str, str], act: Callable[[TrainingSession], bytes]) -> bytes:
        """Do as `run` does, but answer a request repeated under the same path and key with its first answer."""
        return await self.run(session_id, lambda session: session.once(key, lambda: act(session)))
