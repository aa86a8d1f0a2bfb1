"""The bytes of an answer, as a data server reads them piece by piece straight into the memory that it sends from."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from epochal.state.intervals import DataIds


class SampleBytes(Protocol):
    """The tokens of one request, as bytes that can be read from any place on.

    Attributes:
        size_bytes: of all of them.
    """

    size_bytes: int

    def read_now(self, begin: int, into: memoryview) -> bool:
        """Fill `into` with the bytes from `begin` on, if that needs no wait; return whether it was filled.

        Raises:
            CorruptData: a file is not what it was.
        """
        ...

    def at_hand(self, begin: int, most_bytes: int) -> Sequence[memoryview]:
        """Return the bytes from `begin` on, at most so many, that the system can send at once from where they lie.

        Only the system may read them. Empty if there are none, whatever the reason: `read` finds it out. A file that
        is cut meanwhile may read as zeros, so `check` must follow before the last bytes of an answer are sent.
        """
        ...

    def check(self) -> None:
        """Raise `CorruptData` if a file has changed since bytes of it were given."""
        ...

    def read(self, begin: int, into: memoryview) -> None:
        """Fill `into` with the bytes from `begin` on. Blocks.

        Raises:
            SourceUnavailable: they cannot be read now; retry.
            CorruptData: a file is not what it was.
        """
        ...


@runtime_checkable
class GivesBytes(Protocol):
    """A provider whose answers need not be in memory before they are sent."""

    def sample_bytes(self, data_ids: DataIds) -> SampleBytes:
        """Return the bytes of these samples, not yet read. Raise `OutOfRange` if there is no such data index."""
        ...
