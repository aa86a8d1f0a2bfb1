"""`runtime/files/spool.py`: temporary files that nobody else reads, that go when nobody uses them, and that say when
full."""

import gc
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.runtime.files.files_beside import FilesBeside
from epochal.runtime.files.spool import FOLDER_PREFIX, MAX_IN_MEMORY_BYTES, Spool
from epochal.state.errors import SpoolFull
from epochal.state.wire import sha256_hex
from tests.support.data.spooled import SPOOL_PARENT

LARGE = bytes(range(256)) * (MAX_IN_MEMORY_BYTES // 256 + 1)


def files_in(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.glob(f"{FOLDER_PREFIX}*/*") if path.name != "lock")


@given(st.lists(st.binary(max_size=MAX_IN_MEMORY_BYTES), max_size=6))
def test_file_holds_what_was_appended_in_memory_or_on_disk(pieces: list[bytes]) -> None:
    file = Spool(SPOOL_PARENT).keep(pieces)
    data = b"".join(pieces)
    assert (file.to_bytes(), bytes(file.view()), file.size_bytes) == (data, data, len(data))
    assert file.sha256() == file.hash() == sha256_hex(data)
    assert file[3:40] == data[3:40]
    assert b"".join(file.pieces(1000)) == data


def test_small_file_never_reaches_the_disk(tmp_path: Path) -> None:
    file = Spool(tmp_path).keep([bytes(MAX_IN_MEMORY_BYTES)])
    assert list(tmp_path.iterdir()) == []
    assert file.descriptor is None


def test_file_stays_while_a_view_of_it_is_used_and_then_goes(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    file = spool.keep([LARGE])
    values = np.frombuffer(file.view(), np.uint8)
    part = values[5:9]
    del file, values
    gc.collect()
    assert len(files_in(tmp_path)) == 1
    assert spool.used_bytes == len(LARGE)
    spool.drop_pages()
    assert bytes(part) == LARGE[5:9]
    del part
    gc.collect()
    spool.settle()
    assert files_in(tmp_path) == []
    assert spool.used_bytes == 0


def test_view_is_read_only_and_outlives_the_folder(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    view = spool.keep([LARGE]).view()
    assert view.readonly
    spool.close()
    assert list(tmp_path.iterdir()) == []
    assert bytes(view) == LARGE


def test_prepared_file_is_written_in_place(tmp_path: Path) -> None:
    file = Spool(tmp_path).file()
    room = file.prepared(len(LARGE))
    room[:] = LARGE
    assert file.hash() == sha256_hex(LARGE)
    assert file.view().readonly
    assert file.to_bytes() == LARGE


def test_cleared_file_begins_again(tmp_path: Path) -> None:
    file = Spool(tmp_path).keep([LARGE, LARGE])
    file.clear()
    file.append(LARGE)
    assert bytes(file.view()) == LARGE
    assert file.sha256() == sha256_hex(LARGE)


def test_file_that_exceeds_the_bound_is_refused_and_keeps_its_bytes(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=2 * len(LARGE))
    file, other = spool.keep([LARGE]), spool.keep([LARGE])
    with pytest.raises(SpoolFull, match=f"spool_bytes is {2 * len(LARGE)}"):
        file.append(LARGE)
    with pytest.raises(SpoolFull, match="spool_bytes"):
        spool.file().prepared(1)
    assert file.to_bytes() == LARGE
    del other
    gc.collect()
    file.append(LARGE)


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Let the system refuse larger files, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_disk_that_takes_no_more_is_said_with_its_folder(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    file = spool.keep([LARGE])
    with largest_file(len(LARGE)):
        with pytest.raises(SpoolFull, match=f"{tmp_path} cannot be written"):
            file.append(LARGE)
        with pytest.raises(SpoolFull, match="cannot be made"):
            spool.file().prepared(2 * len(LARGE))
    assert file.to_bytes() == LARGE
    assert file.sha256() == sha256_hex(LARGE)


def test_file_that_somebody_cut_short_is_said_and_not_read_as_less(tmp_path: Path) -> None:
    file = Spool(tmp_path).keep([LARGE])
    (path,) = (path for path in tmp_path.glob(f"{FOLDER_PREFIX}*/*") if path.name != "lock")
    os.truncate(path, len(LARGE) - 1)
    with pytest.raises(SpoolFull, match="cut short by somebody else"):
        file.to_bytes()


def test_room_that_was_reserved_is_counted_and_said_at_once(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=len(LARGE))
    file = spool.file()
    with pytest.raises(SpoolFull, match="spool_bytes"):
        file.reserve(len(LARGE) + 1)
    file.reserve(len(LARGE))
    assert spool.used_bytes == len(LARGE)
    file.append(LARGE[:10])
    file.append(LARGE[10:])
    assert (file.to_bytes(), spool.used_bytes) == (LARGE, len(LARGE))


def test_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpoolFull, match="--spool"):
        Spool(tmp_path / "file").keep([LARGE])


def test_room_for_a_round_is_checked_against_bound_and_disk(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=1000)
    spool.check_room(1000, "a round")
    with pytest.raises(SpoolFull, match=r"a round needs 1001 bytes of spool; .*spool_bytes is 1000"):
        spool.check_room(1001, "a round")
    with pytest.raises(SpoolFull, match=r"a round needs .* the disk of .* has .*--spool"):
        Spool(tmp_path).check_room(2**60, "a round")


OTHER_DISK = Path("/dev/shm")


def test_files_beside_a_spool_are_bounded_with_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=300_000)
    beside = FilesBeside(tmp_path, "what is left out", needed_bytes=100_000, held_bytes=100_000)
    spool.check_room(200_000, "a round", beside)
    said = r"a round, with 100000 bytes for what is left out, needs 300001 bytes of spool; .*spool_bytes is 300000"
    with pytest.raises(SpoolFull, match=said):
        spool.check_room(200_001, "a round", beside)
    kept = spool.keep([bytes(150_000)])
    with pytest.raises(SpoolFull, match="the spool would hold 350000 bytes"):
        spool.keep([bytes(100_000)])
    assert len(kept) == 150_000


@pytest.mark.skipif(not OTHER_DISK.is_dir(), reason="this machine has one disk")
@pytest.mark.parametrize("held_bytes", [0, 2**60])
def test_files_beside_a_spool_need_room_on_their_disk(tmp_path: Path, held_bytes: int) -> None:
    for folder in (tmp_path, OTHER_DISK):
        beside = FilesBeside(folder, "what is left out", needed_bytes=2**60, held_bytes=held_bytes)
        if held_bytes:
            Spool(tmp_path).check_room(1, "a round", beside)
        else:
            with pytest.raises(SpoolFull, match=f"what is left out, needs .* the disk of {folder} has"):
                Spool(tmp_path).check_room(1, "a round", beside)


WRITER = """
import sys, time
from pathlib import Path
from epochal.runtime.files.spool import Spool
kept = Spool(Path(sys.argv[1])).keep([bytes(100_000)])
print("written", flush=True)
time.sleep(600)
"""


def test_files_of_a_killed_process_are_removed_and_of_a_running_one_kept(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        mine = Spool(tmp_path)
        mine.open()
        assert len(files_in(tmp_path)) == 1, "its process is running"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    (tmp_path / f"{FOLDER_PREFIX}1-killed-before-its-lock").mkdir()
    (tmp_path / "somebody-elses").mkdir()
    other = Spool(tmp_path)
    kept = other.keep([LARGE])
    assert len(files_in(tmp_path)) == 1, "only that of the last one"
    assert len(list(tmp_path.glob(f"{FOLDER_PREFIX}*"))) == 2
    assert kept.to_bytes() == LARGE
    mine.close()
    other.close()
    assert [path.name for path in tmp_path.iterdir()] == ["somebody-elses"]


def test_other_files_in_the_folder_go_with_the_spool(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    (spool.folder / "other").write_bytes(b"kept as long as the spool")
    assert spool.folder.parent == tmp_path
    spool.close()
    assert list(tmp_path.iterdir()) == []
