"""Files that a process leaves unfinished, and the next one goes on with: after a kill, and after an end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from epochal.runtime.files.left_files import PREFIX
from epochal.runtime.files.spool import FOLDER_PREFIX, Spool, SpoolFile
from epochal.state.errors import SpoolFull

SIZE = 200_000
CONTENT = "ab" * 32
DATA = os.urandom(1000)
WRITER = """
import sys, time
from pathlib import Path
from epochal.runtime.files.spool import Spool
spool = Spool(Path(sys.argv[1]))
file = spool.file()
file.prepared(int(sys.argv[3]))[:4] = b"some"
spool.left.leave(file, sys.argv[2])
if sys.argv[4] == "finished":
    spool.left.finish(sys.argv[2])
print("left", flush=True)
time.sleep(600)
"""


def unfinished(spool: Spool, content: str = CONTENT) -> SpoolFile:
    file = spool.file()
    file.prepared(SIZE)[: len(DATA)] = DATA
    spool.left.leave(file, content)
    return file


def ended(parent: Path, content: str = CONTENT) -> None:
    """Leave a file as a process does that ends."""
    spool = Spool(parent)
    file = unfinished(spool, content)
    spool.close()
    assert len(file) == SIZE


def folders(parent: Path) -> list[Path]:
    return list(parent.glob(f"{FOLDER_PREFIX}*"))


@pytest.mark.parametrize("state", ["unfinished", "finished"])
def test_file_of_a_killed_process_is_gone_on_with(tmp_path: Path, state: str) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path), CONTENT, str(SIZE), state]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"left\n"
        running = Spool(tmp_path)
        assert running.left_file(CONTENT, SIZE) is None, "its process is running"
        running.close()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    spool = Spool(tmp_path)
    file = spool.left_file(CONTENT, SIZE)
    assert file is not None
    assert file[0:4] == b"some"
    assert (len(file), spool.used_bytes) == (SIZE, SIZE)
    assert len(folders(tmp_path)) == 1
    spool.close()
    assert folders(tmp_path) == []


def test_unfinished_file_stays_when_its_process_ends_and_nothing_else(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    file, other = unfinished(spool), spool.keep([bytes(SIZE)])
    spool.close()
    (folder,) = folders(tmp_path)
    assert {path.name for path in folder.iterdir()} == {f"{PREFIX}{CONTENT}", "lock"}
    assert len(file) == len(other)
    taken = Spool(tmp_path).left_file(CONTENT, SIZE)
    assert taken is not None
    assert taken[0 : len(DATA)] == DATA


def test_finished_file_goes_with_its_process(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    file = unfinished(spool)
    spool.left.finish(CONTENT)
    spool.close()
    assert folders(tmp_path) == []
    assert len(file) == SIZE


def test_finished_file_that_nobody_uses_is_not_left(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    file = unfinished(spool)
    spool.left.finish(CONTENT)
    assert list(spool.folder.glob(f"{PREFIX}*"))
    del file
    assert not list(spool.folder.glob(f"{PREFIX}*"))
    spool.close()


@pytest.mark.parametrize(("content", "size_bytes"), [("cd" * 32, SIZE), (CONTENT, SIZE + 1)])
def test_left_file_of_other_content_or_size_is_removed(tmp_path: Path, content: str, size_bytes: int) -> None:
    ended(tmp_path)
    spool = Spool(tmp_path)
    assert spool.left_file(content, size_bytes) is None
    assert not list(spool.folder.glob(f"{PREFIX}*"))
    spool.close()
    assert folders(tmp_path) == []


def test_left_file_that_is_not_claimed_goes_with_the_process(tmp_path: Path) -> None:
    ended(tmp_path)
    spool = Spool(tmp_path)
    spool.open()
    assert list(spool.folder.glob(f"{PREFIX}*"))
    spool.close()
    assert folders(tmp_path) == []


def test_claimed_file_is_left_again_until_it_is_finished(tmp_path: Path) -> None:
    ended(tmp_path)
    for _ in range(2):
        spool = Spool(tmp_path)
        file = spool.left_file(CONTENT, SIZE)
        assert file is not None
        spool.left.leave(file, CONTENT)
        spool.close()
    assert len(folders(tmp_path)) == 1


def test_left_file_that_this_process_still_uses_is_not_claimed(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    used = unfinished(spool)
    spool.left.finish(CONTENT)
    view = used.view()
    del used
    assert spool.left_file(CONTENT, SIZE) is None, "the file will be written over once nobody uses the view"
    assert bytes(view[: len(DATA)]) == DATA
    spool.close()


def test_only_the_newest_left_file_is_taken_over(tmp_path: Path) -> None:
    for number, content in enumerate(("cd" * 32, CONTENT)):
        spool = Spool(tmp_path / str(number))
        file = unfinished(spool, content)
        spool.close()
        (folder,) = folders(tmp_path / str(number))
        os.utime(folder / f"{PREFIX}{content}", (number, number))
        folder.rename(tmp_path / folder.name)
        assert len(file) == SIZE
    spool = Spool(tmp_path)
    spool.open()
    assert [path.name for path in spool.folder.glob(f"{PREFIX}*")] == [f"{PREFIX}{CONTENT}"]
    spool.close()


@pytest.mark.parametrize("target", ["folder", "file"])
def test_file_that_others_might_have_written_is_not_taken_over(tmp_path: Path, target: str) -> None:
    ended(tmp_path)
    (folder,) = folders(tmp_path)
    (folder if target == "folder" else folder / f"{PREFIX}{CONTENT}").chmod(0o777)
    spool = Spool(tmp_path)
    assert spool.left_file(CONTENT, SIZE) is None
    spool.close()
    assert folders(tmp_path) == []


def test_link_to_a_file_elsewhere_is_not_taken_over(tmp_path: Path) -> None:
    ended(tmp_path)
    (folder,) = folders(tmp_path)
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(SIZE))
    secret.chmod(0o600)
    (folder / f"{PREFIX}{CONTENT}").unlink()
    (folder / f"{PREFIX}{CONTENT}").symlink_to(secret)
    assert Spool(tmp_path).left_file(CONTENT, SIZE) is None
    assert secret.exists()


def test_left_file_takes_room_of_the_spool(tmp_path: Path) -> None:
    ended(tmp_path)
    with pytest.raises(SpoolFull, match="spool_bytes"):
        Spool(tmp_path, SIZE - 1).left_file(CONTENT, SIZE)
