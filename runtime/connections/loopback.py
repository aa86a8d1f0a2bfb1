"""Addresses that only this machine can reach."""

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
