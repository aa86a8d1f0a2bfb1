"""`runtime/files/ended_files.py`: large files that ended are written over by the next ones, and never read by
mistake."""

import errno
import gc
from pathlib import Path

import pytest

from epochal.runtime.files.ended_files import MAX_AGE_ROUNDS, MAX_RATIO, MIN_SPARE_BYTES
from epochal.runtime.files.spool import FOLDER_PREFIX, Spool
from epochal.state.errors import SpoolFull
from epochal.state.wire import sha256_hex
from tests.support.thinned import thinned

LARGE = bytes(range(256)) * (MIN_SPARE_BYTES // 256 + 100)


def inodes_in(parent: Path) -> set[int]:
    return {path.stat().st_ino for path in parent.glob(f"{FOLDER_PREFIX}*/*") if path.name != "lock"}


def spool_with_a_spare_file(parent: Path, max_bytes: int | None = None) -> tuple[Spool, set[int]]:
    """Return a spool in which one file of `LARGE` has ended, and the inodes of its files."""
    spool = Spool(parent, max_bytes)
    file = spool.keep([LARGE], len(LARGE))
    del file
    gc.collect()
    spool.settle()
    return spool, inodes_in(parent)


@thinned("size_bytes", [MIN_SPARE_BYTES, len(LARGE), len(LARGE) + 12_345])
def test_file_takes_over_the_place_but_no_byte_of_an_ended_one(tmp_path: Path, size_bytes: int) -> None:
    spool, before = spool_with_a_spare_file(tmp_path)
    data = bytes(size_bytes)
    file = spool.keep([data], size_bytes)
    assert inodes_in(tmp_path) == before
    assert (bytes(file.view()), file.hash()) == (data, sha256_hex(data))
    assert file[size_bytes - 5 : size_bytes + 5] == bytes(5)
    assert spool.used_bytes == size_bytes


def test_file_that_arrives_in_part_shows_no_byte_of_an_ended_one(tmp_path: Path) -> None:
    spool, _ = spool_with_a_spare_file(tmp_path)
    file = spool.file()
    file.reserve(len(LARGE))
    file.append(b"new")
    assert (file.to_bytes(), bytes(file.view())) == (b"new", b"new")


def test_room_reserved_again_for_less_keeps_what_was_appended(tmp_path: Path) -> None:
    file = Spool(tmp_path).keep([LARGE], len(LARGE))
    file.reserve(MIN_SPARE_BYTES)
    assert file.to_bytes() == LARGE


def test_file_of_another_size_is_made_anew(tmp_path: Path) -> None:
    spool, before = spool_with_a_spare_file(tmp_path)
    file = spool.file()
    file.reserve(MAX_RATIO * len(LARGE) + 1)
    assert len(inodes_in(tmp_path) - before) == 1


def test_file_that_no_round_needs_is_removed(tmp_path: Path) -> None:
    spool, before = spool_with_a_spare_file(tmp_path)
    for _ in range(MAX_AGE_ROUNDS):
        spool.begin_round()
    spool.settle()
    assert inodes_in(tmp_path) == before
    spool.begin_round()
    spool.settle()
    assert inodes_in(tmp_path) == set()


def test_bound_of_the_spool_holds_with_its_spare_files(tmp_path: Path) -> None:
    spool, before = spool_with_a_spare_file(tmp_path, max_bytes=4 * len(LARGE))
    file = spool.file()
    file.reserve(3 * len(LARGE))
    assert len(inodes_in(tmp_path)) == 2
    file.reserve(3 * len(LARGE) + 1)
    assert len(inodes_in(tmp_path)) == 1
    assert not inodes_in(tmp_path) & before


def test_full_disk_gets_the_room_of_spare_files_back(tmp_path: Path) -> None:
    spool, before = spool_with_a_spare_file(tmp_path)

    def needs_room() -> str:
        if inodes_in(tmp_path) & before:
            raise OSError(errno.ENOSPC, "no space left on device")
        return "written"

    def always_full() -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    assert spool._blocking("written", needs_room) == "written"
    with pytest.raises(SpoolFull, match="no space left"):
        spool._blocking("written", always_full)


def test_closed_spool_leaves_no_spare_file(tmp_path: Path) -> None:
    spool, before = spool_with_a_spare_file(tmp_path)
    assert before
    spool.close()
    assert inodes_in(tmp_path) == set()
