"""Which addresses the documents of a run may lead to."""

from ipaddress import ip_address

import pytest

from epochal.runtime.connections.allowed_addresses import AddressKind, Reach, kind_of, parse_network
from epochal.state.errors import InvalidInput, NotAllowed

MORE_METADATA = (
    *("fd20:ce::254", "fd00:ec2::23", "fd00:42::42", "fe80::a9fe:a9fe"),
    *("169.254.170.23", "169.254.42.42", "::ffff:169.254.170.23"),
)
KINDS = {
    AddressKind.PUBLIC: ("93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::5db8:d822"),
    AddressKind.PRIVATE: (
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "fd12::1",
        "100.64.0.1",
        "::ffff:10.0.0.1",
        "fec0::1",
    ),
    AddressKind.LOOPBACK: ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"),
    AddressKind.LINK_LOCAL: ("169.254.1.1", "fe80::1", "::ffff:169.254.1.1"),
    AddressKind.METADATA: ("169.254.169.254", "168.63.129.16", "100.100.100.200", "fd00:ec2::254", *MORE_METADATA),
    AddressKind.SPECIAL: ("224.0.0.1", "0.0.0.0", "::", "255.255.255.255", "240.0.0.1", "ff02::1"),
}
ALL = [(kind, address) for kind, addresses in KINDS.items() for address in addresses]


def test_kind_of_address() -> None:
    assert [(kind_of(ip_address(address)), address) for _, address in ALL] == ALL


@pytest.mark.parametrize(("kind", "address"), ALL)
def test_public_coordinator_leads_to_public_addresses_only(kind: AddressKind, address: str) -> None:
    reach = Reach()
    reach.meet("93.184.216.34")
    if kind is AddressKind.PUBLIC:
        reach.check("host", address)
    else:
        with pytest.raises(NotAllowed, match="--allow-network"):
            reach.check("host", address)


@pytest.mark.parametrize(
    ("met", "address", "allowed"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "::1", True),
        ("127.0.0.1", "10.0.0.1", False),
        ("10.0.0.1", "192.168.0.9", True),
        ("10.0.0.1", "127.0.0.1", False),
        ("169.254.7.7", "169.254.7.8", True),
        ("169.254.7.7", "169.254.169.254", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("10.0.0.1", "93.184.216.34", True),
    ],
)
def test_coordinator_leads_to_addresses_of_its_own_kind(met: str, address: str, allowed: bool) -> None:
    reach = Reach()
    reach.meet(met)
    if allowed:
        reach.check("host", address)
    else:
        with pytest.raises(NotAllowed):
            reach.check("host", address)


def test_coordinator_met_at_public_address_opens_nothing_more() -> None:
    reach = Reach()
    reach.meet("127.0.0.1")
    reach.meet("93.184.216.34")
    reach.meet("127.0.0.1")
    with pytest.raises(NotAllowed):
        reach.check("host", "127.0.0.1")


def test_coordinator_that_was_not_met_leads_to_public_addresses_only() -> None:
    Reach().check("host", "93.184.216.34")
    with pytest.raises(NotAllowed):
        Reach().check("host", "127.0.0.1")


def test_allowed_network_and_named_host_are_connected() -> None:
    reach = Reach((parse_network("10.0.0.0/8"),), frozenset({"nas.local"}))
    reach.meet("93.184.216.34")
    reach.check("host", "10.9.9.9")
    reach.check("NAS.local", "192.168.0.9")
    with pytest.raises(NotAllowed):
        reach.check("host", "192.168.0.9")


def test_network_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="--allow-network"):
        parse_network("10.0.0.1/8")
