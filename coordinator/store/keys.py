"""The secrets of a run that its coordinators share: the key that signs tokens, and the hash of the operator's token."""

from typing import Protocol


class CoordinatorKeys(Protocol):
    """Secrets kept with the run, so that tokens stay valid after a restart and at all coordinators of the run.

    Every method raises `StoreFailed` if the medium fails or holds something else.
    """

    async def private_key(self) -> bytes:
        """Return the coordinator's Ed25519 private key (32 raw bytes), created at the first call."""

    async def admin_token_sha256(self) -> bytes | None:
        """Return the SHA-256 of the operator's token, or None before there is one."""

    async def keep_admin_token_sha256(self, digest: bytes) -> None:
        """Replace the SHA-256 of the operator's token."""
