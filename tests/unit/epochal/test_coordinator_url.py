"""A coordinator's address as people copy it."""

import pytest

from epochal.cli.options.shared import coordinator_url


@pytest.mark.parametrize(
    ("copied", "url"),
    [
        ("http://host:8000/#/join", "http://host:8000"),
        (" https://host:8443/ ", "https://host:8443"),
        ("host.example:8000", "https://host.example:8000"),
        ("localhost:8000", "http://localhost:8000"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("http://host:8000/?a=b", "http://host:8000/?a=b"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("nonsense", "nonsense"),
    ],
)
def test_address_is_understood_as_it_is_copied(copied: str, url: str) -> None:
    assert coordinator_url(copied) == url
