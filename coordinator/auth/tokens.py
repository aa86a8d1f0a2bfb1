"""The session tokens and data tickets of members, and the tokens of other programs: data servers, checkers, verifiers
and mirrors.

A bounded number of checked tokens is cached.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import jwt

from epochal.coordinator.auth.signing_key import SigningKey
from epochal.state.errors import Refused
from epochal.state.messages.requests import DATA_TICKET_AUDIENCE, SESSION_AUDIENCE, ProgramKind
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, sha256_hex

D = TypeVar("D")

SESSION_LIFETIME_S = 3600.0
_YEAR_S = 365 * 86_400.0
PROGRAM_LIFETIMES_S: Mapping[ProgramKind, float] = {
    "data-server": 10 * _YEAR_S,  # it only takes a place in a pool of its own, and need not be renewed during a run
    "checker": _YEAR_S,  # it vouches for the form of results, and reads those that it is given to check
    "verifier": _YEAR_S,  # it judges members' work, and reads what that needs
    "mirror": _YEAR_S,  # it reads updates and checkpoints
}
"""Time for which the token of each program is valid, which serves for nothing else than is said here."""
MAX_CACHED_TOKENS = 32_768
SESSION_HEX_DIGITS = 13
"""Length of a session's number: every JSON reader represents integers of 52 bits exactly."""


@dataclass(frozen=True, slots=True)
class SessionClaims:
    """The contents of a valid session token: its client, the number of the join, and the expiry."""

    client_id: ClientId
    session: int
    expires_s: float


@lru_cache(MAX_CACHED_TOKENS)
def session_number(nonce: str) -> int:
    """Return the number of a session, made from the nonce of its join, which is unique."""
    return int(sha256_hex(nonce.encode())[:SESSION_HEX_DIGITS], 16)


class SessionTokens:
    """Makes and checks the tokens of one run; refuses those of other runs."""

    def __init__(self, key: SigningKey, run_id: str) -> None:
        self._key = key
        self._run_id = run_id
        self._checked = lru_cache(MAX_CACHED_TOKENS)(self._verified)
        self._holders = lru_cache(MAX_CACHED_TOKENS)(self._found_holder)

    def signed(self, document: D) -> D:
        """Return a document (a dataclass with a `signature`) signed with the coordinator's key."""
        return self._key.signed(document)

    def session_token(self, client_id: ClientId, session: int, now_s: float) -> str:
        """Return a signed token for the client's requests, valid for `SESSION_LIFETIME_S`."""
        return self._sign(client_id, SESSION_AUDIENCE, now_s, {"sid": session})

    def data_ticket(self, holder: str, now_s: float) -> str:
        """Return a signed ticket for data servers, of a client or of a verifier; it is not a session token."""
        return self._sign(holder, DATA_TICKET_AUDIENCE, now_s, {})

    def program_token(self, kind: ProgramKind, now_s: float) -> str:
        """Return a signed token for the requests of a program of this kind, with an id of its own."""
        return self._sign(secrets.token_hex(8), _audience(kind), now_s, {}, PROGRAM_LIFETIMES_S[kind])

    def program_of(self, kind: ProgramKind, token: str, now_s: float) -> str | None:
        """Return the id of the program of this kind whose token this is; None if it is no valid one for this run."""
        holder, expires_s = self._holders(token, _audience(kind))
        return holder if expires_s > now_s else None

    def _sign(
        self, subject: str, audience: str, now_s: float, more: dict[str, int], lifetime_s: float = SESSION_LIFETIME_S
    ) -> str:
        claims = {"sub": subject, "run": self._run_id, "aud": audience, "exp": int(now_s + lifetime_s)}
        return self._key.sign({**claims, **more})

    def _found_holder(self, token: str, audience: str) -> tuple[str | None, float]:
        """Return whose token it is, and until when; None if it is not one of this run's."""
        try:
            found = self._key.verified(token, audience)
            return str(found["sub"]) if found["run"] == self._run_id else None, float(found["exp"])
        except (jwt.InvalidTokenError, KeyError, TypeError, ValueError):
            return None, 0.0

    def check_session(self, token: str, now_s: float) -> SessionClaims:
        """Return the claims of a session token. The caller checks whether the session is still the client's latest.

        Raises:
            Refused: `unauthorized`: not of this coordinator and run, for another purpose, or expired.
        """
        claims = self._checked(token)
        if claims.expires_s <= now_s:
            raise Refused(Refusal.UNAUTHORIZED, "the session token has expired; join again")
        return claims

    def _verified(self, token: str) -> SessionClaims:
        try:
            found = self._key.verified(token, SESSION_AUDIENCE)
            if found["run"] != self._run_id:
                raise Refused(Refusal.UNAUTHORIZED, "the session token is for another run")
            return SessionClaims(ClientId(str(found["sub"])), int(found["sid"]), float(found["exp"]))
        except (jwt.InvalidTokenError, KeyError, TypeError, ValueError):
            raise Refused(Refusal.UNAUTHORIZED, "the session token is not one of this coordinator's") from None


def _audience(kind: ProgramKind) -> str:
    return f"epochal-{kind}"
