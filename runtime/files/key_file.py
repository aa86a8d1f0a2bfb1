"""An Ed25519 private key in a file that only its owner can read."""

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from epochal.runtime.files.durable_files import PRIVATE_MODE, create_file, make_folder

MAX_KEY_FILE_BYTES = 4096
RAW_KEY_BYTES = 32


def load_or_create_private_key(path: Path) -> Ed25519PrivateKey:
    """Return the key in the file, PEM (PKCS #8) or 32 raw bytes; if there is no file, create one (PEM, mode 0600).

    If several processes create it at once, all return the same key. The file is created whole or not at all.

    Raises:
        OSError: the file cannot be read or written.
        ValueError: it holds something else.
    """
    try:
        return load_private_key(path)
    except FileNotFoundError:
        make_folder(path.parent)
        try:
            return create_private_key(path)
        except FileExistsError:
            return load_private_key(path)


def create_private_key(path: Path) -> Ed25519PrivateKey:
    """Return a fresh key, written to a new file (PEM, mode 0600), whole or not at all.

    Raises:
        FileExistsError: there is a file already; it stays as it is.
        OSError: the file cannot be written.
    """
    private = Ed25519PrivateKey.generate()
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    create_file(path, pem, mode=PRIVATE_MODE)
    return private


def load_private_key(path: Path) -> Ed25519PrivateKey:
    """Return the key in the file, PEM (PKCS #8) or 32 raw bytes.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds something else.
    """
    with path.open("rb") as file:
        data = file.read(MAX_KEY_FILE_BYTES)
    if len(data) == RAW_KEY_BYTES:
        return Ed25519PrivateKey.from_private_bytes(data)
    try:
        private = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError("it is neither a PEM private key nor 32 raw bytes") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise ValueError("it does not hold an Ed25519 key")
    return private
