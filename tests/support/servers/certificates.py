"""Self-signed certificates."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LOOPBACK = x509.IPAddress(ip_address("127.0.0.1"))


def self_signed(folder: Path, holder: x509.GeneralName = LOOPBACK) -> tuple[Path, Path]:
    """Return the files of a self-signed certificate and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a server under test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([holder]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_path, key_path = folder / "cert.pem", folder / "cert-key.pem"
    cert_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_path, key_path


def issued(folder: Path, *holders: x509.GeneralName) -> tuple[Path, Path]:
    """Return the files of a chain, which ends with the certificate of its own authority, and of its key."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority under test")])
    now = datetime.now(UTC)

    def signed(name: x509.Name, public_key: ec.EllipticCurvePublicKey, *extensions: x509.ExtensionType) -> bytes:
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(authority).public_key(public_key)
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(minutes=5))
        builder = builder.not_valid_after(now + timedelta(hours=1))
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    server = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a server under test")])
    itself = signed(authority, authority_key.public_key(), x509.BasicConstraints(ca=True, path_length=0))
    chain_path, key_path = folder / "chain.pem", folder / "chain-key.pem"
    chain_path.write_bytes(signed(server, key.public_key(), x509.SubjectAlternativeName(holders)) + itself)
    key_path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return chain_path, key_path
