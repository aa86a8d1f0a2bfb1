"""Files whose bytes are sent from where the system keeps them."""

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochal.data_providers.providers.mapped_file import MAPS, MAX_VIEW_BYTES, MappedFile, mapped_if_told

pytestmark = pytest.mark.skipif(not MAPS, reason="files are mapped on Linux alone")

SIZE_BYTES = MAX_VIEW_BYTES + 2**16 + 5


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    """A file of random bytes, in memory."""
    (tmp_path / "a.bin").write_bytes(os.urandom(SIZE_BYTES))
    opened = os.open(tmp_path / "a.bin", os.O_RDWR)
    yield opened
    os.close(opened)


def map_all(fd: int) -> MappedFile:
    found = mapped_if_told(fd, SIZE_BYTES)
    assert found is not None
    return found


def is_in_memory(fd: int) -> bool:
    """Return whether the file's first byte can be read without the disk."""
    try:
        return os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False


def given(mapped: MappedFile, offset: int, count: int) -> bytes:
    (view,) = mapped.at_hand([(offset, count)])
    return bytes(view)


@pytest.mark.parametrize(
    ("offset", "count"), [(0, 1), (0, MAX_VIEW_BYTES), (4095, MAX_VIEW_BYTES), (4095, 2), (SIZE_BYTES - 1, 1)]
)
def test_view_holds_the_files_bytes(offset: int, count: int, fd: int) -> None:
    assert given(map_all(fd), offset, count) == os.pread(fd, count, offset)


@pytest.mark.parametrize(("offset", "count"), [(0, MAX_VIEW_BYTES + 1), (0, 0), (SIZE_BYTES - 1, 2), (SIZE_BYTES, 1)])
def test_view_beyond_the_file_or_too_long_is_not_given(offset: int, count: int, fd: int) -> None:
    assert map_all(fd).at_hand([(0, 1), (offset, count), (0, 1)]) == [os.pread(fd, 1, 0)]


def test_bytes_that_are_not_in_memory_are_not_given(fd: int) -> None:
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if is_in_memory(fd):
        if "CI" in os.environ:
            pytest.fail("the system keeps a file in memory that it was told to forget")
        pytest.skip("the temporary folder is in memory itself")
    mapped = map_all(fd)
    assert not mapped.at_hand([(0, SIZE_BYTES // 2)])
    os.pread(fd, SIZE_BYTES, 0)
    assert given(mapped, 0, SIZE_BYTES // 2) == os.pread(fd, SIZE_BYTES // 2, 0)


def test_bytes_that_were_cut_off_are_an_error_for_who_sends_them(fd: int) -> None:
    (view,) = map_all(fd).at_hand([(2**16, 2**16)])
    os.truncate(fd, 2**16)
    sender, receiver = socket.socketpair()
    with sender, receiver, pytest.raises(OSError, match=os.strerror(errno.EFAULT)):
        sender.send(view)


def test_empty_file_is_not_mapped(tmp_path: Path) -> None:
    (tmp_path / "empty.bin").touch()
    fd = os.open(tmp_path / "empty.bin", os.O_RDONLY)
    assert mapped_if_told(fd, 0) is None
    os.close(fd)
