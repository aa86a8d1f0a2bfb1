"""The rates at which new connections are accepted: in all, of strangers, and of one address.

Each new connection costs half a millisecond, before and whatever it asks. So it takes a token of its address and of all
strangers, and gets them back once it shows a member's valid token: whoever never shows one is soon out of tokens, and
refused for 60 microseconds each, most of it in the system. Addresses at which a member was seen recently have tokens of
their own, which strangers elsewhere cannot use up. Time is always an argument.
"""

from collections import OrderedDict
from dataclasses import dataclass

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
LAG_S = 0.01
"""Lateness of the event loop from which on it lags."""
LAGGING_TOKENS = 8.0
"""Tokens that a connection from an address without a member takes while the event loop lags."""

_ALL = ""


@dataclass(frozen=True, slots=True)
class Price:
    """Price of a new connection: tokens of its address, and as many of a pool."""

    pool: TokenBuckets[str]
    tokens: float


class AcceptRates:
    """The rates of one server's new connections."""

    def __init__(self) -> None:
        strangers = TokenBuckets[str](STRANGERS_AT_ONCE, 1 / STRANGERS_PER_S)
        self._of_known = Price(TokenBuckets(KNOWN_AT_ONCE, 1 / KNOWN_PER_S), 1.0)
        self._of_stranger, self._of_stranger_lagging = Price(strangers, 1.0), Price(strangers, LAGGING_TOKENS)
        self._addresses = TokenBuckets[str](ADDRESS_AT_ONCE, 1 / ADDRESS_PER_S)
        self._known: OrderedDict[str, float] = OrderedDict()
        """Until when each address is known."""
        self.is_lagging = False
        """Whether the event loop did late what was due."""

    def note_lag(self, late_s: float) -> None:
        """Take in how late the event loop did what was due."""
        self.is_lagging = late_s > LAG_S

    def take(self, address: str, now_s: float) -> Price | None:
        """Return what a new connection has taken; None if it is to be refused.

        Args:
            address: who sends, as `sender_of` returns it.
            now_s: seconds on a clock that never goes back.
        """
        if now_s < self._known.get(address, 0.0):
            price = self._of_known
        else:
            price = self._of_stranger_lagging if self.is_lagging else self._of_stranger
        # The address comes last: addresses of a flood that is refused leave nothing.
        for buckets, key in ((price.pool, _ALL), (self._addresses, address)):
            if buckets.wait_s(key, now_s, count=price.tokens):
                return None
        self._pay(address, price, price.tokens)
        return price

    def give_back(self, address: str, price: Price) -> None:
        """Give back what a connection took, because it has shown a member's token."""
        self._pay(address, price, -price.tokens)

    def know(self, address: str, now_s: float) -> None:
        """Record that a member was seen at an address."""
        self._known[address] = now_s + KNOWN_S
        self._known.move_to_end(address)
        if len(self._known) > MAX_BUCKETS:
            self._known.popitem(last=False)

    def _pay(self, address: str, price: Price, tokens: float) -> None:
        price.pool.spend(_ALL, tokens)
        self._addresses.spend(address, tokens)
