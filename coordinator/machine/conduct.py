"""How a member did in the rounds so far, and what follows from it: its share of the work, and its rests."""

from dataclasses import dataclass

NEWCOMER_SHARE_UNITS = 2
"""Share with which a client starts: a quarter of a claim of one batch."""


@dataclass(frozen=True, slots=True)
class Conduct:
    """How a client did in the rounds so far. It outlives its membership if it is bad.

    Attributes:
        earned: its share of the work in units, `SHARE_UNITS_PER_BATCH` of which are one claimed batch.
        missed: rounds missed that later results have not made good.
        unattested: rounds in a row that lacked its attestation, or had a false one, and suffered from it.
        delivered: results applied since the last missed round, or since results made one good.
        rests: how often it was sent to rest; each result applied afterwards takes one away.
        rests_until_s: when its last rest ends, or has ended, on the run's clock.
        last_miss: why it missed a round last, in words.
        last_applied_step: the last step that applied a result of it.
    """

    earned: int = NEWCOMER_SHARE_UNITS
    missed: int = 0
    unattested: int = 0
    delivered: int = 0
    rests: int = 0
    rests_until_s: float | None = None
    last_miss: str = ""
    last_applied_step: int | None = None

    def is_resting(self, now_s: float) -> bool:
        """Whether the client is out of the roster for a while."""
        return self.rests_until_s is not None and now_s < self.rests_until_s


NEWCOMER = Conduct()
"""The conduct of a client that is not known yet."""
