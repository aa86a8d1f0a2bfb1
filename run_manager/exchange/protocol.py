"""How results travel between clients: bytes by SHA-256.

The rule kept here: bytes that come out of `fetch` have the digest that was asked for, wherever they came from.
"""

from collections.abc import Iterable
from typing import Protocol

from state.tensors import FileBody
from state.wire import Sha256


class Exchange(Protocol):
    """Publishes and fetches immutable bytes by SHA-256."""

    async def publish(self, sha256: Sha256, body: FileBody) -> None:
        """Make the bytes available to every replica. They must have been announced to the coordinator.

        Raises:
            Refused: the coordinator does not expect them (any more), or they break a rule.
        """
        ...

    async def fetch(self, sha256: Sha256) -> FileBody:
        """Return the bytes of this digest; what was published here may come back as it was published.

        Raises:
            Refused: `not-found`.
            InvalidDocument: the bytes that arrive have another digest, in every attempt.
        """
        ...

    def forget(self, digests: Iterable[Sha256]) -> None:
        """Drop what is kept of these bytes: they will not be asked for again soon."""
        ...
