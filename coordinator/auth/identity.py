"""The coordinator's identity: its key, the challenges it sets, the tokens and tickets it signs, the admin token.

All of it follows from one Ed25519 key kept in the run directory, so that every token holds after a restart and on every
replica. The rule kept here: time is an argument, and nothing is remembered but a bounded cache of checked signatures.
"""

import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from dataclasses import dataclass

import jwt
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from coordinator.store.keys import CoordinatorKeys
from state.errors import Refused
from state.messages import JoinRequest, join_message
from state.refusals import Refusal
from state.wire import ClientId

CHALLENGE_LIFETIME_S = 60.0
SESSION_LIFETIME_S = 3600.0
SESSION_AUDIENCE = "epochal-session"
DATA_AUDIENCE = "epochal-data"
MAX_CACHED_TOKENS = 16_384
_MAC_BYTES = 16
_NATURAL = re.compile(r"[1-9][0-9]{0,14}")
"""One spelling per number: a consumed nonce must not come back with a zero in front."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What a checked session token says: whose it is, of which join, and until when."""

    client_id: ClientId
    session: int
    expires_s: float


class Identity:
    """One coordinator key, for one run.

    Args:
        private_key: 32 raw bytes.
        run_id: the run; tokens and nonces of another are refused.
    """

    def __init__(self, private_key: bytes, run_id: str) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(private_key)
        self._public = self._key.public_key()
        self._mac_key = hashlib.blake2b(private_key, digest_size=32, person=b"epochal/nonce").digest()
        self._run_id = run_id
        self._checked: OrderedDict[str, Claims] = OrderedDict()

    @property
    def public_key_hex(self) -> str:
        """The raw public key, hex."""
        return self._public.public_bytes_raw().hex()

    def challenge(self, client_key_hex: str, now_s: float) -> str:
        """A nonce that only this client key may sign, until `CHALLENGE_LIFETIME_S` from now."""
        expires_ms = int((now_s + CHALLENGE_LIFETIME_S) * 1000)
        salt = secrets.token_hex(8)
        return f"{expires_ms}.{salt}.{self._mac(client_key_hex, expires_ms, salt)}"

    def check_join(self, request: JoinRequest, now_s: float) -> float:
        """When the nonce of a join expires, once nonce and signature are right.

        Raises:
            Refused: `nonce-invalid` (not ours, for another key or run, or expired), or `unauthorized` (the signature).
        """
        expires_ms = self._checked_nonce(request.nonce, request.public_key)
        if expires_ms / 1000 < now_s:
            raise Refused(Refusal.NONCE_INVALID, "the nonce has expired; ask for another challenge")
        message = join_message(self._run_id, request.nonce, request.public_key)
        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(request.public_key))
            key.verify(bytes.fromhex(request.signature), message)
        except (InvalidSignature, ValueError):
            raise Refused(Refusal.UNAUTHORIZED, "the signature is not this key's over this run and nonce") from None
        return expires_ms / 1000

    def _mac(self, client_key_hex: str, expires_ms: int, salt: str) -> str:
        covered = "\x00".join((self._run_id, client_key_hex, str(expires_ms), salt)).encode()
        return hashlib.blake2b(covered, key=self._mac_key, digest_size=_MAC_BYTES).hexdigest()

    def _checked_nonce(self, nonce: str, client_key_hex: str) -> int:
        parts = nonce.split(".")
        if len(parts) == 3 and _NATURAL.fullmatch(parts[0]):
            expected = self._mac(client_key_hex, int(parts[0]), parts[1])
            if hmac.compare_digest(expected.encode(), parts[2].encode()):
                return int(parts[0])
        raise Refused(Refusal.NONCE_INVALID, "the nonce was not made by this coordinator for this key and run")

    def session_token(self, client_id: ClientId, session: int, now_s: float) -> str:
        """A signed token for the client's requests, valid for `SESSION_LIFETIME_S`."""
        return self._sign(client_id, SESSION_AUDIENCE, now_s, {"sid": session})

    def data_ticket(self, client_id: ClientId, now_s: float) -> str:
        """A signed ticket that a data server takes, and this coordinator does not."""
        return self._sign(client_id, DATA_AUDIENCE, now_s, {})

    def _sign(self, client_id: ClientId, audience: str, now_s: float, more: dict[str, int]) -> str:
        claims = {"sub": client_id, "run": self._run_id, "aud": audience, "exp": int(now_s + SESSION_LIFETIME_S)}
        return jwt.encode({**claims, **more}, self._key, algorithm="EdDSA")

    def check_session(self, token: str, now_s: float) -> Claims:
        """What a session token says. Whether its session is still the client's own is the caller's to check.

        Raises:
            Refused: `unauthorized`: not ours, for something else, or expired.
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

    def _verified(self, token: str) -> Claims:
        try:
            found = jwt.decode(
                token,
                self._public,
                algorithms=["EdDSA"],
                audience=SESSION_AUDIENCE,
                options={"require": ["exp", "sub", "aud"], "verify_exp": False},
            )
            if found["run"] != self._run_id:
                raise Refused(Refusal.UNAUTHORIZED, "the session token is for another run")
            return Claims(ClientId(str(found["sub"])), int(found["sid"]), float(found["exp"]))
        except (jwt.InvalidTokenError, KeyError, TypeError, ValueError):
            raise Refused(Refusal.UNAUTHORIZED, "the session token is not one of this coordinator's") from None


class AdminToken:
    """The operator's token, of which only a hash is kept. 256 random bits need no slow hash."""

    def __init__(self, token_sha256: bytes) -> None:
        self._sha256 = token_sha256

    @classmethod
    async def load_or_create(cls, keys: CoordinatorKeys, *, anew: bool = False) -> tuple["AdminToken", str | None]:
        """Return the check of the kept token, and the token itself if it was made just now: it is shown only then.

        Args:
            keys: where the hash is kept.
            anew: makes another token, whatever is kept; the one before ends.

        Raises:
            StoreFailed: the hash cannot be read or kept.
        """
        kept = None if anew else await keys.admin_token_sha256()
        if kept is not None:
            return cls(kept), None
        token = secrets.token_urlsafe(32)
        digest = hashlib.sha256(token.encode()).digest()
        await keys.keep_admin_token_sha256(digest)
        return cls(digest), token

    def check(self, token: str) -> None:
        """Raises `Refused(Refusal.FORBIDDEN)` unless it is the operator's token, in constant time."""
        if not hmac.compare_digest(hashlib.sha256(token.encode()).digest(), self._sha256):
            raise Refused(
                Refusal.FORBIDDEN,
                "this needs the admin token that the coordinator printed at its first start, or at its last start with "
                "--new-admin-token",
            )
