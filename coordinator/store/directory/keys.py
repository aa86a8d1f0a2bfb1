"""The coordinator's secrets as files that only their owner can read."""

import asyncio
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from epochal.coordinator.store.keys import KEY_LOST
from epochal.runtime.files.durable_files import (
    PRIVATE_FOLDER_MODE,
    PRIVATE_MODE,
    make_folder,
    replace_file,
    sync_folder,
)
from epochal.runtime.files.key_file import load_or_create_private_key, load_private_key
from epochal.state.errors import StoreFailed

KEYS_FOLDER = "keys"
KEY_FILE = "coordinator.key"
ADMIN_FILE = "admin-token.sha256"
MAX_ADMIN_FILE_BYTES = 4096

T = TypeVar("T")


class DirectoryKeys:
    """The `CoordinatorKeys` protocol over `RUN_DIR/keys`."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / KEYS_FOLDER

    async def private_key(self) -> bytes | None:
        return await self._in_thread(KEY_FILE, _read_key)

    async def create_private_key(self) -> bytes:
        return await self._in_thread(KEY_FILE, _create_key)

    async def replace_private_key(self) -> bytes:
        return await self._in_thread(KEY_FILE, _replace_key)

    async def admin_token_sha256(self) -> bytes | None:
        return await self._in_thread(ADMIN_FILE, _read_digest)

    async def create_admin_token_sha256(self, digest: bytes) -> bytes:
        kept = await self.admin_token_sha256()  # the run directory's lock keeps others from creating one
        if kept is None:
            await self.keep_admin_token_sha256(digest)
        return digest if kept is None else kept

    async def keep_admin_token_sha256(self, digest: bytes) -> None:
        text = digest.hex().encode()
        await self._in_thread(ADMIN_FILE, lambda path: _keep(path, text))

    async def _in_thread(self, name: str, work: Callable[[Path], T]) -> T:
        """Return what work on a file returns; raise every failure as a `StoreFailed` that names the file."""
        path = self._folder / name
        try:
            return await asyncio.to_thread(work, path)
        except (OSError, ValueError) as error:
            raise StoreFailed(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _read_key(path: Path) -> bytes | None:
    try:
        return load_private_key(path).private_bytes_raw() if path.exists() else None
    except ValueError as error:
        raise ValueError(f"{error}; {KEY_LOST}") from error


def _create_key(path: Path) -> bytes:
    make_folder(path.parent, mode=PRIVATE_FOLDER_MODE)
    return load_or_create_private_key(path).private_bytes_raw()


def _keep(path: Path, data: bytes) -> None:
    make_folder(path.parent, mode=PRIVATE_FOLDER_MODE)
    replace_file(path, data, mode=PRIVATE_MODE)


def _replace_key(path: Path) -> bytes:
    """Set the kept file aside, numbered, and create a new key. A crash between the two leaves no key, which is told."""
    if path.exists():
        number = next(number for number in itertools.count(1) if not _aside(path, number).exists())
        path.rename(_aside(path, number))
        sync_folder(path.parent)
    return _create_key(path)


def _aside(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.old-{number}")


def _read_digest(path: Path) -> bytes | None:
    if not path.exists():
        return None
    text = path.read_bytes()[:MAX_ADMIN_FILE_BYTES].strip()
    if re.fullmatch(rb"[0-9a-fA-F]{64}", text) is None:
        raise ValueError(
            "it does not hold the admin token's SHA-256 as 64 hexadecimal digits; restore it from a backup, or replace "
            "the token: start with --new-admin-token"
        )
    return bytes.fromhex(text.decode("ascii"))
