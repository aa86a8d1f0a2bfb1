"""The nonces that joining clients sign. Each contains a MAC over run, key and expiry, so that none must be stored."""

import hashlib
import hmac
import re
import secrets

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from epochal.coordinator.auth.signing_key import SigningKey
from epochal.state.errors import Refused
from epochal.state.messages.receipts import ReceiptRequest, receipt_message
from epochal.state.messages.requests import JoinRequest, join_message
from epochal.state.refusals import Refusal

NONCE_LIFETIME_S = 60.0
_PURPOSE = b"epochal/nonce"
_MAC_BYTES = 16
_NATURAL = re.compile(r"[1-9][0-9]{0,14}")
"""One spelling per number: a consumed nonce must not pass again with a zero in front."""


_NOT_SIGNED = "the signature is not by this key over this run and nonce, the host, and this coordinator's key"


class JoinNonces:
    """Makes and checks the nonces of one run; refuses those of other runs.

    Attributes:
        coordinator_key: raw Ed25519 public key, hex.
    """

    def __init__(self, key: SigningKey, run_id: str) -> None:
        self._mac_key = key.secret_for(_PURPOSE)
        self.coordinator_key = key.public_key_hex
        self._run_id = run_id

    def make(self, client_key_hex: str, now_s: float) -> str:
        """Return a nonce that only this client may sign, valid for `NONCE_LIFETIME_S`."""
        expires_ms = int((now_s + NONCE_LIFETIME_S) * 1000)
        salt = secrets.token_hex(8)
        return f"{expires_ms}.{salt}.{self._mac(client_key_hex, expires_ms, salt)}"

    def check_join(self, request: JoinRequest, now_s: float) -> float:
        """Return when the nonce of a valid join expires, in seconds on the run's clock.

        Raises:
            Refused: `nonce-invalid` (expired, or not of this coordinator, key and run), or `unauthorized` (signature).
        """
        message = join_message(self._run_id, request.nonce, request.public_key, self.coordinator_key, request.host)
        return self._check(request, message, now_s)

    def check_receipt(self, request: ReceiptRequest, now_s: float) -> None:
        """Raise as `check_join` unless a key's owner asks for its receipt."""
        message = receipt_message(self._run_id, request.nonce, request.public_key, self.coordinator_key, request.host)
        self._check(request, message, now_s)

    def _check(self, request: JoinRequest | ReceiptRequest, message: bytes, now_s: float) -> float:
        expires_ms = self._checked_expiry(request.nonce, request.public_key)
        if expires_ms / 1000 < now_s:
            raise Refused(Refusal.NONCE_INVALID, "the nonce has expired; ask for another challenge")
        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(request.public_key))
            key.verify(bytes.fromhex(request.signature), message)
        except (InvalidSignature, ValueError):
            raise Refused(Refusal.UNAUTHORIZED, _NOT_SIGNED) from None
        return expires_ms / 1000

    def _mac(self, client_key_hex: str, expires_ms: int, salt: str) -> str:
        covered = "\x00".join((self._run_id, client_key_hex, str(expires_ms), salt)).encode()
        return hashlib.blake2b(covered, key=self._mac_key, digest_size=_MAC_BYTES).hexdigest()

    def _checked_expiry(self, nonce: str, client_key_hex: str) -> int:
        parts = nonce.split(".")
        if len(parts) == 3 and _NATURAL.fullmatch(parts[0]):
            expected = self._mac(client_key_hex, int(parts[0]), parts[1])
            if hmac.compare_digest(expected.encode(), parts[2].encode()):
                return int(parts[0])
        raise Refused(Refusal.NONCE_INVALID, "the nonce was not made by this coordinator for this key and run")
