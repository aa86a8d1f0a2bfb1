"""The rates at which new connections are accepted: in all, of strangers, and of one address.

Each new connection costs half a millisecond, before and whatever it asks. So it takes a token of its address and of all
strangers, and gets them back once a member joins by it or shows its valid token: all others are soon out of tokens, and
refused for 60 microseconds each, most of it in the system. Addresses at which a member was seen recently have tokens of
their own, which strangers elsewhere cannot use up. Time is always an argument.
"""

from collections import OrderedDict
from typing import TypeAlias

from epochal.runtime.connections.token_buckets import MAX_BUCKETS, TokenBuckets

STRANGERS_PER_S = 100
"""Number of connections a second, from addresses without a member, that never show a token: 5 % of a core."""
STRANGERS_AT_ONCE = 1024
KNOWN_PER_S = 1024
"""The same from all addresses together at which a member was seen recently."""
KNOWN_AT_ONCE = 4096
ADDRESS_PER_S = 150
"""The same from one address, with a member or without."""
ADDRESS_AT_ONCE = 1024
KNOWN_S = 3600.0
"""Time for which an address is known after the last connection of a member there: as long as a client comes back."""
_ALL = ""


Pool: TypeAlias = TokenBuckets[str]


class AcceptRates:
    """The rates of one server's new connections."""

    def __init__(self) -> None:
        self._of_strangers = Pool(STRANGERS_AT_ONCE, 1 / STRANGERS_PER_S)
        self._of_known = Pool(KNOWN_AT_ONCE, 1 / KNOWN_PER_S)
        self._addresses = Pool(ADDRESS_AT_ONCE, 1 / ADDRESS_PER_S)
        self._known: OrderedDict[str, float] = OrderedDict()
        """Until when each address is known."""

    def take(self, address: str, now_s: float) -> Pool | None:
        """Return the pool from which a new connection has taken a token; None if it is to be refused.

        Args:
            address: who sends, as `sender_of` returns it.
            now_s: seconds on a clock that never goes back.
        """
        pool = self._of_known if now_s < self._known.get(address, 0.0) else self._of_strangers
        # The address comes last: addresses of a flood that is refused leave nothing.
        if pool.wait_s(_ALL, now_s) or self._addresses.wait_s(address, now_s):
            return None
        self._pay(address, pool, 1.0)
        return pool

    def give_back(self, address: str, pool: Pool) -> None:
        """Give back what a connection took, because it has shown a member's token."""
        self._pay(address, pool, -1.0)

    def know(self, address: str, now_s: float) -> None:
        """Record that a member was seen at an address."""
        self._known[address] = now_s + KNOWN_S
        self._known.move_to_end(address)
        if len(self._known) > MAX_BUCKETS:
            self._known.popitem(last=False)

    def _pay(self, address: str, pool: Pool, tokens: float) -> None:
        pool.spend(_ALL, tokens)
        self._addresses.spend(address, tokens)
