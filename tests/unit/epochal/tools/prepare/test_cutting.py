"""Sources are cut into whole documents, with bounded memory, wherever reading begins again."""

import gzip
import json
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epochal.state.errors import EpochalError
from epochal.tools.prepare.cutting import Cutter
from epochal.tools.prepare.portions import PORTION_BYTES, Position
from epochal.tools.prepare.prepare_options import PrepareOptions
from epochal.tools.prepare.sources import Sources
from epochal.tools.prepare.texts import Documents
from tests.support.data.prepared import mistakes_of, portions_of, texts_of, write_records
from tests.support.heavy import need_module

LINES, BETWEEN = PrepareOptions(documents="lines"), PrepareOptions(documents="blank-lines")
SMALL = PrepareOptions(documents="lines", max_document_bytes=1024)
FEW_BYTES = 16


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
    options=st.sampled_from([LINES, BETWEEN]),
)
def test_portions_can_begin_again_after_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, options: PrepareOptions
) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text, newline="")
    whole = texts_of(path, options)
    monkeypatch.setattr("epochal.tools.prepare.cutting.PORTION_BYTES", FEW_BYTES)
    found, position = [], Position()
    while portion := next(portions_of(path, options, position), None):
        found += [one.decode() for one in Documents.of(portion, options).texts]
        position = portion.after
    monkeypatch.undo()
    assert found == whole


def test_a_line_that_is_too_long_is_named_and_not_held(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"short\n" * 3 + b"x" * (3 * PORTION_BYTES) + b"\nafter\n")
    assert [text.partition(";")[0] for text in mistakes_of(path, SMALL)] == [
        f"{path}, line 4: the line has more than 1024 bytes"
    ]
    found = [text for portion in portions_of(path, SMALL) for text in Documents.of(portion, SMALL).texts]
    assert found == [b"short"] * 3 + [b"after"]


def test_a_file_that_is_too_long_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 1025)
    (mistake,) = mistakes_of(tmp_path / "a.txt", PrepareOptions(max_document_bytes=1024))
    assert "one document of more than 1024 bytes" in mistake
    assert "--documents lines" in mistake


def test_wrong_bytes_are_named_by_file_line_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("gut\nschön\n".encode() + b"ab\xffcd\n")
    (mistake,) = mistakes_of(path, LINES)
    assert mistake.startswith(f"{path}, line 3: not UTF-8 at byte 13 (0xff)")


@pytest.mark.parametrize(("what", "left", "replaced"), [("skip", [], 0), ("replace", ["ab�cd".encode()], 1)])
def test_wrong_bytes_are_skipped_or_replaced_if_asked(
    tmp_path: Path, what: str, left: list[bytes], replaced: int
) -> None:
    (tmp_path / "a.txt").write_bytes(b"ab\xffcd")
    options = PrepareOptions(invalid_text=what)  # type: ignore[arg-type]
    (portion,) = portions_of(tmp_path, options)
    documents = Documents.of(portion, options)
    assert (documents.texts, documents.replaced, len(documents.skipped)) == (left, replaced, 1 - replaced)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"[1]", "a JSON list"),
        (b'{"body": "x", "id": 1}', "there is no 'text'; allowed for --text-field: 'body', 'id'"),
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
def test_a_truncated_archive_is_named_after_its_whole_lines(tmp_path: Path, suffix: str) -> None:
    path = write_records(tmp_path / f"a.jsonl{suffix}", [str(number) * 50 for number in range(5000)])
    if suffix == ".zst":
        need_module("zstandard")
        import zstandard

        plain = write_records(tmp_path / "b.jsonl", [str(number) * 50 for number in range(5000)])
        path.write_bytes(zstandard.ZstdCompressor().compress(plain.read_bytes()))
    path.write_bytes(path.read_bytes()[:-30])
    (mistake,) = mistakes_of(path, PrepareOptions())
    assert mistake.startswith(f"{path} is truncated: it ends in the middle of the archive")


def damaged(path: Path, kind: str) -> list[str]:
    """Write an archive of JSON lines that is damaged; return the texts of the whole lines that can be had of it."""
    plain = write_records(path.with_name("plain"), [f"{number} " + "word " * (number % 40) for number in range(9000)])
    text = plain.read_bytes()
    plain.unlink()
    if kind == "zst":
        need_module("zstandard")
        import zstandard

        packed = zstandard.ZstdCompressor().compress(text)
        path.write_bytes(packed[: len(packed) // 2])
        text = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    else:
        packed = gzip.compress(text)
        path.write_bytes(packed[:-8] + bytes(8) if kind == "checksum" else packed[: len(packed) // 2])
        text = zlib.decompressobj(wbits=31).decompress(packed[: len(packed) // 2]) if kind == "gz" else text
    return [json.loads(line)["text"] for line in text.split(b"\n")[:-1]]


@pytest.mark.parametrize("kind", ["gz", "zst", "checksum"])
def test_every_whole_line_before_damage_is_kept(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.jsonl.{'zst' if kind == 'zst' else 'gz'}"
    expected = damaged(path, kind)
    *portions, bad = portions_of(path, PrepareOptions())
    found = [text.decode() for portion in portions for text in Documents.of(portion, PrepareOptions()).texts]
    assert len(found) == len(expected) > 1000
    assert found == expected
    assert bad.form == "bad"
    assert bad.bad.endswith(f", after line {len(expected)}")
    (again,) = portions_of(path, PrepareOptions(), portions[-1].after)
    assert again.bad == bad.bad


@pytest.mark.parametrize("options", [SMALL, BETWEEN])
def test_what_is_cut_by_damage_is_left_out(tmp_path: Path, options: PrepareOptions) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one\n\ntwo\n\n" + b"x" * 5000, 0)[:-2000])
    *portions, bad = portions_of(path, options)
    texts = [text for portion in portions for text in Documents.of(portion, options).texts]
    assert texts == [b"one", b"two"]
    assert "is truncated" in bad.bad


def test_several_members_and_frames_are_read_as_one(tmp_path: Path) -> None:
    need_module("zstandard")
    import zstandard

    frames = [zstandard.ZstdCompressor().compress(text) for text in (b"one\n", b"two\n")]
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    (tmp_path / "b.txt.zst").write_bytes(b"".join(frames))
    assert texts_of(tmp_path, LINES) == ["one", "two"] * 2


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(b"some text" * 1000))
    data[-6] ^= 1  # of the checksum
    (tmp_path / "a.txt.gz").write_bytes(data)
    (mistake,) = mistakes_of(tmp_path / "a.txt.gz", PrepareOptions())
    assert "a.txt.gz cannot be decompressed: CRC check failed" in mistake


def test_rows_of_parquet_are_documents_from_any_row_on(tmp_path: Path) -> None:
    need_module("pyarrow")
    import pyarrow
    import pyarrow.parquet

    texts = [f"row {number}" for number in range(100)]
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": range(100), "text": texts}), path, row_group_size=30)
    assert texts_of(path, PrepareOptions()) == texts
    later = portions_of(path, PrepareOptions(), Position(0, 37))
    assert [part.decode() for portion in later for part in portion.parts] == texts[37:]
    (mistake,) = mistakes_of(path, PrepareOptions(text_column="body"))
    assert "no column 'body'; allowed for --text-column: id, text" in mistake
    path.write_bytes(path.read_bytes()[:-9])
    (mistake,) = mistakes_of(path, PrepareOptions())
    assert mistake.startswith(f"{path} is truncated or no parquet file")


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_parquet_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    need_module("pyarrow")
    need_module("zstandard")
    import pyarrow
    import pyarrow.parquet
    import zstandard

    texts = [f"row {number}" for number in range(100)]
    plain, path = tmp_path / "plain", tmp_path / f"a.parquet{suffix}"
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), plain, row_group_size=30)
    compress = gzip.compress if suffix == ".gz" else zstandard.ZstdCompressor().compress
    path.write_bytes(compress(plain.read_bytes()))
    assert texts_of(path, PrepareOptions()) == texts
    later = portions_of(path, PrepareOptions(), Position(0, 37))
    assert [part.decode() for portion in later for part in portion.parts] == texts[37:]
    monkeypatch.setattr("epochal.tools.prepare.source_bytes.MAX_SPOOLED_BYTES", 100)
    (mistake,) = mistakes_of(path, PrepareOptions())
    assert mistake.startswith(f"{path} expands to more bytes than are decompressed: at most 100")
    monkeypatch.undo()
    path.write_bytes(path.read_bytes()[:-30])
    (mistake,) = mistakes_of(path, PrepareOptions())
    assert mistake.startswith(f"{path} is truncated")


def test_disk_without_room_for_a_compressed_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet.gz"
    path.write_bytes(gzip.compress(b"any"))
    with Sources.open([str(path)]) as sources, pytest.raises(EpochalError, match=r"cannot be decompressed into .*gone"):
        list(Cutter(sources, PrepareOptions(), tmp_path / "gone").portions(Position()))
