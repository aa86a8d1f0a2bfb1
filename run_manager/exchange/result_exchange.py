"""How results travel between clients: bytes by SHA-256, in files of the client's spool.

The rule kept here: bytes that come out of `fetch` have the digest that was asked for, wherever they came from.
"""

from collections.abc import Iterable
from typing import Protocol

from epochal.runtime.files.spool import SpoolFile
from epochal.state.wire import Sha256


class Exchange(Protocol):
    """Publishes and fetches immutable bytes by SHA-256."""

    async def publish(self, sha256: Sha256, file: SpoolFile) -> None:
        """Make the bytes available to every replica, and keep them. They must have been announced to the coordinator.

        Raises:
            Refused: the coordinator does not expect them (any more), or they break a rule.
        """
        ...

    def published(self, sha256: Sha256, file: SpoolFile) -> None:
        """Keep bytes that were made available by other means: they came with their announcement."""
        ...

    def arrived(self, sha256: Sha256, data: bytes) -> None:
        """Keep bytes that came unasked, if they have the digest: then they need not be fetched."""
        ...

    async def fetch(self, sha256: Sha256, size_bytes: int) -> SpoolFile:
        """Return the bytes of this digest; what was published here is not asked for.

        Args:
            sha256: their digest.
            size_bytes: their number; what is longer is not kept.

        Raises:
            Refused: `not-found`.
            InvalidDocument: the bytes that arrive have another digest or are too many, in every attempt.
            SpoolFull: they find no room.
        """
        ...

    def begin_round(self) -> None:
        """Note that another round has begun: what was kept before the one before it is dropped."""
        ...

    def forget(self, digests: Iterable[Sha256]) -> None:
        """Drop what is kept of these bytes: they will not be asked for again soon."""
        ...
