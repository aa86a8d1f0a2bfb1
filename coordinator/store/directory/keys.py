"""The coordinator's secrets as files of the run directory, readable by their owner alone."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.store.keys import ADMIN_TOKEN_DIGEST_BYTES, PRIVATE_KEY_BYTES
from runtime.durable_files import sync_folder
from state.errors import StoreFailed

KEYS_FOLDER = "keys"
KEY_FILE = "coordinator.key"
ADMIN_FILE = "admin-token.sha256"

T = TypeVar("T")


class DirectoryKeys:
    """The `CoordinatorKeys` protocol over `RUN_DIR/keys`."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / KEYS_FOLDER

    async def private_key(self) -> bytes:
        return await asyncio.to_thread(_naming, self._folder / KEY_FILE, _load_or_create_key)

    async def admin_token_sha256(self) -> bytes | None:
        return await asyncio.to_thread(_naming, self._folder / ADMIN_FILE, _read_digest)

    async def keep_admin_token_sha256(self, digest: bytes) -> None:
        text = digest.hex().encode()
        await asyncio.to_thread(_naming, self._folder / ADMIN_FILE, lambda path: _write_private(path, text))


def _naming(path: Path, work: Callable[[Path], T]) -> T:
    """Do the work on a file; every failure is a `StoreFailed` that names it."""
    try:
        return work(path)
    except OSError as error:
        raise StoreFailed(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise StoreFailed(f"{path}: {error}") from error


def _load_or_create_key(path: Path) -> bytes:
    if not path.exists():
        _write_private(path, Ed25519PrivateKey.generate().private_bytes_raw())
    key = path.read_bytes()
    if len(key) != PRIVATE_KEY_BYTES:
        raise ValueError(f"it holds {len(key)} bytes; a key has {PRIVATE_KEY_BYTES}")
    return key


def _read_digest(path: Path) -> bytes | None:
    if not path.exists():
        return None
    digest = bytes.fromhex(path.read_text(encoding="ascii").strip())
    if len(digest) != ADMIN_TOKEN_DIGEST_BYTES:
        raise ValueError(f"it holds {len(digest)} bytes, no SHA-256")
    return digest


def _write_private(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    sync_folder(path.parent.parent)
    fresh = path.with_name(path.name + ".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)
