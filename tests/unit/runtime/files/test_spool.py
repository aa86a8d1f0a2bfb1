"""`runtime/files/spool.py`: temporary files without a name, that go when nobody uses them, and that say when full."""

import gc
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.runtime.files import spool as spool_module
from epochal.runtime.files.spool import MAX_IN_MEMORY_BYTES, MAX_SPARES, Spool, SpoolFile
from epochal.state.errors import SpoolFull
from epochal.state.wire import sha256_hex
from tests.support.data.spooled import SPOOL_PARENT

LARGE = bytes(range(256)) * (MAX_IN_MEMORY_BYTES // 256 + 1)


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
    assert spool.used_bytes == len(LARGE)
    spool.drop_pages()
    assert bytes(part) == LARGE[5:9]
    del part
    gc.collect()
    assert spool.used_bytes == 0


def test_file_has_no_name_and_its_view_is_read_only(tmp_path: Path) -> None:
    file = Spool(tmp_path).keep([LARGE])
    assert file.descriptor is not None
    assert list(tmp_path.iterdir()) == []
    assert file.view().readonly
    assert bytes(file.view()) == LARGE


@pytest.mark.nightly
def test_file_that_is_no_longer_used_is_closed(tmp_path: Path) -> None:
    file = Spool(tmp_path).keep([LARGE])
    descriptor = file.descriptor
    assert descriptor is not None
    del file
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


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


@pytest.mark.nightly
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
    file.reserve(MAX_IN_MEMORY_BYTES + 1)
    assert file.to_bytes() == LARGE


def test_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpoolFull, match="--spool"):
        Spool(tmp_path / "file").keep([LARGE])


def test_room_for_a_round_is_checked_against_bound_and_disk(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=1000)
    spool.check_room(1000, "a round")
    with pytest.raises(SpoolFull, match=r"a round needs 1 KB of spool; .*spool_bytes is 1000; allowed: at least 1001"):
        spool.check_room(1001, "a round")
    with pytest.raises(SpoolFull, match=r"a round needs .* the disk of .* has .*--spool"):
        Spool(tmp_path).check_room(2**60, "a round")


def test_files_beside_a_spool_need_the_disk_but_not_its_bound(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=1000, advice="ask somebody")
    spool.check_room(1000, "a round", 1000)
    with pytest.raises(SpoolFull, match=r"1 KB of spool and .* of inner states; the disk of .*: ask somebody") as full:
        spool.check_room(1000, "a round", 2**60)
    assert full.value.context["needed_bytes"] == 1000 + 2**60


def inode(file: SpoolFile) -> int:
    assert file.descriptor is not None
    return os.fstat(file.descriptor).st_ino


@pytest.fixture
def _any_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "MIN_SPARE_BYTES", 1)


def written(spool: Spool, size_bytes: int) -> SpoolFile:
    """Return a file that was mapped to be written, full of ones."""
    file = spool.file()
    file.prepared(size_bytes)[:] = b"\1" * size_bytes
    return file


@pytest.mark.usefixtures("_any_is_large")
@pytest.mark.parametrize("is_zero", [False, True])
def test_mapped_file_takes_the_place_of_one_of_its_size(tmp_path: Path, is_zero: bool) -> None:
    spool = Spool(tmp_path)
    file, size_bytes = written(spool, len(LARGE)), len(LARGE)
    before = inode(file)
    del file
    gc.collect()
    other, again = spool.file(), spool.file()
    other.prepared(size_bytes + 1)
    room = again.prepared(size_bytes, is_zero=is_zero)
    assert inode(other) != before == inode(again)
    assert not is_zero or room == bytes(size_bytes)
    room[:] = LARGE
    assert (again.hash(), spool.used_bytes) == (sha256_hex(LARGE), 2 * size_bytes + 1)


@pytest.mark.usefixtures("_any_is_large")
def test_place_of_a_file_that_is_still_viewed_is_not_taken(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    view = written(spool, len(LARGE)).view()
    gc.collect()
    spool.file().prepared(len(LARGE))[:] = LARGE
    assert view == b"\1" * len(LARGE)


@pytest.mark.usefixtures("_any_is_large")
def test_places_that_wait_give_way_where_there_is_no_room(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=2 * len(LARGE))
    files = [written(spool, len(LARGE)) for _ in range(2)]
    del files
    gc.collect()
    assert spool.used_bytes == 2 * len(LARGE)
    spool.file().prepared(2 * len(LARGE))
    unbounded = Spool(tmp_path)
    file = written(unbounded, len(LARGE))
    del file
    gc.collect()
    with largest_file(len(LARGE)), pytest.raises(SpoolFull, match="cannot be made"):
        unbounded.file().reserve(2 * len(LARGE))
    gc.collect()
    assert unbounded.used_bytes == 0


@pytest.mark.usefixtures("_any_is_large")
def test_places_that_wait_are_few_and_end_with_their_spool(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    files = [written(spool, len(LARGE)) for _ in range(MAX_SPARES + 1)]
    descriptors = [file.descriptor or 0 for file in files]
    del files
    gc.collect()
    assert spool.used_bytes == MAX_SPARES * len(LARGE)
    del spool
    gc.collect()
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
