"""Limits of the attempts at one read of an opened file.

The rules kept here: failures in a row are counted, and forgotten when bytes come, but there are never more than
`MAX_ANSWERS_PER_READ`; and a file that was opened is not refused for one answer of a proxy or CDN on a bad day, but
only if nothing else comes.
"""

from epochal.data_providers.protocol import CorruptData, Rejected, SourceUnavailable
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import DataError

RETRY = RetryPolicy(attempts=4, first_delay_s=0.25, max_delay_s=8.0, max_asked_s=30.0)
"""Default policy for failures in a row."""
MAX_ANSWERS_PER_READ = 64
"""Maximum number of answers for one read, as long as each of them has brought some bytes."""
PASSING_STATUSES = frozenset({200, 206, 403, 404})
"""Statuses of answers without the bytes that something between client and server may have given once."""


class Attempts:
    """The attempts of one read.

    Args:
        policy: for failures in a row.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._backoff = policy.begin()
        self._answers = 0
        self._unavailable: SourceUnavailable | None = None

    async def failed(self, error: DataError, received_bytes: int) -> None:
        """Return when it is time for the next attempt.

        Args:
            error: of the last attempt.
            received_bytes: of its answer, before it failed.

        Raises:
            SourceUnavailable: the attempts are over; retry later.
            DataError: `error`, if it does not pass, or came in each of the last attempts.
        """
        if received_bytes:
            self._backoff.reset()
            self._unavailable = None
        if isinstance(error, SourceUnavailable):
            self._unavailable = error
        elif not _may_pass(error):
            raise error
        self._answers += 1
        last = self._unavailable or error
        if self._answers == MAX_ANSWERS_PER_READ:
            raise last
        await self._backoff.wait(last, error.context.get("retry_after_s", 0.0))


def _may_pass(error: DataError) -> bool:
    return isinstance(error, Rejected | CorruptData) and error.context.get("status") in PASSING_STATUSES
