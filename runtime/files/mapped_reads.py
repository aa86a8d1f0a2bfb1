"""Bytes at another place, of which a few windows are in memory at a time, and which are hashed on the way."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable

from epochal.state.model.tensors import Buffer
from epochal.state.wire import Sha256

WINDOW_BYTES = 4 * 1024 * 1024
MAX_WINDOWS = 4
"""Number of windows in memory: who checks a file reads it in order, or two parts of it in turns."""


class Windows:
    """The `Readable` protocol over bytes that are fetched, a window at a time. One thread at a time reads it.

    Args:
        size_bytes: number of the bytes, which must not change.
        fetch: returns the bytes `[start, stop)`; it may block. What it raises, reading raises.
    """

    def __init__(self, size_bytes: int, fetch: Callable[[int, int], Buffer], window_bytes: int = WINDOW_BYTES) -> None:
        self._size_bytes = size_bytes
        self._fetch = fetch
        self._window_bytes = window_bytes
        self._held: OrderedDict[int, Buffer] = OrderedDict()
        self._digest = hashlib.sha256()
        self._hashed_count = 0
        """Number of windows, from the first one on, that are in the digest."""

    def __len__(self) -> int:
        return self._size_bytes

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size_bytes)
        pieces = []
        while start < stop:
            number, offset = divmod(start, self._window_bytes)
            piece = memoryview(self._window(number))[offset : offset + stop - start]
            pieces.append(piece)
            start += len(piece)
        return b"".join(pieces)

    def sha256(self) -> Sha256:
        """Return the digest of all bytes; fetch those that were not read in order."""
        while self._hashed_count * self._window_bytes < self._size_bytes:
            self._window(self._hashed_count)
        return Sha256(self._digest.hexdigest())

    def _window(self, number: int) -> Buffer:
        found = self._held.get(number)
        if found is None:
            start = number * self._window_bytes
            found = self._fetch(start, min(start + self._window_bytes, self._size_bytes))
            self._held[number] = found
            if len(self._held) > MAX_WINDOWS:
                self._held.popitem(last=False)
        self._held.move_to_end(number)
        if number == self._hashed_count:
            self._digest.update(found)
            self._hashed_count += 1
        return found
