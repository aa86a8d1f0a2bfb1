"""How many bytes a directory's blobs have: each blob is counted once, whichever thread names it."""

import threading


class ByteCounts:
    """Bytes of the blobs that have a name, and of those that arrive. Any thread may call it.

    Args:
        named_bytes: size of the blobs that have a name.
    """

    def __init__(self, named_bytes: int) -> None:
        self._lock = threading.Lock()
        """Held for a moment only, never during I/O."""
        self._total = named_bytes
        self._arriving: dict[object, int] = {}

    @property
    def total(self) -> int:
        """Bytes of all of them."""
        return self._total

    def recounted(self, named_bytes: int) -> None:
        """Take the size of the blobs that have a name from a count of them, because others add and delete some too."""
        with self._lock:
            self._total = named_bytes + sum(self._arriving.values())

    def arrived(self, blob: object, size_bytes: int) -> None:
        """Count more bytes of a blob that arrives, until it is named or given up."""
        with self._lock:
            self._arriving[blob] = self._arriving.get(blob, 0) + size_bytes
            self._total += size_bytes

    def named(self, blob: object, new_bytes: int) -> None:
        """Count a blob by its name, no longer as one that arrives; `new_bytes` is 0 if the name was taken."""
        with self._lock:
            self._total += new_bytes - self._arriving.pop(blob, 0)

    def given_up(self, blob: object) -> None:
        """Count a blob that arrived no longer, unless it is named."""
        self.named(blob, 0)

    def deleted(self, size_bytes: int) -> None:
        """Count a blob that had a name no longer."""
        with self._lock:
            self._total -= size_bytes
