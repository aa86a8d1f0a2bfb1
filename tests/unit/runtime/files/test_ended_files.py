"""`runtime/files/ended_files.py`: files that ended are removed, and their room is found again."""

import errno
import gc
from pathlib import Path

import pytest

from epochal.runtime.files.spool import FOLDER_PREFIX, MAX_IN_MEMORY_BYTES, Spool
from epochal.state.errors import SpoolFull

LARGE = bytes(2 * MAX_IN_MEMORY_BYTES)


def files_in(parent: Path) -> set[Path]:
    return {path for path in parent.glob(f"{FOLDER_PREFIX}*/*") if path.name != "lock"}


def test_file_that_is_no_longer_used_is_removed(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    file = spool.keep([LARGE], len(LARGE))
    assert len(files_in(tmp_path)) == 1
    del file
    gc.collect()
    spool.settle()
    assert files_in(tmp_path) == set()


def test_room_reserved_again_for_less_keeps_what_was_appended(tmp_path: Path) -> None:
    file = Spool(tmp_path).keep([LARGE], len(LARGE))
    file.reserve(MAX_IN_MEMORY_BYTES + 1)
    assert file.to_bytes() == LARGE


def test_full_disk_gets_the_room_of_ended_files_back(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    held = [spool.keep([LARGE], len(LARGE))]

    def needs_room() -> str:
        if held:
            held.clear()
            gc.collect()
            raise OSError(errno.ENOSPC, "no space left on device")
        assert files_in(tmp_path) == set()
        return "written"

    def always_full() -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    assert spool._blocking("written", needs_room) == "written"
    with pytest.raises(SpoolFull, match="no space left"):
        spool._blocking("written", always_full)
