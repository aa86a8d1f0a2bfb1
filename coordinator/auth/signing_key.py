"""The coordinator's Ed25519 key, which signs tokens and tickets and from which the key of nonces is derived."""

import hashlib
from dataclasses import replace
from typing import Any, TypeVar

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from epochal.state.messages.signed_documents import signed_bytes

ALGORITHM = "EdDSA"
"""RFC 8037."""

D = TypeVar("D")


class SigningKey:
    """Signs JSON Web Tokens (RFC 7519).

    Args:
        private_key: 32 raw bytes.
    """

    def __init__(self, private_key: bytes) -> None:
        self._private_key = private_key
        self._signer = Ed25519PrivateKey.from_private_bytes(private_key)
        self._public = self._signer.public_key()

    @property
    def public_key_hex(self) -> str:
        """The raw public key in hexadecimal."""
        return self._public.public_bytes_raw().hex()

    def secret_for(self, purpose: bytes) -> bytes:
        """Return 32 secret bytes derived from the key, different for each purpose (at most 16 bytes)."""
        return hashlib.blake2b(self._private_key, digest_size=32, person=purpose).digest()

    def sign(self, claims: dict[str, Any]) -> str:
        """Return the claims as a signed token."""
        return jwt.encode(claims, self._signer, algorithm=ALGORITHM)

    def signed(self, document: D) -> D:
        """Return a document (a dataclass with a `signature`) signed, as `check_signature` checks it."""
        signature = self._signer.sign(signed_bytes(document)).hex()
        return replace(document, signature=signature)  # type: ignore[type-var]

    def verified(self, token: str, audience: str) -> dict[str, Any]:
        """Return a token's claims. The caller checks whether they have expired.

        Raises:
            jwt.InvalidTokenError: it is not signed with this key, is for another audience, or claims too little.
        """
        options: Any = {"require": ["exp", "sub", "aud"], "verify_exp": False}
        claims: dict[str, Any] = jwt.decode(
            token, self._public, algorithms=[ALGORITHM], audience=audience, options=options
        )
        return claims
