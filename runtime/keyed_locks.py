"""Locks by key, which exist as long as somebody holds one or waits for it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Lock:
    """A lock, and the number of those that hold it or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class KeyedLocks(Generic[K]):
    """One lock for each key. They are given in the order in which they were asked for."""

    def __init__(self) -> None:
        self._locks: dict[K, _Lock] = {}

    def __len__(self) -> int:
        """Return the number of keys whose lock is held or waited for."""
        return len(self._locks)

    def __contains__(self, key: K) -> bool:
        """Return whether a key's lock is held or waited for."""
        return key in self._locks

    async def acquire(self, key: K) -> None:
        """Wait for a key's lock and take it; `release` must follow, in this task or another. The caller bounds it."""
        found = self._locks.setdefault(key, _Lock())
        found.users += 1
        try:
            await found.lock.acquire()
        except BaseException:
            self._leave(key, found)
            raise

    def release(self, key: K) -> None:
        """Give back a key's lock, which must be held."""
        found = self._locks[key]
        found.lock.release()
        self._leave(key, found)

    @contextlib.asynccontextmanager
    async def of(self, key: K) -> AsyncIterator[None]:
        """Hold a key's lock until the context is left."""
        await self.acquire(key)
        try:
            yield
        finally:
            self.release(key)

    def _leave(self, key: K, found: _Lock) -> None:
        found.users -= 1
        if not found.users:
            del self._locks[key]
