"""A client's identity: an Ed25519 key, kept in a file of its own or made for one run.

The rule kept here: a private key is never readable by others and never leaves this module except as a signature.
"""

import os
import tempfile
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from state.errors import InvalidInput
from state.wire import ClientId, client_id_of

MAX_KEY_FILE_BYTES = 4096
RAW_KEY_BYTES = 32


class ClientKey:
    """An Ed25519 private key and the client id that follows from its public half."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        public = private.public_key().public_bytes_raw()
        self.public_key: str = public.hex()
        self.client_id: ClientId = client_id_of(public)

    @classmethod
    def ephemeral(cls) -> "ClientKey":
        """A fresh key that nobody keeps: a client with it is another client after a restart."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> "ClientKey":
        """The key of 32 secret bytes."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    def sign(self, message: bytes) -> str:
        """The signature as hex."""
        return self._private.sign(message).hex()


def load_or_create_key(path: Path) -> ClientKey:
    """The key in the file; where there is no file, a fresh key is written there first (PEM, mode 0600).

    Args:
        path: a PEM file (PKCS #8), or one of 32 raw bytes.

    Raises:
        InvalidInput: the file cannot be read or written, or holds something else; the user's fault.
    """
    try:
        return _load(path)
    except FileNotFoundError:
        return _create(path)
    except OSError as error:
        raise InvalidInput(f"key file {path} cannot be read: {error.strerror}", path=str(path)) from error


def _load(path: Path) -> ClientKey:
    with path.open("rb") as file:
        data = file.read(MAX_KEY_FILE_BYTES)
    try:
        if len(data) == RAW_KEY_BYTES:
            return ClientKey.from_seed(data)
        private = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidInput(f"key file {path} is neither a PEM private key nor 32 raw bytes", path=str(path)) from error
    if not isinstance(private, Ed25519PrivateKey):
        raise InvalidInput(f"key file {path} does not hold an Ed25519 key", path=str(path))
    return ClientKey(private)


def _create(path: Path) -> ClientKey:
    private = Ed25519PrivateKey.generate()
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_new(path, pem)
    except FileExistsError:  # another process was first: its key is the file's
        return _load(path)
    except OSError as error:
        raise InvalidInput(f"key file {path} cannot be written: {error.strerror}", path=str(path)) from error
    return ClientKey(private)


def _write_new(path: Path, data: bytes) -> None:
    """Makes the file whole or not at all: a key cut short by a kill or a full disk would stop every later start."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # readable by its owner alone
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(name, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            os.rename(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
