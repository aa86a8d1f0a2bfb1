"""The secrets of a run that its coordinators share: the key that signs tokens, and the hash of the operator's token."""

from typing import Protocol

KEY_LOST = (
    "restore it from a backup; if it is lost, start with --new-coordinator-key, which gives the run a new key, and "
    "members join again by themselves"
)
"""Advice about a coordinator's key that is missing or wrong."""


class CoordinatorKeyReader(Protocol):
    """A run's secrets, which are only read.

    Every method raises `StoreFailed` if the medium fails or holds something else.
    """

    async def private_key(self) -> bytes | None:
        """Return the coordinator's Ed25519 private key (32 raw bytes), or None before there is one."""

    async def admin_token_sha256(self) -> bytes | None:
        """Return the SHA-256 of the operator's token, or None before there is one."""


class CoordinatorKeys(CoordinatorKeyReader, Protocol):
    """Secrets kept with the run, so that tokens stay valid after a restart and at all coordinators of the run."""

    async def create_private_key(self) -> bytes:
        """Return the coordinator's private key, created if there is none; several callers at once get the same one."""

    async def replace_private_key(self) -> bytes:
        """Return a new private key, which replaces the one that is kept, readable or not. The old one is set aside."""

    async def create_admin_token_sha256(self, digest: bytes) -> bytes:
        """Return the SHA-256 of the operator's token; it is this one if there was none."""

    async def keep_admin_token_sha256(self, digest: bytes) -> None:
        """Replace the SHA-256 of the operator's token."""
