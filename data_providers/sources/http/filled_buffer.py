"""A buffer that is filled from its beginning by the bodies of answers."""


class Filling:
    """A range's destination.

    Attributes:
        start: the file's byte that belongs at the beginning of `into`.
        stop: the file's byte after the last one wanted.
        into: writable bytes.
        filled: number of bytes that are in place.
    """

    __slots__ = ("filled", "into", "start", "stop")

    def __init__(self, start: int, into: memoryview) -> None:
        self.start, self.stop = start, start + len(into)
        self.into = into
        self.filled = 0

    @property
    def missing(self) -> int:
        """Number of bytes that are still missing."""
        return len(self.into) - self.filled

    def take(self, chunk: memoryview) -> None:
        """Append as much of the chunk as is still missing."""
        chunk = chunk[: self.missing]
        self.into[self.filled : self.filled + len(chunk)] = chunk
        self.filled += len(chunk)
