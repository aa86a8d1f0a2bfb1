"""Sources are cut into whole documents, with bounded memory, wherever reading begins again."""

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epochal.tools.prepare.portions import Position
from epochal.tools.prepare.prepare_options import PrepareOptions
from epochal.tools.prepare.reading import PORTION_BYTES
from epochal.tools.prepare.texts import Documents
from tests.support.data.prepared import mistakes_of, portions_of, texts_of, write_records
from tests.support.heavy import need_module

LINES, BETWEEN = PrepareOptions(documents="lines"), PrepareOptions(documents="blank-lines")


def test_a_text_file_is_one_document_by_default(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("two\n\nthree\n")
    (tmp_path / "a.md").write_text("one")
    assert texts_of(tmp_path, PrepareOptions()) == ["one", "two\n\nthree\n"]


def test_lines_are_documents_without_their_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\r\ntwo\nthree")
    assert texts_of(tmp_path, LINES) == ["one", "two", "three"]


def test_blank_lines_stand_between_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\n \none\nstill one\n\n\t\n\ntwo\r\n\r\nthree\n\n")
    assert texts_of(tmp_path, BETWEEN) == ["one\nstill one", "two", "three"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    text=st.lists(st.sampled_from(["\n", "a", "bc", " ", "\r\n", "ä"]), max_size=60).map("".join),
    options=st.sampled_from([LINES, BETWEEN, PrepareOptions()]),
)
def test_reading_begins_again_after_each_portion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, options: PrepareOptions
) -> None:
    (tmp_path / "a.txt").write_text(text, newline="")
    (tmp_path / "b.txt").write_text("more\n\ntext")
    whole = texts_of(tmp_path, options)
    monkeypatch.setattr("epochal.tools.prepare.reading.MAX_PORTION_DOCUMENTS", 1)
    found, position = [], Position()
    while portion := next(portions_of(tmp_path, options, position), None):
        found += [one.decode() for one in Documents.of(portion, options).texts]
        position = portion.after
    monkeypatch.undo()
    assert found == whole


def test_a_document_that_is_too_long_is_named_and_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.tools.prepare.reading.MAX_DOCUMENT_BYTES", 1024)
    path = tmp_path / "a.txt"
    path.write_bytes(b"short\n" * 3 + b"x" * (3 * PORTION_BYTES) + b"\nafter\n")
    assert mistakes_of(path, LINES) == [f"{path}, line 4: a document of more than 1024 bytes"]
    found = [text for portion in portions_of(path, LINES) for text in Documents.of(portion, LINES).texts]
    assert found == [b"short"] * 3 + [b"after"]
    (mistake,) = mistakes_of(path, PrepareOptions())
    assert mistake.endswith(
        "line 1: a document of more than 1024 bytes; allowed: --documents lines or blank-lines, which cut it"
    )


def test_wrong_bytes_are_named_by_file_line_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("gut\nschön\n".encode() + b"ab\xffcd\n")
    (mistake,) = mistakes_of(path, LINES)
    assert mistake.startswith(f"{path}, line 3: not UTF-8 at its byte 2 (0xff)")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"[1]", "a JSON list"),
        (b'{"body": "x", "id": 1}', "there is no 'text'; allowed for --text-field: 'body', 'id'"),
        (b'{"chunks": []}', "text and images, which is not prepared; allowed: text; train on such files as they are"),
        (b'{"text": 3}', "'text' is a JSON int; allowed: a string"),
        (b'{"text": "x"', "not JSON at character 12"),
        (b"[" * 100_000, "not JSON that can be read"),
        (b'{"text": "\\ud800"}', "lone surrogate"),
    ],
)
def test_a_bad_record_is_named_by_file_and_line(tmp_path: Path, line: bytes, said: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fine"}\n' + line + b'\n{"text": "fine too"}\n')
    (mistake,) = mistakes_of(path, PrepareOptions())
    assert mistake.startswith(f"{path}, line 2: ")
    assert said in mistake


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_truncated_archive_is_named_after_whole_lines(tmp_path: Path, suffix: str) -> None:
    texts = [f"{number} " + "word " * (number % 40) for number in range(40_000)]
    path = write_records(tmp_path / f"a.jsonl{suffix}", texts)
    path.write_bytes(path.read_bytes()[:-30])
    *whole, last = portions_of(path, PrepareOptions())
    found = [text.decode() for portion in (*whole, last) for text in Documents.of(portion, PrepareOptions()).texts]
    assert found == texts[: len(found)]
    assert len(found) > 10_000
    assert last.bad.startswith(f"{path} cannot be read: ")
    assert last.bad.endswith(f", after line {len(found)}")


def test_several_members_and_frames_are_read_as_one(tmp_path: Path) -> None:
    need_module("zstandard")
    import zstandard

    frames = [zstandard.ZstdCompressor().compress(text) for text in (b"one\n", b"two\n")]
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    (tmp_path / "b.txt.zst").write_bytes(b"".join(frames))
    assert texts_of(tmp_path, LINES) == ["one", "two"] * 2


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.zst"])
def test_an_empty_archive_is_none(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert mistakes_of(tmp_path, PrepareOptions()) == [f"{tmp_path / name} cannot be read: it is empty, and no archive"]


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(b"some text" * 1000))
    data[-6] ^= 1  # of the checksum
    (tmp_path / "a.txt.gz").write_bytes(data)
    (mistake,) = mistakes_of(tmp_path / "a.txt.gz", PrepareOptions())
    assert "a.txt.gz cannot be read: CRC check failed" in mistake


def test_rows_of_parquet_are_documents_from_any_row_on(tmp_path: Path) -> None:
    need_module("pyarrow")
    import pyarrow
    import pyarrow.parquet

    texts = [f"row {number}" for number in range(100)]
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": range(100), "text": texts}), path, row_group_size=30)
    assert texts_of(path, PrepareOptions()) == texts
    later = portions_of(path, PrepareOptions(), Position(0, 37))
    assert [text.decode() for portion in later for text in portion.texts] == texts[37:]
    (mistake,) = mistakes_of(path, PrepareOptions(text_field="body"))
    assert "no column 'body'; allowed for --text-field: id, text" in mistake
    (mistake,) = mistakes_of(path, PrepareOptions(text_field="id"))
    assert "the column 'id' holds int64; allowed: text" in mistake
    path.write_bytes(path.read_bytes()[:-9])
    (mistake,) = mistakes_of(path, PrepareOptions())
    assert mistake.startswith(f"{path} cannot be read: ")


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.jsonl", ["text" * 1000] * 1000)
    found = portions_of(path, PrepareOptions())
    next(found)
    with path.open("ab") as file:
        file.write(b"{}\n")
    assert [portion.bad for portion in found if portion.bad] == [f"{path} changed while it was read, after line 1001"]
