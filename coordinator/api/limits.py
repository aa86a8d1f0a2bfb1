"""The long polls that a coordinator lets wait at a time."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from state.errors import Refused
from state.refusals import Refusal
from state.wire import ClientId

MAX_LONG_POLLS = 20_000
"""Requests that may wait for news at a time."""
MAX_ANONYMOUS_LONG_POLLS = 2_000
"""Those without a session token among them: strangers must not take the members' places."""
MAX_LONG_POLLS_PER_CLIENT = 16
"""A client waits for the document and for results; the rest is room for connections that it lost unnoticed."""


class LongPolls:
    """The requests that wait now, and the bounds on them."""

    def __init__(self) -> None:
        self._waiting: Counter[ClientId | None] = Counter()
        self.count = 0

    @contextmanager
    def place(self, client_id: ClientId | None) -> Iterator[None]:
        """Hold a place to wait in, for a member or (None) an anonymous reader.

        Raises:
            Refused: `overloaded`.
        """
        most = MAX_ANONYMOUS_LONG_POLLS if client_id is None else MAX_LONG_POLLS_PER_CLIENT
        if self.count >= MAX_LONG_POLLS or self._waiting[client_id] >= most:
            raise Refused(Refusal.OVERLOADED, "too many requests wait already; try again in a moment")
        self.count += 1
        self._waiting[client_id] += 1
        try:
            yield
        finally:
            self.count -= 1
            self._waiting[client_id] -= 1
            if not self._waiting[client_id]:
                del self._waiting[client_id]
