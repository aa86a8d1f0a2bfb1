"""`epochal prepare` again, in the folder of a complete preparation: nothing is done, and no change is passed over."""

import asyncio
import shutil
from pathlib import Path

import pytest

from epochal.state.errors import InvalidInput
from epochal.tools.prepare.pipeline import prepare
from epochal.tools.prepare.prepare_options import PrepareOptions
from tests.support.data.prepared import everything_in, write_records
from tests.support.drive.cli import run_main
from tests.support.servers.data_http import FileServer, http_server

SMALL = PrepareOptions(seq_len=16, workers=1, validation="20%")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder of text, of which `tmp_path / "data"` is the complete preparation."""
    write_records(tmp_path / "texts" / "a.jsonl", [f"text {number}" for number in range(50)])
    write_records(tmp_path / "texts" / "b.jsonl", ["more"] * 20)
    prepare([tmp_path / "texts"], "bytes", tmp_path / "data", SMALL)
    return tmp_path / "texts"


def again(texts: Path, *more: str) -> tuple[str, ...]:
    out = str(texts.parent / "data")
    options = ("--seq-len", "16", "--validation", "20%", "--workers", "1")
    return ("prepare", str(texts), "--tokenizer", "bytes", "--out", out, *options, *more)


@pytest.mark.parametrize("more", [(), ("--restart",)])
def test_the_same_again_says_that_nothing_was_done(texts: Path, more: tuple[str, ...]) -> None:
    run_main(*again(texts, *more)).expect(0, "complete: nothing was done", "samples of 16", "next:")


def test_a_changed_source_is_named_and_nothing_is_done(texts: Path, tmp_path: Path) -> None:
    before = everything_in(tmp_path / "data")
    new, old = texts / "zz_new.txt", texts / "b.jsonl"
    new.write_text("new")
    data = tmp_path / "data"
    way_out = f"name another folder, or remove {data}/validation and {data}/train"
    run_main(*again(texts, "--restart")).expect(2, f"{new} is new since then", way_out)
    new.unlink()
    size = old.stat().st_size
    old.write_text("{}\n")
    run_main(*again(texts)).expect(2, f"{old} had {size} bytes and has 3")
    old.unlink()
    run_main(*again(texts)).expect(2, f"{old} is no longer among the sources")
    assert everything_in(data) == before
    for split in ("train", "validation"):
        for path in (data / split).iterdir():
            path.unlink()
        (data / split).rmdir()
    made = prepare([texts], "bytes", data, SMALL)
    assert (len(made.counts["files"]), made.was_complete) == (1, False)


async def test_a_server_that_is_away_hides_no_preparation(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.jsonl", ["text"] * 20)
    async with http_server(FileServer(tmp_path)) as url:
        places = [f"{url}/a.jsonl"]
        await asyncio.to_thread(prepare, places, "bytes", tmp_path / "data", SMALL)
        write_records(path, ["text"] * 21)
        with pytest.raises(InvalidInput, match=r"a\.jsonl had 340 bytes and has 357"):
            await asyncio.to_thread(prepare, places, "bytes", tmp_path / "data", SMALL)
    made = await asyncio.to_thread(prepare, places, "bytes", tmp_path / "data", SMALL)
    assert made.was_complete


def test_a_preparation_is_made_anew_as_often_as_somebody_wants(texts: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name in ("state.toml", "data.toml", "validation.toml"):
        (data / name).write_text((data / name).read_text() + "# mine\n")
    for _ in range(2):
        for split in ("train", "validation"):
            shutil.rmtree(data / split)
        run_main(*again(texts)).expect(0, "state.toml is yours and was left", "validation.toml is yours")
    assert (data / "state.toml").read_text().endswith("# mine\n")


def test_allowing_more_in_a_complete_folder_changes_nothing(texts: Path, tmp_path: Path) -> None:
    before = everything_in(tmp_path / "data")
    run_main(*again(texts, "--skip-bad")).expect(0, "nothing was done")
    run_main(*again(texts, "--dedup")).expect(2, "--dedup was False and is True")
    assert everything_in(tmp_path / "data") == before
