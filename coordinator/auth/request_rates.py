"""How often a member may report, and a key or an address may join, so that nobody fills the journal by repetition.

Each message takes a token of its sender's bucket, which is filled at once when the run enters another phase, because a
phase asks every member for new messages. Time is always an argument.
"""

from dataclasses import dataclass

from epochal.runtime.connections.loopback import is_loopback
from epochal.runtime.connections.token_buckets import TokenBuckets
from epochal.state.checkpoint_parts import MAX_PARTS
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal


@dataclass(frozen=True, slots=True)
class Rate:
    """How often each sender may do one thing. Each thing is counted apart.

    Attributes:
        at_once: number of times that it may do it at once.
        period_s: after them, it may do it once in each period.
        excess: says who did it too often, with `{sender}` and `{at_once}` in it.
    """

    at_once: int
    period_s: float
    excess: str


REPORTS = Rate(32, 5.0, "client {sender} has sent {at_once} messages in this phase")
"""An honest member sends four a round, and repeats what was lost. A phase that lasts allows 720 an hour, of less than
1 kB each."""
UPLOADS = Rate(256, 5.0, "client {sender} has begun {at_once} uploads in this phase")
"""Requests that bring a result, or ask where to put one. An honest member needs one a round, and another whenever its
connection breaks; they add nothing to the journal until the result is checked."""
REPLAYS = Rate(256, 1.0, "verifier {sender} has sent {at_once} messages in this phase")
"""Reports, failures and calibrations of a verifier: after the first, 3,600 an hour, or 2 MB of the journal."""
PARTS = Rate(2 * MAX_PARTS, 5.0, "client {sender} has sent {at_once} parts of a checkpoint")
"""Uploads of parts of one checkpoint: each part once, and as many again."""
JOINS = Rate(50, 20.0, "client {sender} has joined {at_once} times in a short time")
"""Joins of one key. A client gives up after 20 joins in a minute, because its key is shared."""
JOINS_OF_ADDRESS = Rate(16_384, 1.0, "{at_once} clients have joined from {sender} in a short time")
"""New members, with whatever keys, from one address: a cluster behind one has room. Keys cost nothing, and each join
takes about 1 kB of the journal: after the first, 4 MB an hour."""


class MessageRates:
    """The rates of one coordinator's members and verifiers."""

    def __init__(self) -> None:
        self._buckets: dict[Rate, TokenBuckets[str]] = {}

    def check(self, rate: Rate, sender: str, now_s: float, occasion: object = None) -> None:
        """Count something that a sender does.

        Args:
            rate: of what it does.
            sender: a member's or key's id, a verifier's name, or an address.
            now_s: seconds on a clock that never goes back.
            occasion: when this has changed (the phase, a checkpoint's step), the sender may do it as often as at first.

        Raises:
            Refused: `rate-limited`, if it does so too often.
        """
        wait_s = self._buckets.setdefault(rate, TokenBuckets(rate.at_once, rate.period_s)).take(sender, now_s, occasion)
        if wait_s:
            excess = rate.excess.format(sender=sender, at_once=rate.at_once)
            raise Refused(Refusal.RATE_LIMITED, f"{excess}; try again later", retry_after_s=wait_s)

    def check_new_member(self, address: str, now_s: float) -> None:
        """Raise `Refused` (`rate-limited`) if too many new members come from this address (see `sender_of`).

        Loopback addresses are exempt: a proxy on the machine speaks for everybody.
        """
        if not is_loopback(address):
            self.check(JOINS_OF_ADDRESS, address, now_s)
