"""Counts items by sender address, and finds the address with the most of them at once."""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Generic, TypeVar

IPV6_NETWORK_BITS = 64
"""One sender usually has a whole network of this size, and is counted as one."""

T = TypeVar("T")


@lru_cache(maxsize=4096)
def sender_of(host: str) -> str:
    """Return the sender that an address belongs to: an IPv4 address, or the network of an IPv6 address."""
    if ":" not in host:
        return host
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    assert isinstance(address, IPv6Address), "it has a colon"
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> IPV6_NETWORK_BITS << IPV6_NETWORK_BITS)}/{IPV6_NETWORK_BITS}"


class ByAddress(Generic[T]):
    """Things by address, oldest first. Every method takes constant time, however many addresses there are."""

    def __init__(self) -> None:
        self._held: dict[str, dict[T, None]] = {}
        self._with_count: dict[int, dict[str, None]] = {}
        """The addresses with each number of things."""
        self._largest = 0
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def addresses(self) -> Iterable[str]:
        """Return the addresses from which there is something."""
        return self._held

    def count(self, address: str) -> int:
        """Return the number of things from an address."""
        return len(self._held.get(address, ()))

    def add(self, address: str, thing: T) -> None:
        """Add a thing, as the newest of its address."""
        things = self._held.setdefault(address, {})
        if thing not in things:
            things[thing] = None
            self._total += 1
            self._recount(address, len(things) - 1, len(things))

    def remove(self, address: str, thing: T) -> None:
        """Remove a thing if it is held."""
        things = self._held.get(address, {})
        if thing in things:
            del things[thing]
            self._total -= 1
            self._recount(address, len(things) + 1, len(things))
            if not things:
                del self._held[address]

    def oldest(self, address: str) -> T | None:
        """Return the oldest thing from an address, or None."""
        return next(iter(self._held.get(address, ())), None)

    def oldest_of_most(self) -> T | None:
        """Return the oldest thing from the address with the most of them, or None."""
        addresses = self._with_count.get(self._largest)
        return None if not addresses else self.oldest(next(iter(addresses)))

    def _recount(self, address: str, before: int, after: int) -> None:
        if before:
            addresses = self._with_count[before]
            del addresses[address]
            if not addresses:
                del self._with_count[before]
        if after:
            self._with_count.setdefault(after, {})[address] = None
        if after > self._largest or (before == self._largest and before not in self._with_count):
            self._largest = after
