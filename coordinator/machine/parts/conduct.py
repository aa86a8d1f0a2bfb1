"""How a client did in the rounds so far, and what follows from it: a bound of its work, and its rests.

Theory of operation. How much work a client gets follows from its speed (`coordinator/machine/shares.py`), up to a
bound: twice as much as it delivered last, and half as much as it missed last. Nobody waits for a client again and
again: with `MISSES_BEFORE_REST` missed rounds it is sent to rest, which keeps it off the rosters for a while. After the
rest one more missed round sends it back, for twice as long, while results that are applied make up for missed rounds
and rests, a few for each.

Attestations are counted apart, because they are due only in the rounds that elect the client as a witness.
"""

from dataclasses import dataclass, replace

MISSES_BEFORE_REST = 3
"""Missed rounds, or rounds that suffered from the client's attestation, that send it to rest."""
RESULTS_PER_MISS = 8
"""Results applied in a row that make up for one missed round: who misses one round in nine can stay for ever."""
FIRST_REST_S = 10.0
LONGEST_REST_S = 900.0
LONGEST_REST_WITHOUT_DATA_S = 60.0
"""Longest rest after a miss for want of the data: when their source is back, the run soon goes on."""
MAX_RESTS_COUNTED = 7
"""Rests that are counted: the longest one is reached, and as many applied results later the next is the first again."""
MAX_REASON_CHARS = 200


@dataclass(frozen=True, slots=True)
class Conduct:
    """How a client did in the rounds so far. The run remembers it after the client has left, while it is bad.

    Attributes:
        earned: the most batches that it gets in a round; 0 before its first one, in which it has a newcomer's part.
        missed: missed rounds that later results have not made up for, at most `MISSES_BEFORE_REST`.
        unattested: rounds that suffered from its attestation, or for lack of it, since its last proper one.
        delivered: results applied in a row that have not made up for anything yet.
        rests: number of rests that later results have not made up for; the next one is twice as long for each.
        rests_until_s: when its last rest ends, or has ended, on the run's clock.
        last_miss: why it missed a round last, in words.
        last_applied_step: the last step that applied a result of it.
        last_work_step: the last step in which it had work.
    """

    earned: int = 0
    missed: int = 0
    unattested: int = 0
    delivered: int = 0
    rests: int = 0
    rests_until_s: float | None = None
    last_miss: str = ""
    last_applied_step: int | None = None
    last_work_step: int = 0

    @property
    def is_good(self) -> bool:
        """Whether there is nothing that the client has to make up for."""
        return not (self.missed or self.unattested or self.rests)

    @property
    def misses(self) -> int:
        """Missed rounds, or rounds that suffered from its attestation, that it has not made up for."""
        return max(self.missed, self.unattested)

    def rest_s(self, now_s: float) -> float | None:
        """Return the seconds for which it is still kept off the rosters; None if it is not."""
        return self.rests_until_s - now_s if self.rests_until_s is not None and now_s < self.rests_until_s else None

    def is_resting(self, now_s: float) -> bool:
        """Whether the client is kept off the rosters."""
        return self.rests_until_s is not None and now_s < self.rests_until_s

    def with_result(self, batches: int, step: int) -> "Conduct":
        """Return it after a result of the client over so many batches was applied in `step`."""
        delivered, missed = self.delivered + 1, self.missed
        if delivered >= RESULTS_PER_MISS:
            delivered, missed = 0, max(0, missed - 1)
        return Conduct(  # nearly every member's, once a round: `replace` would take several times as long
            earned_by(batches),
            missed,
            self.unattested,
            delivered,
            self.rests - 1 if self.rests and not self.unattested else self.rests,
            self.rests_until_s,
            self.last_miss,
            step,
            step,
        )

    def with_attestation(self) -> "Conduct":
        """Return it after the client attested an outcome properly."""
        return replace(self, unattested=0) if self.unattested else self

    def with_miss(
        self, reason: str, now_s: float, longest_s: float = LONGEST_REST_S, *, batches: int | None = None
    ) -> "Conduct":
        """Return it after a missed round, at rest for at most `longest_s` if it was one too many.

        Args:
            reason: why it missed it, in words.
            now_s: seconds on the run's clock.
            longest_s: the longest rest.
            batches: that it had to do; None if it was another task.
        """
        earned = self.earned if batches is None else max(1, batches // 2)
        missed = replace(self, earned=earned, missed=min(self.missed + 1, MISSES_BEFORE_REST))
        return missed._after_miss(reason, now_s, longest_s)

    def with_bad_attestation(self, reason: str, now_s: float) -> "Conduct":
        """Return it after a round that suffered from its attestation, at rest if it was one too many."""
        return replace(self, unattested=min(self.unattested + 1, MISSES_BEFORE_REST))._after_miss(
            reason, now_s, LONGEST_REST_S
        )

    def _after_miss(self, reason: str, now_s: float, longest_s: float) -> "Conduct":
        after = replace(self, delivered=0, last_miss=reason[:MAX_REASON_CHARS])
        if after.misses < MISSES_BEFORE_REST:
            return after
        rest_s = min(FIRST_REST_S * 2**after.rests, longest_s)
        return replace(after, earned=1, rests=min(after.rests + 1, MAX_RESTS_COUNTED), rests_until_s=now_s + rest_s)


def earned_by(batches: int) -> int:
    """Return the most batches that a client gets after it delivered so many."""
    return 2 * batches


NEWCOMER = Conduct()
"""The conduct of a client that is not known yet."""
