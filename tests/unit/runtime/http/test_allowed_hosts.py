"""Under which names a server answers."""

import pytest

from epochal.runtime.http.allowed_hosts import ANY_HOST, allowed_hosts, host_in
from epochal.state.errors import InvalidInput


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1"])
def test_server_on_loopback_has_no_name_beyond_it(address: str) -> None:
    assert allowed_hosts(address, ()) == frozenset({address})
    assert allowed_hosts(address, ["run.example.org"]) == frozenset({address, "run.example.org"})


def test_server_for_other_machines_has_any_name_unless_some_are_given() -> None:
    assert allowed_hosts("0.0.0.0", ()) is ANY_HOST
    assert allowed_hosts("192.0.2.1", ["Run.Example.org."]) == frozenset({"192.0.2.1", "run.example.org"})


@pytest.mark.parametrize("name", ["http://run.example.org", "run.example.org:443", "", "a b", "*"])
def test_name_that_is_not_a_host_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="without scheme and port"):
        allowed_hosts("0.0.0.0", [name])


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("localhost", "localhost"),
        ("LocalHost:8000", "localhost"),
        ("run.example.org.:443", "run.example.org"),
        ("192.0.2.1:80", "192.0.2.1"),
        ("[2001:DB8:0:0::1]:8000", "2001:db8::1"),
        ("a:", "a"),
        ("", None),
        (":80", None),
        ("a:80:80", None),
        ("a:port", None),
        ("a:123456", None),
        ("http://a", None),
        ("a/b", None),
        ("a@b", None),
        ("[a]", None),
        ("[:]", None),
        ("2001:db8::1", None),
    ],
)
def test_host_in_a_header_is_its_name_without_the_port(header: str, host: str | None) -> None:
    assert host_in(header) == host
