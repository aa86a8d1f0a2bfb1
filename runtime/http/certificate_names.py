"""The names for which a certificate is valid, that by which its own machine reaches it, and who trusts it."""

from pathlib import Path

from epochal.runtime.connections.loopback import is_loopback
from epochal.state.wire import Sha256

EVERY_ADDRESS = frozenset({"0.0.0.0", "::", ""})
"""What a server listens on that every address of its machine reaches; nobody can connect to it."""


def names_in(certificate: Path | None) -> set[str]:
    """Return the names and addresses for which a certificate is valid (RFC 6125); none without a certificate."""
    if certificate is None:
        return set()
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    return addresses | {name.lower() for name in names.get_values_for_type(x509.DNSName)}


def own_fingerprint(certificate: Path | None) -> Sha256 | None:
    """Return the SHA-256 of a certificate (PEM) that is its own authority, so that only those trust it who have it.

    Return None for one of another authority, and without a certificate.
    """
    if certificate is None:
        return None
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    found = x509.load_pem_x509_certificate(certificate.read_bytes())
    return Sha256(found.fingerprint(SHA256()).hex()) if found.issuer == found.subject else None


def dialled_host(listens_on: str, certificate: Path | None) -> str:
    """Return a host by which a server is reached from its own machine.

    Args:
        listens_on: its name or address; of every address of the machine, one that works.
        certificate: its own (PEM), in which the host must be; None without TLS.
    """
    if listens_on not in EVERY_ADDRESS:
        return listens_on
    names = sorted(name for name in names_in(certificate) if not name.startswith("*."))
    own = [name for name in names if is_loopback(name)]
    return next(iter(own + names), "::1" if listens_on == "::" else "127.0.0.1")
