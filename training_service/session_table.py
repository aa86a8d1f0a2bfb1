"""Open sessions by their secret ids: bounded in number, and forgotten when nobody used them for long."""

import secrets
from dataclasses import dataclass
from typing import Generic, TypeVar

from runtime.clock import Clock
from state.errors import Refused
from state.refusals import Refusal

MAX_SESSIONS = 256
IDLE_SESSION_S = 3600.0

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class SessionBounds:
    """How many sessions there may be.

    Attributes:
        most: maximum number of open sessions.
        idle_s: a session that nobody used for so long makes room for another.
    """

    most: int = MAX_SESSIONS
    idle_s: float = IDLE_SESSION_S


class SessionTable(Generic[S]):
    """Sessions of one protocol.

    Args:
        missing: the refusal for an id that is not, or no longer, one of a session.
    """

    def __init__(self, bounds: SessionBounds, clock: Clock, missing: Refusal) -> None:
        self._bounds = bounds
        self._clock = clock
        self._missing = missing
        self._sessions: dict[str, S] = {}
        self._used_at_s: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, session: S) -> str:
        """Add a session and return its id, which nobody can guess. Raise `Refused`: `overloaded`."""
        now_s = self._clock.monotonic_s()
        for session_id in [key for key, at_s in self._used_at_s.items() if at_s < now_s - self._bounds.idle_s]:
            self.close(session_id)
        if len(self) >= self._bounds.most:
            raise Refused(Refusal.OVERLOADED, f"{self._bounds.most} sessions are open, the maximum")
        session_id = secrets.token_hex(16)
        self._sessions[session_id], self._used_at_s[session_id] = session, now_s
        return session_id

    def use(self, session_id: str) -> S:
        """Return a session, which is then used last now. Raise `Refused` if there is none."""
        if session_id not in self._sessions:
            raise Refused(self._missing, "no such session; it may have expired, or the service started anew")
        self._used_at_s[session_id] = self._clock.monotonic_s()
        return self._sessions[session_id]

    def close(self, session_id: str) -> None:
        """Forget a session, if there is one."""
        self._sessions.pop(session_id, None)
        self._used_at_s.pop(session_id, None)
