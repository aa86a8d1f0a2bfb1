"""An Ed25519 private key in a file that its owner alone can read."""

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from runtime.durable_files import PRIVATE_MODE, create_file, make_folder

MAX_KEY_FILE_BYTES = 4096
RAW_KEY_BYTES = 32


def load_or_create_private_key(path: Path) -> Ed25519PrivateKey:
    """Return the key in the file; where there is no file, a fresh key is written there first (PEM, mode 0600).

    Of several processes that create it at once, one does, and all return its key. A file is never left half written: it
    would stop every later start.

    Args:
        path: a PEM file (PKCS #8), or one of 32 raw bytes.

    Raises:
        OSError: the file cannot be read or written.
        ValueError: it holds something else.
    """
    try:
        return _load(path)
    except FileNotFoundError:
        private = Ed25519PrivateKey.generate()
        pem = private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        make_folder(path.parent)
        try:
            create_file(path, pem, mode=PRIVATE_MODE)
        except FileExistsError:
            return _load(path)
        return private


def _load(path: Path) -> Ed25519PrivateKey:
    with path.open("rb") as file:
        data = file.read(MAX_KEY_FILE_BYTES)
    if len(data) == RAW_KEY_BYTES:
        return Ed25519PrivateKey.from_private_bytes(data)
    try:
        private = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError("it is neither a PEM private key nor 32 raw bytes") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise ValueError("it does not hold an Ed25519 key")
    return private
