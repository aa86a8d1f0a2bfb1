"""The host by which a server is reached from its own machine."""

import hashlib
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from epochal.runtime.http.certificate_names import dialled_host, names_in, own_fingerprint
from epochal.runtime.http.http_server import Endpoint
from tests.support.servers.certificates import issued, self_signed


@pytest.mark.parametrize(
    ("listens_on", "host"),
    [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("127.0.0.1", "127.0.0.1"), ("a.example", "a.example")],
)
def test_server_without_certificate_is_reached_at_loopback_or_its_name(listens_on: str, host: str) -> None:
    assert dialled_host(listens_on, None) == host


@pytest.mark.parametrize("name", ["localhost", "coordinator.example"])
def test_server_of_every_address_is_reached_by_a_name_of_its_certificate(tmp_path: Path, name: str) -> None:
    certificate, key = self_signed(tmp_path, x509.DNSName(name))
    assert names_in(certificate) == {name}
    endpoint = Endpoint("0.0.0.0", 0, certificate, key)
    with endpoint.bind() as listener:
        assert endpoint.url_of(listener) == f"https://{name}:{listener.getsockname()[1]}"


def test_certificate_of_an_authority_is_not_its_own(tmp_path: Path) -> None:
    certificate, _ = self_signed(tmp_path)
    encoded = ssl.PEM_cert_to_DER_cert(certificate.read_text())
    assert own_fingerprint(certificate) == hashlib.sha256(encoded).hexdigest()
    assert own_fingerprint(issued(tmp_path, x509.DNSName("coordinator.example"))[0]) is None
    assert own_fingerprint(None) is None
