"""The address of a connection's other end, as far as one sender can be told from another by it."""

from ipaddress import IPv6Address, IPv6Network, ip_address

IPV6_PREFIX_BITS = 64
"""One IPv6 subscriber usually has all addresses of such a network, so that they count as one."""


def network_of(peername: object) -> str:
    """Return the IPv4 address, or the network of the IPv6 address, in a socket's `peername`; "" if there is none."""
    if not isinstance(peername, tuple) or not peername:
        return ""
    try:
        address = ip_address(str(peername[0]).partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(IPv6Network((int(address), IPV6_PREFIX_BITS), strict=False))
    return str(address)
