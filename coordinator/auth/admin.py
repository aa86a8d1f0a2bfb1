"""The operator's token, shown once and kept as a hash."""

import hashlib
import hmac
import secrets

from epochal.coordinator.store.sql.notes import Keys
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId

OPERATOR = ClientId("operator")
"""Owner of the connections and downloads of requests with the admin token. It cannot be a client's id."""
VERIFIER = ClientId("verifier")
"""Who reads a blob with a verifier's token."""
MIRROR = ClientId("mirror")
"""Who reads a blob with a mirror's token."""


class AdminToken:
    """The operator's token, of which only a hash is kept. 256 random bits need no slow hash."""

    def __init__(self, token_sha256: bytes) -> None:
        self._sha256 = token_sha256

    @classmethod
    async def load_or_create(cls, keys: Keys, *, anew: bool = False) -> tuple["AdminToken", str | None]:
        """Return the operator's token, and its text only if it was created by this call.

        Args:
            keys: where the hash is kept.
            anew: replace a token that is kept already.

        Raises:
            StoreFailed: the hash cannot be read or kept.
        """
        kept = None if anew else await keys.admin_token_sha256()
        if kept is not None:
            return cls(kept), None
        token = secrets.token_urlsafe(32)
        digest = hashlib.sha256(token.encode()).digest()
        if anew:
            await keys.keep_admin_token_sha256(digest)
            return cls(digest), token
        kept = await keys.create_admin_token_sha256(digest)
        return cls(kept), token if kept == digest else None

    async def refresh(self, keys: Keys) -> None:
        """Read the hash again: another coordinator of the run may have replaced it. Raise `StoreFailed` if it fails."""
        self._sha256 = await keys.admin_token_sha256() or self._sha256

    def matches(self, token: str) -> bool:
        """Return whether it is the operator's token; compares in constant time."""
        return hmac.compare_digest(hashlib.sha256(token.encode()).digest(), self._sha256)

    def check(self, token: str) -> None:
        """Raise `Refused(Refusal.FORBIDDEN)` unless it is the operator's token."""
        if not self.matches(token):
            raise Refused(
                Refusal.FORBIDDEN,
                "this token is not the run's admin token, which the coordinator printed at its first start, or at its "
                "last start with --new-admin-token",
            )
