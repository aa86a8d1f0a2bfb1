"""The sizes of micro-batches: examples of similar length, as many as fit into memory, halved when it runs out.

The rule kept here: how a local step is cut changes only its speed. Losses and gradients are sums over tokens, so they
are the same for every cut, within the rounding of float sums.
"""

from collections.abc import Sequence

from epochal.state.errors import EpochalError


class DoesNotFit(EpochalError):
    """A micro-batch does not fit into the memory of a device that waits for others, so that none can continue.

    Attributes:
        fitting_places: the most places of a micro-batch to try next; None if it had one row already.
    """

    def __init__(self, message: str, fitting_places: int | None) -> None:
        super().__init__(message, fitting_places=fitting_places)
        self.fitting_places = fitting_places


class MicroBatchSize:
    """Number of places in a micro-batch. It is halved when memory runs out, and stays at what has fitted.

    Args:
        rows: the most rows of the longest example's size; None for `places`.
        places: the most places where `rows` is None.
        fitting: the most places that may fit into memory, if something is known.
    """

    def __init__(self, rows: int | None, places: int, fitting: int | None = None) -> None:
        self._rows = rows
        self._places = places
        self._fitting = fitting

    def rows(self, sizes: Sequence[int]) -> int:
        """Return how many rows of the longest example's size a micro-batch of these examples may have, at least 1.

        There are never more than the examples fill.
        """
        longest = max(sizes)
        most = self._places // longest if self._rows is None else self._rows
        if self._fitting is not None:
            most = min(most, self._fitting // longest)
        return max(1, min(most, -(-sum(sizes) // longest)))

    def halve(self, rows: int, longest: int) -> int:
        """Note that `rows` rows of this size did not fit; return half of them, which are tried next."""
        half = max(1, rows // 2)
        self._fitting = half * longest
        return half


def grouped(sizes: Sequence[int], places: int) -> list[list[int]]:
    """Return the positions of all examples in groups, those of size 0 left out.

    The longest come first, and those of equal size in their order. The longest of a group times its number of examples
    is at most `places`, except where one example alone is larger.
    """
    groups: list[list[int]] = []
    for position in sorted((p for p, size in enumerate(sizes) if size), key=lambda p: -sizes[p]):
        if groups and (len(groups[-1]) + 1) * sizes[groups[-1][0]] <= places:
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups
