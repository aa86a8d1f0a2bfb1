"""Limits of the attempts at one read of an opened file.

The rules kept here: failures in a row are counted, and forgotten when bytes come; a server that sends less than
`MIN_BYTES_PER_S` on average is given up, however often it sends some; and a file that was opened is not refused for one
answer of a proxy or CDN on a bad day, but only if nothing else comes.
"""

import asyncio

from epochal.data_providers.protocol import CorruptData, Rejected, SourceUnavailable
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import DataError

MAX_ANSWERS_PER_READ = 64
"""Maximum number of answers for one read, as long as each of them has brought some bytes."""
MIN_BYTES_PER_S = 4 * 1024
"""Minimum number of bytes a second that the failed answers to one read bring on average, after `FREE_S`."""
FREE_S = 180.0
"""Seconds of answers, and of waits between them, that do not count in the average."""
PASSING_STATUSES = frozenset({200, 206, 403, 404})
"""Statuses of answers without the bytes that something between client and server may have given once."""


class Attempts:
    """The attempts of one read.

    Args:
        policy: for failures in a row.
        url: of the file, for messages.
    """

    def __init__(self, policy: RetryPolicy, url: str) -> None:
        self._backoff = policy.begin()
        self._url = url
        self._answers = 0
        self._received_bytes = 0
        self._spent_s = 0.0
        self._unavailable: SourceUnavailable | None = None

    def spend(self, seconds: float) -> None:
        """Count the time of one answer, without the wait for a turn to request it."""
        self._spent_s += seconds

    async def failed(self, error: DataError, received_bytes: int) -> None:
        """Return when it is time for the next attempt.

        Args:
            error: of the last attempt.
            received_bytes: of its answer, before it failed.

        Raises:
            SourceUnavailable: the attempts are over, or the server is too slow; retry later.
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
        self._received_bytes += received_bytes
        last = self._unavailable or error
        if self._answers == MAX_ANSWERS_PER_READ:
            raise last
        if self._spent_s > FREE_S + self._received_bytes / MIN_BYTES_PER_S:
            raise SourceUnavailable(
                f"{self._url} is too slow: {self._received_bytes} bytes in {self._spent_s:.0f} s; at least "
                f"{MIN_BYTES_PER_S} bytes a second are needed, after the first {FREE_S:.0f} s",
                url=self._url,
            ) from error
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        await self._backoff.wait(last, error.context.get("retry_after_s", 0.0))
        self._spent_s += loop.time() - begun_s


def _may_pass(error: DataError) -> bool:
    return isinstance(error, Rejected | CorruptData) and error.context.get("status") in PASSING_STATUSES
