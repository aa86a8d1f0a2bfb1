"""How often a member may report, and a key or an address may join, so that nobody fills the journal by repetition.

Each message takes a token of its sender's bucket, which is filled at once when the run enters another phase, because a
phase asks every member for new messages. Time is always an argument.
"""

from epochal.runtime.connections.loopback import is_loopback
from epochal.runtime.connections.token_buckets import TokenBuckets
from epochal.state.checkpoint_parts import MAX_PARTS
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId

REPORTS_PER_PHASE = 32
"""Number of messages that a member may send at once. An honest one sends four a round, and repeats what was lost."""
UPLOADS_PER_PHASE = 256
"""Number of requests that bring a result, or ask where to put one. An honest member needs one a round, and another
whenever its connection breaks; they add nothing to the journal until the result is checked."""
REPLAYS_PER_PHASE = 256
"""Number of messages (reports, failures, calibrations) that a verifier may send at once."""
REPLAY_PERIOD_S = 1.0
"""After them, it may send one in each period: 3,600 an hour, or 2 MB of the journal."""
PARTS_PER_CHECKPOINT = 2 * MAX_PARTS
"""Number of uploads of parts of one checkpoint that a member may send at once: each part once, and as many again."""
REPORT_PERIOD_S = 5.0
"""A phase that lasts allows a further message in each period: at most 720 an hour, of less than 1 kB each."""
JOINS_AT_ONCE = 50
"""Number of times a key may join at once. A client gives up after 20 joins in a minute, because its key is shared."""
JOIN_PERIOD_S = 20.0
"""After them, a key may join once in each period."""
JOINS_OF_ADDRESS_AT_ONCE = 16_384
"""Number of new members, with whatever keys, that may come from an address at once: a cluster behind one address has
room. Keys cost nothing, and each join takes about 1 kB of the journal."""
JOIN_PERIOD_OF_ADDRESS_S = 1.0
"""After them, one may come in each period: 3,600 an hour, or 4 MB."""


class MessageRates:
    """The rates of one coordinator's members."""

    def __init__(self) -> None:
        self._reports = TokenBuckets[ClientId](REPORTS_PER_PHASE, REPORT_PERIOD_S)
        self._uploads = TokenBuckets[ClientId](UPLOADS_PER_PHASE, REPORT_PERIOD_S)
        self._replays = TokenBuckets[str](REPLAYS_PER_PHASE, REPLAY_PERIOD_S)
        self._parts = TokenBuckets[ClientId](PARTS_PER_CHECKPOINT, REPORT_PERIOD_S)
        self._joins = TokenBuckets[ClientId](JOINS_AT_ONCE, JOIN_PERIOD_S)
        self._joins_of_addresses = TokenBuckets[str](JOINS_OF_ADDRESS_AT_ONCE, JOIN_PERIOD_OF_ADDRESS_S)

    def check_report(self, client_id: ClientId, now_s: float, occasion: object) -> None:
        """Raise `Refused` (`rate-limited`) if the member sends too many messages in this phase of the run."""
        wait_s = self._reports.take(client_id, now_s, occasion)
        _check(wait_s, f"client {client_id} has sent {REPORTS_PER_PHASE} messages in this phase")

    def check_upload(self, client_id: ClientId, now_s: float, occasion: object) -> None:
        """Raise `Refused` (`rate-limited`) if the member begins too many uploads of results in this phase of the run.

        They are counted apart from its messages: a connection that breaks often leaves these their number.
        """
        wait_s = self._uploads.take(client_id, now_s, occasion)
        _check(wait_s, f"client {client_id} has begun {UPLOADS_PER_PHASE} uploads in this phase")

    def check_replay(self, verifier: str, now_s: float, occasion: object) -> None:
        """Raise `Refused` (`rate-limited`) if the verifier sends too many messages in this phase of the run."""
        wait_s = self._replays.take(verifier, now_s, occasion)
        _check(wait_s, f"verifier {verifier} has sent {REPLAYS_PER_PHASE} messages in this phase")

    def check_part(self, client_id: ClientId, now_s: float, step: int) -> None:
        """Raise `Refused` (`rate-limited`) if the member uploads parts of a checkpoint too often.

        They are counted apart from its messages, of which a checkpoint has more than any round.

        Args:
            client_id: the member.
            now_s: seconds on a clock that never goes back.
            step: of the checkpoint.
        """
        wait_s = self._parts.take(client_id, now_s, step)
        _check(wait_s, f"client {client_id} has sent {PARTS_PER_CHECKPOINT} parts of a checkpoint")

    def check_join(self, client_id: ClientId, now_s: float) -> None:
        """Raise `Refused` (`rate-limited`) if this key joins too often."""
        wait_s = self._joins.take(client_id, now_s)
        _check(wait_s, f"client {client_id} has joined {JOINS_AT_ONCE} times in a short time")

    def check_new_member(self, address: str, now_s: float) -> None:
        """Raise `Refused` (`rate-limited`) if too many new members come from this address (see `sender_of`).

        Loopback addresses are exempt: a proxy on the machine speaks for everybody.
        """
        wait_s = 0.0 if is_loopback(address) else self._joins_of_addresses.take(address, now_s)
        _check(wait_s, f"{JOINS_OF_ADDRESS_AT_ONCE} clients have joined from {address} in a short time")


def _check(wait_s: float, message: str) -> None:
    """Raise `Refused` (`rate-limited`) unless nothing is to be waited for."""
    if wait_s:
        raise Refused(Refusal.RATE_LIMITED, f"{message}; try again later", retry_after_s=wait_s)
