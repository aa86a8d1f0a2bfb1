"""`epochal prepare`: the same bytes however it was made, and nothing published that is not complete."""

import asyncio
import contextlib
import gzip
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from epochal.data_providers.sources.manifest import MANIFEST_NAME, verify_folder
from epochal.state.config.state_file import parse_state
from epochal.state.errors import EpochalError, InvalidInput
from epochal.tools.prepare.encoding_pool import WorkerLost
from epochal.tools.prepare.pipeline import PrepareProgress, prepare
from epochal.tools.prepare.prepare_options import PrepareOptions
from epochal.tools.prepare.texts import digest_of
from epochal.tools.prepare.work_folder import WORKING
from tests.support.bounds import BOUND_S
from tests.support.data.prepared import documents_in, everything_in, write_records
from tests.support.drive.cli import run_main
from tests.support.heavy import need_module
from tests.support.servers.data_http import FileServer, http_server
from tests.support.servers.hub_server import fake_hub, point_at

TEXTS = [f"document {number % 450}: " + "some words " * (number % 450 % 40) for number in range(500)]
OPTIONS: dict[str, Any] = {"seq_len": 16, "shard_tokens": 40_000, "validation": "10%", "dedup": True}
PORTIONS = 8


def write_sources(folder: Path) -> Path:
    """Write sources of every kind, of about four portions."""
    write_records(folder / "b.jsonl.gz", TEXTS)
    write_records(folder / "sub" / "c.jsonl", [f"{number}: " + "x" * 1000 for number in range(3000)])
    (folder / "a.txt").write_text("a text file")
    (folder / "z.md").write_text("another one")
    (folder / "left.pdf").write_bytes(b"%PDF")
    (folder / ".hidden.txt").write_text("hidden")
    return folder


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources that no test changes."""
    return write_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def made(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The preparation of the sources by one worker, without interruption."""
    folder = tmp_path_factory.mktemp("made") / "data"
    prepare([sources], "bytes", folder, PrepareOptions(**OPTIONS, workers=1))
    return folder


def expected_texts() -> list[bytes]:
    """Return the documents of the sources once each, in their order."""
    longer = [f"{number}: " + "x" * 1000 for number in range(3000)]
    return [text.encode() for text in dict.fromkeys(["a text file", *TEXTS, *longer, "another one"])]


def manifest_of(folder: Path) -> Any:
    return json.loads((folder / MANIFEST_NAME).read_bytes())


def test_every_document_is_in_one_split_in_order(made: Path) -> None:
    threshold = int(Fraction(1, 10) * 2**64)
    held_out = [text for text in expected_texts() if int.from_bytes(digest_of(text)[:8], "big") < threshold]
    assert documents_in(made / "validation") == held_out
    assert documents_in(made / "train") == [text for text in expected_texts() if text not in set(held_out)]
    assert 0.05 < len(held_out) / len(expected_texts()) < 0.15


def test_the_manifest_names_what_there_is(made: Path) -> None:
    for split in ("train", "validation"):
        names = [path.name for path in (made / split).glob("*.bin")]
        assert verify_folder(made / split, names) == len(names)
        entries = manifest_of(made / split)["files"]
        sizes = {name: (made / split / name).stat().st_size for name in names}
        assert {name: 2 * entry["tokens"] for name, entry in entries.items()} == sizes
    counts = manifest_of(made / "train")["preparation"]["counts"]
    assert (counts["duplicates"], counts["not_read"], len(counts["files"])) == (50, 1, 4)
    assert counts["train_documents"] + counts["validation_documents"] == len(expected_texts())
    assert max(2 * entry["tokens"] for entry in manifest_of(made / "train")["files"].values()) == 80_000


@pytest.mark.nightly
def test_files_that_are_not_read_come_with_the_option_that_reads_them(tmp_path: Path) -> None:
    for name in ("a.py", "b.py", "c.md5"):
        (tmp_path / name).write_text("print('hello')\n" * 20)
    arguments = ("prepare", str(tmp_path), "--tokenizer", "bytes", "--seq-len", "16", "--out", str(tmp_path / "out"))
    run_main(*arguments).expect(2, "holds no file that is read", "others as text with --text-suffix")
    ran = run_main(*arguments, "--text-suffix", ".py")
    ran.expect(0, "2 documents", "files with another suffix, not read (--text-suffix): 1")


def test_the_state_file_pins_the_data_as_a_data_server_opens_them(made: Path) -> None:
    shown = json.loads(run_main("data", "inspect", str(made / "data.toml"), "--json").out)
    state = parse_state((made / "state.toml").read_text(encoding="utf-8"), "state.toml")
    assert state.config.data_fingerprint == shown["fingerprint"]


def test_a_run_refuses_data_of_another_tokenizer(made: Path, tmp_path: Path) -> None:
    state = (made / "state.toml").read_text()
    (tmp_path / "state.toml").write_text(re.sub('tokenizer = "[0-9a-f]{64}"', f'tokenizer = "{"0" * 64}"', state))
    fitting = run_main("check", str(made / "state.toml"), "--data-config", str(made / "data.toml"))
    fitting.expect(0, "fits it")
    other = run_main("check", str(tmp_path / "state.toml"), "--data-config", str(made / "data.toml"))
    other.expect(2, "was made with the tokenizer bytes", "model.LLM.tokenizer")


def test_several_workers_make_the_same_bytes(sources: Path, made: Path, tmp_path: Path) -> None:
    prepare([sources], "bytes", tmp_path / "data", PrepareOptions(**OPTIONS, workers=2))
    assert everything_in(tmp_path / "data") == everything_in(made)


def test_training_and_held_out_data_are_not_read_as_one(made: Path) -> None:
    ran = run_main("data", "inspect", str(made))
    ran.expect(2, "what was held out", f"allowed: {made / 'data.toml'}, or {made / 'train'}")


def test_inspect_of_a_training_split_shows_its_runs_fingerprint(made: Path) -> None:
    recorded = parse_state((made / "state.toml").read_text(), "state.toml").config.data_fingerprint
    report = json.loads(run_main("data", "inspect", str(made / "train"), "--json").out)
    assert (report["fingerprint"], report["read_as"]) == (recorded, "2-byte tokens, 16 a sample, shuffled")


def test_inspect_knows_the_end_token_and_the_tokenizer(made: Path) -> None:
    ran = run_main("data", "inspect", str(made / "train"), "--seq-len", "2048")
    ran.expect(0, "the first sample, decoded:", "document 0: ")
    assert "--end-token" not in ran.out


class Stop(Exception):
    """Interrupts a preparation."""


def test_an_interrupted_one_goes_on_to_the_same_bytes(
    sources: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochal.tools.prepare.pipeline.COMMIT_EVERY_S", 0.0)
    begun: list[int] = []

    def stop_at(count: int) -> Any:
        def show(progress: PrepareProgress) -> None:
            begun.append(progress.read_bytes)
            if len(begun) == count:
                raise Stop

        return show

    for count in range(2, PORTIONS):
        begun.clear()
        with contextlib.suppress(Stop):
            prepare([sources], "bytes", tmp_path / "data", PrepareOptions(**OPTIONS, workers=1), stop_at(3))
        if not (tmp_path / "data" / WORKING).exists():
            break
        assert not (tmp_path / "data" / "train").exists(), "something was published"
        assert count < PORTIONS - 1, "it never ends"
    assert everything_in(tmp_path / "data") == everything_in(made)


def test_a_killed_one_goes_on_to_the_same_bytes(sources: Path, made: Path, tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from epochal.tools.prepare import pipeline\n"
        "pipeline.COMMIT_EVERY_S = 0.0\n"
        "left = [int(sys.argv[1])]\n"
        "def show(progress):\n"
        "    left[0] -= 1\n"
        "    if not left[0]:\n"
        "        os.kill(os.getpid(), 9)\n"
        f"options = pipeline.PrepareOptions(**{OPTIONS!r}, workers=1)\n"
        "pipeline.prepare([sys.argv[2]], 'bytes', sys.argv[3], options, show)\n"
    )
    arguments = [sys.executable, "-c", program, "4", str(sources), str(tmp_path / "data")]
    assert subprocess.run(arguments, timeout=BOUND_S, check=False).returncode == -signal.SIGKILL
    unsynced = sorted((tmp_path / "data" / WORKING / "train").glob("*.bin"))[-1]
    unsynced.write_bytes(unsynced.read_bytes() + b"never happened")
    prepare([sources], "bytes", tmp_path / "data", PrepareOptions(**OPTIONS, workers=1))
    assert everything_in(tmp_path / "data") == everything_in(made)


@pytest.mark.nightly
def test_what_was_taken_before_an_interruption_is_kept(
    sources: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochal.tools.prepare.pipeline.COMMIT_EVERY_S", BOUND_S)
    shown: list[PrepareProgress] = []

    def show(progress: PrepareProgress) -> None:
        shown.append(progress)
        if len(shown) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare([sources], "bytes", tmp_path / "data", PrepareOptions(**OPTIONS, workers=1), show)
    prepare([sources], "bytes", tmp_path / "data", PrepareOptions(**OPTIONS, workers=1), show)
    assert shown[2].documents
    assert shown[3] == shown[2]
    assert everything_in(tmp_path / "data") == everything_in(made)


@pytest.mark.nightly
def test_workers_end_with_a_killed_preparation(sources: Path, tmp_path: Path) -> None:
    program = (
        "import multiprocessing, os, sys\n"
        "from epochal.tools.prepare import pipeline\n"
        "def show(progress):\n"
        "    if progress.read_bytes:\n"
        "        print(*(one.pid for one in multiprocessing.active_children()), flush=True)\n"
        "        os.kill(os.getpid(), 9)\n"
        "pipeline.prepare([sys.argv[1]], 'bytes', sys.argv[2], pipeline.PrepareOptions(workers=2), show)\n"
    )
    arguments = [sys.executable, "-c", program, str(sources), str(tmp_path / "data")]
    # its output ends when the last process that holds it has ended
    ran = subprocess.run(arguments, timeout=BOUND_S, check=False, capture_output=True, text=True)
    assert ran.returncode == -signal.SIGKILL
    assert len(ran.stdout.split()) == 2


@pytest.mark.nightly
def test_a_worker_that_is_killed_is_named_and_nothing_is_lost(
    sources: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochal.tools.prepare.pipeline.COMMIT_EVERY_S", 0.0)
    monkeypatch.setattr("epochal.tools.prepare.encoding_pool.PENDING_OF_A_WORKER", 1)

    def kill(progress: PrepareProgress) -> None:
        if progress.read_bytes:
            for process in multiprocessing.active_children():
                process.kill()
                process.join()

    with pytest.raises(WorkerLost, match=r"has ended: did the machine run out of memory\? .* resumes where"):
        prepare([sources], "bytes", tmp_path / "data", PrepareOptions(**OPTIONS, workers=2), kill)
    prepare([sources], "bytes", tmp_path / "data", PrepareOptions(**OPTIONS, workers=1))
    assert everything_in(tmp_path / "data") == everything_in(made)


@pytest.mark.nightly
def test_a_disk_that_is_full_is_named_and_nothing_is_lost(sources: Path, made: Path, tmp_path: Path) -> None:
    arguments = ["prepare", str(sources), "--tokenizer", "bytes", "--out", str(tmp_path / "data"), "--seq-len", "16"]
    arguments += ["--shard-tokens", "40000", "--validation", "10%", "--dedup", "--workers", "1"]
    limited = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))\n"
        "sys.argv[0] = 'epochal'\n"
        "from epochal.cli.main import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", limited, *arguments]
    ran = subprocess.run(command, timeout=BOUND_S, check=False, capture_output=True, text=True)
    assert (ran.returncode, "Traceback" in ran.stderr) == (1, False), ran.stderr
    assert str(tmp_path / "data") in ran.stderr
    assert not (tmp_path / "data" / "train").exists()
    run_main(*arguments).expect(0, "next:")
    assert everything_in(tmp_path / "data") == everything_in(made)


@pytest.mark.nightly
def test_publishing_goes_on_after_a_kill(sources: Path, made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "state.toml").parent.mkdir()
    (folder / "state.toml").mkdir()  # publishing fails here, after the shards
    with pytest.raises(EpochalError, match=r"state\.toml"):
        prepare([sources], "bytes", folder, PrepareOptions(**OPTIONS, workers=1))
    (folder / "state.toml").rmdir()
    prepare([sources], "bytes", folder, PrepareOptions(**OPTIONS, workers=1))
    assert everything_in(folder) == everything_in(made)


def test_the_same_again_does_nothing(sources: Path, made: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    again = prepare([sources], "bytes", made, PrepareOptions(**OPTIONS, workers=1))
    assert again.counts["duplicates"] == 50
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before


def test_other_options_are_refused_and_named(sources: Path, made: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="--seq-len was 16 and is 32"):
        prepare([sources], "bytes", made, PrepareOptions(**OPTIONS | {"seq_len": 32}))
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"\xff")
    for _ in range(2):
        with pytest.raises(InvalidInput, match="not UTF-8 at its byte 0"):
            prepare([sources, bad], "bytes", tmp_path / "data", PrepareOptions(seq_len=16, workers=1))
    with pytest.raises(InvalidInput, match=r"other options: --dedup was False and is True\. --restart"):
        prepare([sources, bad], "bytes", tmp_path / "data", PrepareOptions(seq_len=16, dedup=True, workers=1))


def test_options_may_change_until_the_first_document_is_done(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff" + b"x" * 100)
    (tmp_path / "b.txt").write_bytes(b"x" * 100)
    with pytest.raises(InvalidInput, match="--data-address 'nowhere'; allowed: host:port"):
        prepare([tmp_path], "bytes", tmp_path / "data", PrepareOptions(data_address="nowhere"))
    with pytest.raises(InvalidInput, match="not UTF-8 at its byte 0"):
        prepare([tmp_path], "bytes", tmp_path / "data", PrepareOptions(workers=1))
    prepare([tmp_path], "bytes", tmp_path / "data", PrepareOptions(workers=1, seq_len=16, skip_bad=True))
    assert documents_in(tmp_path / "data" / "train") == [b"x" * 100]


def test_what_is_bad_can_be_skipped_on_the_way(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    write_records(texts / "a.jsonl", ["fine"] * 20)
    (texts / "b.jsonl").write_text('{"text": "before"}\nbad\n{"text": "after"}\n')
    (texts / "c.txt.gz").write_bytes(gzip.compress(b"cut")[:-4])
    with pytest.raises(InvalidInput, match=r"b\.jsonl, line 2: not JSON.*Nothing was written"):
        prepare([texts], "bytes", tmp_path / "data", PrepareOptions(seq_len=16, workers=1))
    assert os.listdir(tmp_path / "data") == [WORKING]
    made = prepare([texts], "bytes", tmp_path / "data", PrepareOptions(seq_len=16, skip_bad=True, workers=1))
    assert documents_in(tmp_path / "data" / "train") == [b"fine"] * 20 + [b"before", b"after"]
    assert (made.counts["bad"], made.counts["train_documents"]) == (2, 22)
    first, second = manifest_of(tmp_path / "data" / "train")["preparation"]["counts"]["named"]
    assert "b.jsonl, line 2" in first
    assert "c.txt.gz cannot be read: Compressed file ended before" in second


def test_a_source_that_changed_after_it_was_begun_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.tools.prepare.pipeline.COMMIT_EVERY_S", 0.0)
    monkeypatch.setattr("epochal.tools.prepare.reading.MAX_PORTION_DOCUMENTS", 1)
    first = write_records(tmp_path / "texts" / "a.jsonl", ["fine"] * 20)
    (tmp_path / "texts" / "b.jsonl").write_text("bad")
    with pytest.raises(InvalidInput, match=r"b\.jsonl, line 1"):
        prepare([tmp_path / "texts"], "bytes", tmp_path / "data", PrepareOptions(seq_len=16, workers=1))
    mended = write_records(tmp_path / "texts" / "b.jsonl", ["good"])
    prepare([tmp_path / "texts"], "bytes", tmp_path / "data", PrepareOptions(seq_len=16, workers=1))
    assert Counter(documents_in(tmp_path / "data" / "train")) == {b"fine": 20, b"good": 1}
    mended.write_text("bad")
    with pytest.raises(InvalidInput, match=r"b\.jsonl, line 1"):
        prepare([tmp_path / "texts"], "bytes", tmp_path / "other", PrepareOptions(seq_len=16, workers=1))
    write_records(first, ["other"] * 20)
    with pytest.raises(InvalidInput, match=r"a\.jsonl changed since"):
        prepare([tmp_path / "texts"], "bytes", tmp_path / "other", PrepareOptions(seq_len=16, workers=1))
    ran = run_main(
        *("prepare", str(tmp_path / "texts"), "--tokenizer", "bytes", "--out", str(tmp_path / "other")),
        *("--seq-len", "16", "--skip-bad", "--restart", "--workers", "1"),
    )
    ran.expect(0, "bad documents or files, skipped: 1", "b.jsonl, line 1: not JSON", "next:", "epochal coordinator")


def test_files_of_the_user_are_left_and_said(tmp_path: Path) -> None:
    write_records(tmp_path / "texts" / "a.jsonl", ["fine"] * 20)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "state.toml").write_text("mine")
    made = prepare([tmp_path / "texts"], "bytes", tmp_path / "data", PrepareOptions(seq_len=16, workers=1))
    assert made.left == ("state.toml",)
    assert (tmp_path / "data" / "state.toml").read_text() == "mine"


def test_a_folder_of_something_else_is_refused(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InvalidInput, match=r"is not empty: it holds thesis\.txt"):
        prepare([sources], "bytes", tmp_path)


@pytest.mark.nightly
def test_too_little_text_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("few")
    with pytest.raises(InvalidInput, match="4 tokens to train on, and a sample has 2048"):
        prepare([tmp_path / "a.txt"], "bytes", tmp_path / "data")


def test_a_ledger_that_is_damaged_is_named(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "data" / WORKING).mkdir(parents=True)
    (tmp_path / "data" / WORKING / "ledger.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(InvalidInput, match=r"ledger\.sqlite: file is not a database; --restart"):
        prepare([sources], "bytes", tmp_path / "data")


async def test_text_comes_from_an_http_server_too(tmp_path: Path) -> None:
    write_records(tmp_path / "a.jsonl.gz", TEXTS)
    async with http_server(FileServer(tmp_path)) as url:
        places = [f"{url}/a.jsonl.gz"]
        options = PrepareOptions(seq_len=16, workers=1)
        made = await asyncio.to_thread(prepare, places, "bytes", tmp_path / "data", options)
    assert documents_in(tmp_path / "data" / "train") == [text.encode() for text in TEXTS]
    assert list(made.counts["files"]) == places


def test_text_comes_from_a_bucket_too(
    tmp_path: Path, bucket: Any, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_url)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    for name in ("b.jsonl.gz", "a.jsonl"):
        bucket.put(f"texts/{name}", write_records(tmp_path / name, [f"{name} {text}" for text in TEXTS]).read_bytes())
    bucket.put("texts/left.pdf", b"%PDF")
    bucket.put("texts-of-others/c.jsonl", b"not JSON")
    prepare(["s3://tokens/texts"], "bytes", tmp_path / "all", PrepareOptions(seq_len=16, workers=1))
    found = [f"{name} {text}".encode() for name in ("a.jsonl", "b.jsonl.gz") for text in TEXTS]
    assert documents_in(tmp_path / "all" / "train") == found
    prepare(["s3://tokens/texts/a.jsonl"], "bytes", tmp_path / "one", PrepareOptions(seq_len=16, workers=1))
    assert documents_in(tmp_path / "one" / "train") == found[: len(TEXTS)]


def test_a_folder_within_the_sources_can_be_written(tmp_path: Path) -> None:
    write_records(tmp_path / "a.jsonl", TEXTS)
    for _ in range(2):
        made = prepare([tmp_path], "bytes", tmp_path / "data", PrepareOptions(seq_len=16, workers=1))
    (tmp_path / "data" / "train" / "more.txt").write_text("no source")
    (tmp_path / "data" / "more.txt").write_text("no source")
    prepare([tmp_path], "bytes", tmp_path / "data", PrepareOptions(seq_len=16, workers=1))
    assert (len(made.counts["files"]), made.counts["not_read"]) == (1, 0)


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("a.txt.zst", "pyarrow"),
        ("a.parquet", "pyarrow"),
        ("http://x/a.txt", "fsspec"),
        ("s3://b/a.txt", "obstore.fsspec"),
    ],
)
def test_an_extra_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    (tmp_path / name.rpartition("/")[2]).write_bytes(b"any")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        InvalidInput, match=r"needs?( the [a-z]+ package)?: pip install 'epochal\[(prepare|object-stores)\]'"
    ):
        prepare([name if "://" in name else tmp_path / name], "bytes", tmp_path / "data", PrepareOptions(workers=1))


def test_a_hub_that_cannot_be_reached_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EpochalError, match="HF_HUB_OFFLINE is set"):
        prepare(["hf://datasets/org/none"], "bytes", tmp_path / "data", PrepareOptions(workers=1))


def test_text_comes_from_the_hub_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("huggingface_hub")
    need_module("pyarrow")
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), tmp_path / "train.parquet")
    with fake_hub() as hub:
        hub.kind, hub.commit = "datasets", "1" * 40
        hub.files = {"data/train-00000-of-00001.parquet": (tmp_path / "train.parquet").read_bytes()}
        point_at(hub, tmp_path / "cache", monkeypatch)
        made = prepare(["hf://datasets/org/model"], "bytes", tmp_path / "data", PrepareOptions(seq_len=16, workers=1))
        asked = len(hub.requests)
        again = prepare(["hf://datasets/org/model"], "bytes", tmp_path / "data", PrepareOptions(seq_len=16, workers=1))
        assert (again.was_complete, len(hub.requests)) == (True, asked)
    assert documents_in(tmp_path / "data" / "train") == [text.encode() for text in TEXTS]
    assert list(made.counts["files"]) == [f"hf://datasets/org/model@{'1' * 40}/data/train-00000-of-00001.parquet"]


def test_two_preparations_of_a_folder_are_refused(sources: Path, tmp_path: Path) -> None:
    arguments = ("prepare", str(sources), "--tokenizer", "bytes", "--out", str(tmp_path / "data"))

    def meanwhile(_: PrepareProgress) -> None:
        run_main(*arguments).expect(2, "is being prepared by another process")
        run_main(*arguments, "--restart").expect(2, "is being prepared by another process")
        raise Stop

    with pytest.raises(Stop):
        prepare([sources], "bytes", tmp_path / "data", PrepareOptions(workers=1), meanwhile)
