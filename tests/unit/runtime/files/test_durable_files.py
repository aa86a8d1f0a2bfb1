"""`runtime/files/durable_files.py`: files that are whole or not there, and durable with their names."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from epochal.runtime.files.durable_files import PRIVATE_MODE, Disk, create_file, make_folder, replace_file
from epochal.state.model.tensors import Buffer
from tests.support.data.recording_disk import RecordingDisk

Write = Callable[..., None]
both_ways = pytest.mark.parametrize("write", [replace_file, create_file])


def _full(file: BinaryIO, data: Buffer) -> None:
    file.write(data[:1])
    raise OSError("no space left")


@both_ways
def test_written_file_and_its_name_are_durable(tmp_path: Path, write: Write) -> None:
    recording = RecordingDisk()
    write(tmp_path / "file", b"data", recording.disk)
    assert (tmp_path / "file").read_bytes() == b"data"
    assert recording.lacks(tmp_path, tmp_path / "file") == []
    assert os.listdir(tmp_path) == ["file"]


@both_ways
def test_private_file_is_readable_by_its_owner_alone(tmp_path: Path, write: Write) -> None:
    write(tmp_path / "file", b"secret", mode=PRIVATE_MODE)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


@both_ways
def test_failed_write_leaves_no_file_of_that_name(tmp_path: Path, write: Write) -> None:
    with pytest.raises(OSError, match="no space"):
        write(tmp_path / "file", b"data", Disk(write=_full))
    assert not (tmp_path / "file").exists()


def test_failed_replacement_leaves_the_old_file(tmp_path: Path) -> None:
    replace_file(tmp_path / "file", b"old")
    with pytest.raises(OSError, match="no space"):
        replace_file(tmp_path / "file", b"new", Disk(write=_full))
    assert (tmp_path / "file").read_bytes() == b"old"


def test_file_that_is_there_is_not_created_again(tmp_path: Path) -> None:
    create_file(tmp_path / "file", b"first")
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "file", b"second")
    assert (tmp_path / "file").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file"]


def fail_links(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def no_links(*paths: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", no_links)


def test_created_file_needs_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_links(monkeypatch, errno.EPERM)
    create_file(tmp_path / "file", b"data")
    assert (tmp_path / "file").read_bytes() == b"data"
    assert os.listdir(tmp_path) == ["file"]


def test_file_without_links_is_not_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_links(monkeypatch, errno.EPERM)
    create_file(tmp_path / "file", b"first")
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "file", b"second")
    assert (tmp_path / "file").read_bytes() == b"first"


def test_full_disk_is_not_taken_for_one_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_links(monkeypatch, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        create_file(tmp_path / "file", b"data")
    assert os.listdir(tmp_path) == []


def test_new_folders_are_durable_by_name(tmp_path: Path) -> None:
    recording = RecordingDisk()
    make_folder(tmp_path / "one" / "two", recording.disk)
    assert recording.lacks(tmp_path, tmp_path / "one") == []
