"""A client's identity: an Ed25519 key, kept in a separate file or made for one run.

The rule kept here: a private key never leaves this module except as a signature.
"""

from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from epochal.runtime.files.key_file import create_private_key, load_or_create_private_key, load_private_key
from epochal.state.errors import InvalidInput
from epochal.state.wire import ClientId, client_id_of


class WrongKeyFile(InvalidInput):
    """A client's key file is missing, holds no key, or cannot be written. The user's fault."""


class ClientKey:
    """An Ed25519 private key and the client id that follows from its public half. `path` is its file, if it has one."""

    def __init__(self, private: Ed25519PrivateKey, path: Path | None = None) -> None:
        self._private = private
        self.path = path
        public = private.public_key().public_bytes_raw()
        self.public_key: str = public.hex()
        self.client_id: ClientId = client_id_of(public)

    @classmethod
    def ephemeral(cls) -> "ClientKey":
        """Return a fresh key that is not kept: after a restart the client is another one."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> "ClientKey":
        """Return the key of 32 secret bytes."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    def sign(self, message: bytes) -> str:
        """Return the signature as hex."""
        return self._private.sign(message).hex()


def load_key(path: Path) -> ClientKey:
    """Return the key in the file.

    Args:
        path: a PEM file (PKCS #8), or one of 32 raw bytes.

    Raises:
        WrongKeyFile: there is no such file, it cannot be read, or it holds no key; the user's fault.
    """
    return _as_client_key(load_private_key, path)


def load_or_create_key(path: Path) -> ClientKey:
    """Return the key in the file. If there is no file, write a fresh key to it first (PEM, mode 0600).

    The folder must exist, because a path in a missing folder is more likely mistyped than meant. Raises as `load_key`,
    and `WrongKeyFile` if the file cannot be written.
    """
    _check_folder(path)
    return _as_client_key(load_or_create_private_key, path)


def create_key(path: Path) -> ClientKey:
    """Return a fresh key, written to a new file (PEM, mode 0600). A file that exists is not touched.

    Raises:
        WrongKeyFile: there is a file, or no folder, or it cannot be written; the user's fault.
    """
    _check_folder(path)
    try:
        return ClientKey(create_private_key(path), path)
    except FileExistsError as error:
        message = f"key file {path} exists, and is not overwritten; `epochal key show {path}` prints its public key"
        raise WrongKeyFile(message, path=str(path)) from error
    except OSError as error:
        raise WrongKeyFile(f"key file {path} cannot be written: {error.strerror}", path=str(path)) from error


def _check_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise WrongKeyFile(f"key file {path}: there is no folder {path.parent}; make it first", path=str(path))


def _as_client_key(read: Callable[[Path], Ed25519PrivateKey], path: Path) -> ClientKey:
    try:
        return ClientKey(read(path), path)
    except FileNotFoundError as error:
        hint = f"check the path, or make a key there: `epochal key new {path}`, or --new-key of `epochal client`"
        raise WrongKeyFile(f"key file {path} does not exist; {hint}", path=str(path)) from error
    except OSError as error:
        raise WrongKeyFile(f"key file {path} cannot be read or written: {error.strerror}", path=str(path)) from error
    except ValueError as error:
        raise WrongKeyFile(f"key file {path}: {error}", path=str(path)) from error
