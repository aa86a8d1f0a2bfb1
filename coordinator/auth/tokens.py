"""The session tokens and data tickets of members. A bounded number of checked tokens is cached."""

from collections import OrderedDict
from dataclasses import dataclass

import jwt

from coordinator.auth.signing_key import SigningKey
from state.errors import Refused
from state.messages import DATA_TICKET_AUDIENCE
from state.refusals import Refusal
from state.wire import ClientId

SESSION_LIFETIME_S = 3600.0
SESSION_AUDIENCE = "epochal-session"
MAX_CACHED_TOKENS = 16_384


@dataclass(frozen=True, slots=True)
class SessionClaims:
    """The contents of a valid session token: its client, the number of the join, and the expiry."""

    client_id: ClientId
    session: int
    expires_s: float


class SessionTokens:
    """Makes and checks the tokens of one run; refuses those of other runs."""

    def __init__(self, key: SigningKey, run_id: str) -> None:
        self._key = key
        self._run_id = run_id
        self._checked: OrderedDict[str, SessionClaims] = OrderedDict()

    def session_token(self, client_id: ClientId, session: int, now_s: float) -> str:
        """Return a signed token for the client's requests, valid for `SESSION_LIFETIME_S`."""
        return self._sign(client_id, SESSION_AUDIENCE, now_s, {"sid": session})

    def data_ticket(self, client_id: ClientId, now_s: float) -> str:
        """Return a signed ticket for data servers; it is not a session token."""
        return self._sign(client_id, DATA_TICKET_AUDIENCE, now_s, {})

    def _sign(self, client_id: ClientId, audience: str, now_s: float, more: dict[str, int]) -> str:
        claims = {"sub": client_id, "run": self._run_id, "aud": audience, "exp": int(now_s + SESSION_LIFETIME_S)}
        return self._key.sign({**claims, **more})

    def check_session(self, token: str, now_s: float) -> SessionClaims:
        """Return the claims of a session token. The caller checks whether the session is still the client's latest.

        Raises:
            Refused: `unauthorized`: not of this coordinator and run, for another purpose, or expired.
        """
        claims = self._checked.get(token)
        if claims is None:
            claims = self._verified(token)
            self._checked[token] = claims
            if len(self._checked) > MAX_CACHED_TOKENS:
                self._checked.popitem(last=False)
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
