"""Addresses that the documents of a run may lead to.

A run's document, an upload grant and a redirect name hosts that somebody else chose. Followed without a rule, they
would turn every client into a door to the network behind it: to services on its own machine, to its router, to the
metadata service of its cloud.

The rule kept here: an address is checked after its name was resolved, and the connection is made to the address that
was checked, so that a name that resolves differently the second time changes nothing. Documents lead to public
addresses, and to the kinds of address at which their own coordinator was met. The coordinator of a private network may
so name other machines of private networks, and one on this machine others on this machine. The owner of the machine
may allow more: networks, and hosts by name.

Source of the special networks: the IANA special-purpose address registries, as the module `ipaddress` has them.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias
from urllib.parse import urlsplit

from epochal.state.errors import InvalidInput, NotAllowed

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

METADATA_ADDRESSES = frozenset(
    map(
        ip_address,
        (
            *("169.254.169.254", "169.254.170.2", "169.254.170.23", "169.254.42.42"),
            *("100.100.100.200", "168.63.129.16", "192.0.0.192"),
            *("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42", "fe80::a9fe:a9fe"),
        ),
    )
)
"""Services that hand out a cloud machine's credentials to any program on it; some addresses are public ones."""
_SHARED = ip_network("100.64.0.0/10")
"""Shared address space of carriers (RFC 6598): also that of overlay networks. `ipaddress` calls it not private."""
_NAT64 = ip_network("64:ff9b::/96")
"""IPv4 addresses behind a translator (RFC 6052)."""


class AddressKind(StrEnum):
    """The kind of an address, as seen from this machine."""

    PUBLIC = "public"
    PRIVATE = "private"
    LOOPBACK = "loopback"
    LINK_LOCAL = "link-local"
    METADATA = "metadata"
    SPECIAL = "special"
    """Multicast, broadcast, unspecified and reserved addresses."""


def kind_of(address: Address) -> AddressKind:
    """Return the kind of an address. An IPv6 address that maps an IPv4 address has the kind of that one."""
    if isinstance(address, IPv6Address):
        inner = _embedded(address)
        if inner is not None:
            return kind_of(inner)
    if address in METADATA_ADDRESSES:
        return AddressKind.METADATA
    if address.is_loopback:
        return AddressKind.LOOPBACK
    if address.is_link_local:
        return AddressKind.LINK_LOCAL
    if address.is_multicast or address.is_unspecified or address.is_reserved:
        return AddressKind.SPECIAL
    if address in _SHARED or (isinstance(address, IPv6Address) and address.is_site_local):
        return AddressKind.PRIVATE
    if address.is_global:
        return AddressKind.PUBLIC
    return AddressKind.PRIVATE if address.is_private else AddressKind.SPECIAL


def _embedded(address: IPv6Address) -> IPv4Address | None:
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (None if teredo is None else teredo[1])


@dataclass(slots=True)
class Reach:
    """The addresses that one run's documents may lead a client to.

    Attributes:
        networks: those that the machine's owner allowed.
        hosts: names and addresses that the owner named himself, in lower case: connected wherever they are.
        home: the coordinator's host, in lower case, and port, where the owner named it: connected wherever it is, but
            not elsewhere than at public addresses once it was met at one: its name may resolve differently later.
        met: the kinds of address at which the coordinator was met; copies share it.
    """

    networks: tuple[Network, ...] = ()
    hosts: frozenset[str] = frozenset()
    home: tuple[str, int] | None = None
    met: set[AddressKind] = field(default_factory=set)

    def of_coordinator(self, url: str) -> "Reach":
        """Return this reach for the coordinator at this URL, which the owner named."""
        parts = urlsplit(url)
        return replace(self, home=(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)))

    def meet(self, address: str) -> None:
        """Learn that the coordinator answered at this address. A public one takes back what others opened."""
        kind = kind_of(_parsed(address))
        if kind is AddressKind.PUBLIC:
            self.met.clear()
        if AddressKind.PUBLIC not in self.met:
            self.met.add(kind)

    def connected(self, host: str, port: int, address: str) -> None:
        """Learn that a host answered at this address."""
        if (host.lower(), port) == self.home:
            self.meet(address)

    def check(self, host: str, address: str, port: int = 0) -> None:
        """Raise `NotAllowed` unless documents may lead to this address, to which the host's name was resolved.

        Args:
            host: the name or address in the document.
            address: the numeric address to be connected, with or without a scope.
            port: of the host.
        """
        if host.lower() in self.hosts:
            return
        if (host.lower(), port) == self.home and AddressKind.PUBLIC not in self.met:
            return
        found = _parsed(address)
        kind = kind_of(found)
        if any(found in network for network in self.networks):
            return
        if kind is AddressKind.PUBLIC or (kind in self.met and kind not in (AddressKind.METADATA, AddressKind.SPECIAL)):
            return
        shown = host if host == str(found) else f"{host} ({found})"
        raise NotAllowed(
            f"the run leads to {shown}, a {kind} address; which documents of this coordinator may not name; if you "
            f"trust them with it: --allow-network {found}",
            host=host,
            address=str(found),
        )


def parse_network(text: str) -> Network:
    """Return a network such as 10.0.0.0/8, or that of a single address. Raise `InvalidInput` for another text."""
    try:
        return ip_network(text)
    except ValueError as error:
        raise InvalidInput(
            f"--allow-network {text!a}: {error}; allowed: a network such as 10.0.0.0/8 or fd00::/8, or one address"
        ) from error


def _parsed(address: str) -> Address:
    return ip_address(address.partition("%")[0])
