"""The times of a round's RoundTrain, from which follows how long later rounds may take."""

from dataclasses import dataclass, replace

MOSTLY = (1, 2)
"""Part of the electorate's batches after whose delivery slower clients no longer count in the round's time. Fewer
clients than that, such as a third that is as late as it can, must not lengthen the limit that they use up."""


@dataclass(frozen=True, slots=True)
class TrainTimes:
    """The times of a RoundTrain, in seconds since it began.

    Attributes:
        delivered_batches: number of the electorate's batches over which verified results are.
        mostly_in_s, last_in_s: when the result came that completed most of the electorate's batches, and the last one.
        settled_in_s, complete_in_s: when nothing more was expected of the electorate, and of anybody.
        timed_out: whether RoundTrain ended before every result had arrived.
        train_s: time that the round took its quicker clients (`coordinator/machine/pace.py`), once RoundTrain is over.
        waited_s: time for which RoundTrain had waited, in vain, only for clients that never delivered.
        trained_s: seconds that RoundTrain took, once it is over.
    """

    delivered_batches: int = 0
    mostly_in_s: float | None = None
    last_in_s: float | None = None
    settled_in_s: float | None = None
    complete_in_s: float | None = None
    timed_out: bool = False
    train_s: float | None = None
    waited_s: float = 0.0
    trained_s: float | None = None

    def with_delivery(self, decisive_batches: int, decisive_count: int, elapsed_s: float) -> "TrainTimes":
        """Return the times after a result was verified, `elapsed_s` after the round's start.

        Args:
            decisive_batches: number of its batches, if it is of the electorate; 0 if it is not.
            decisive_count: number of all the electorate's batches.
            elapsed_s: seconds since the round's start.
        """
        delivered, mostly_in_s = self.delivered_batches + decisive_batches, self.mostly_in_s
        part, whole = MOSTLY
        if decisive_batches and mostly_in_s is None and whole * delivered >= part * decisive_count:
            mostly_in_s = elapsed_s
        return replace(self, last_in_s=elapsed_s, delivered_batches=delivered, mostly_in_s=mostly_in_s)

    def expecting(self, *, decisive: bool, any_other: bool, elapsed_s: float) -> "TrainTimes":
        """Return the times with those since when nothing more is expected; the same value if that is known.

        Args:
            decisive: whether results of the electorate are expected.
            any_other: whether any results are.
            elapsed_s: seconds since the round's start.
        """
        settled_in_s = elapsed_s if self.settled_in_s is None and not decisive else self.settled_in_s
        complete_in_s = elapsed_s if self.complete_in_s is None and not any_other else self.complete_in_s
        if (settled_in_s, complete_in_s) == (self.settled_in_s, self.complete_in_s):
            return self
        return replace(self, settled_in_s=settled_in_s, complete_in_s=complete_in_s)

    def closed(self, elapsed_s: float, *, is_pending: bool) -> "TrainTimes":
        """Return the times as RoundTrain ends, `elapsed_s` after its start.

        Args:
            elapsed_s: seconds since the round's start.
            is_pending: whether results are still expected.
        """
        complete_in_s = elapsed_s if self.complete_in_s is None else self.complete_in_s
        waited_s = 0.0
        if self.settled_in_s is not None:  # a client whose result was rejected may have delivered another one since
            waited_s = max(0.0, complete_in_s - max(self.settled_in_s, self.last_in_s or 0.0))
        train_s = self.train_s
        if is_pending:
            train_s = self.mostly_in_s
        elif self.mostly_in_s is not None:
            train_s = self.mostly_in_s + elapsed_s - complete_in_s
        timed_out = self.timed_out or is_pending
        return replace(self, waited_s=waited_s, trained_s=elapsed_s, timed_out=timed_out, train_s=train_s)
