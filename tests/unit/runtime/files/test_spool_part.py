"""`runtime/files/spool_part.py`: parts of one file that are sent and received."""

from pathlib import Path

import pytest

from epochal.runtime.files.spool import MAX_IN_MEMORY_BYTES, Spool
from epochal.runtime.files.spool_part import ReceivedFile, ReceivedPart, SentPart
from epochal.state.errors import InvalidDocument
from epochal.state.wire import sha256_hex


@pytest.mark.parametrize("size_bytes", [1000, MAX_IN_MEMORY_BYTES + 1000], ids=["in memory", "on the disk"])
def test_sent_part_is_a_range_of_its_file(tmp_path: Path, size_bytes: int) -> None:
    data = bytes(number % 251 for number in range(size_bytes))
    file = Spool(tmp_path).keep((data,))
    part = SentPart(file, 100, 777)
    assert part.to_bytes() == b"".join(part.pieces(100)) == data[100:877]
    assert part.sha256() == sha256_hex(data[100:877])
    assert (part.start_bytes, part.size_bytes) == (100, 777)


def test_parts_that_are_received_in_turns_fill_their_places(tmp_path: Path) -> None:
    file = Spool(tmp_path).file()
    file.prepared(7)
    first, second = ReceivedPart(file, 0, 4), ReceivedPart(file, 4, 3)
    second.append(b"ef")
    first.append(b"abcd")
    second.append(b"g")
    assert bytes(file.view()) == b"abcdefg"
    assert (first.sha256(), second.sha256()) == (sha256_hex(b"abcd"), sha256_hex(b"efg"))


def test_part_that_is_cleared_begins_anew(tmp_path: Path) -> None:
    file = Spool(tmp_path).file()
    file.prepared(4)
    part = ReceivedPart(file, 1, 2)
    part.append(b"xx")
    part.clear()
    assert part.size_bytes == 0
    part.append(b"ab")
    assert bytes(file.view()) == b"\0ab\0"
    assert part.sha256() == sha256_hex(b"ab")


@pytest.mark.parametrize("is_whole", [False, True])
def test_more_bytes_than_expected_are_refused_and_not_written(tmp_path: Path, is_whole: bool) -> None:
    file = Spool(tmp_path).file()
    if not is_whole:
        file.prepared(4)
    received = ReceivedFile(file, 2) if is_whole else ReceivedPart(file, 0, 2)
    received.append(b"a")
    with pytest.raises(InvalidDocument) as error:
        received.append(b"bc")
    assert error.value.context["rule"] == "oversized"
    assert received.size_bytes == 1
    assert file.to_bytes() == (b"a" if is_whole else b"a\0\0\0")
