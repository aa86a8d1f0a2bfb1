"""`runtime/files/key_file.py`: a key is made once, whole, and for its owner alone."""

import asyncio
import os
import resource
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from epochal.runtime.files.key_file import load_or_create_private_key
from tests.support.drive.other_process import other_process


def raw_key(path: Path) -> bytes:
    return load_or_create_private_key(path).private_bytes_raw()


def test_key_is_made_once_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "key.pem"
    key = raw_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert raw_key(path) == key


async def test_key_that_a_full_disk_cut_short_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    with other_process() as process, pytest.raises(OSError, match="too large"):
        await process.ask(_make_key_on_a_full_disk, path)
    assert os.listdir(tmp_path) == [], "what is left would be refused at every later start"
    assert raw_key(path) == raw_key(path)


def _make_key_on_a_full_disk(path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    load_or_create_private_key(path)


async def test_key_that_several_make_at_once_is_one_key(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(asyncio.to_thread(raw_key, path)) for _ in range(8)]
    assert {task.result() for task in tasks} == {raw_key(path)}
    assert os.listdir(tmp_path) == [path.name]


def test_key_of_raw_bytes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    path.write_bytes(bytes([3]) * 32)
    assert raw_key(path) == bytes([3]) * 32


def _other_kind_of_key() -> bytes:
    return generate_private_key(SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@pytest.mark.parametrize(
    "content",
    [b"", b"not a key", b"-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n", _other_kind_of_key()],
    ids=["empty", "text", "damaged", "another algorithm"],
)
def test_file_that_holds_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="it "):
        load_or_create_private_key(path)
