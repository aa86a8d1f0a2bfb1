"""A buffer that is filled from its beginning by the bodies of answers."""

from dataclasses import dataclass


@dataclass(slots=True)
class Filling:
    """A range's destination.

    Attributes:
        start: the file's byte that belongs at the beginning of `into`.
        into: writable bytes.
        filled: number of bytes that are in place.
    """

    start: int
    into: memoryview
    filled: int = 0

    @property
    def stop(self) -> int:
        """The file's byte after the last one wanted."""
        return self.start + len(self.into)

    @property
    def missing(self) -> int:
        """Number of bytes that are still missing."""
        return len(self.into) - self.filled

    def take(self, chunk: memoryview) -> None:
        """Append as much of the chunk as is still missing."""
        chunk = chunk[: self.missing]
        self.into[self.filled : self.filled + len(chunk)] = chunk
        self.filled += len(chunk)
