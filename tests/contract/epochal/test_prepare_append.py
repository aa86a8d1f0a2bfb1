"""`epochal prepare --append`: new sources become files after those of a complete preparation, which stay the same."""

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from epochal.data_providers.protocol import DatasetSpec
from epochal.data_providers.providers.growing_data import found_among
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.sources.manifest import verify_folder
from epochal.tools.prepare.pipeline import PrepareProgress, prepare
from epochal.tools.prepare.prepare_options import PrepareOptions
from epochal.tools.prepare.work_folder import APPENDING
from tests.support.data.prepared import documents_in, everything_in, write_records
from tests.support.drive.cli import Ran, run_main
from tests.support.heavy import need_module

OPTIONS = {"seq_len": 16, "shard_tokens": 480, "validation": "20%", "workers": 1}
SMALL = PrepareOptions(**OPTIONS)  # type: ignore[arg-type]
APPEND = PrepareOptions(**OPTIONS, append=True)  # type: ignore[arg-type]
WORDS = ("--seq-len", "16", "--shard-tokens", "480", "--validation", "20%", "--workers", "1")
SPEC = DatasetSpec(2, 16, bytes(32))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A complete preparation of `old.jsonl`; `new.jsonl` is there to be appended."""
    for name in ("old", "new"):
        write_records(tmp_path / f"{name}.jsonl", [f"{name} text {number}" for number in range(100)])
    prepare([tmp_path / "old.jsonl"], "bytes", tmp_path / "data", SMALL)
    return tmp_path / "data"


def append(data: Path, *more: str, source: str = "new.jsonl") -> Ran:
    arguments = ("--tokenizer", "bytes", "--out", str(data), *WORDS, "--append", *more)
    return run_main("prepare", str(data.parent / source), *arguments)


def test_what_is_appended_is_in_files_after_the_others(data: Path, tmp_path: Path) -> None:
    before = everything_in(data)
    provider = LocalDataProvider.open(data / "train", SPEC)
    alone = prepare([tmp_path / "new.jsonl"], "bytes", tmp_path / "alone", SMALL).folder
    pinned = f'data_fingerprint = "{provider.fingerprint}"'
    ran = append(data)
    ran.expect(
        0, f"data append URL {data}/data.toml", "a run that has not begun takes all of them", "data_fingerprint = "
    )
    assert pinned not in ran.out
    after = everything_in(data)
    manifests = {f"{split}/epochal-manifest.json" for split in ("train", "validation")}
    assert {name: text for name, text in after.items() if before.get(name) != text}.keys() == (
        after.keys() - before.keys() | manifests
    )
    for split in ("train", "validation"):
        assert documents_in(data / split) == [
            *(text for text in documents_in(data / split) if text.startswith(b"old")),
            *documents_in(alone / split),
        ]
        verify_folder(data / split, sorted(path.name for path in (data / split).glob("*.bin")))
    grown = LocalDataProvider.open(data / "train", SPEC)
    found = found_among(grown, provider.fingerprint)
    assert found is not None
    assert (found.file_count, found.sample_count) == (len(provider.order.files), provider.sequence_count)
    assert len({encoding.sha256 for encoding in grown.encodings.values()}) == 1
    assert len(grown.encodings) == len(grown.order.files) > found.file_count
    assert not (data / APPENDING).exists()
    for each in (provider, grown):
        asyncio.run(each.aclose())


def test_the_same_append_again_says_that_nothing_was_done(data: Path) -> None:
    append(data).expect(0)
    before = everything_in(data)
    append(data).expect(0, "complete: nothing was done")
    append(data, source="old.jsonl").expect(2, "old.jsonl was prepared already; --append takes the new sources alone")
    assert {name for name in everything_in(data) if not name.startswith(APPENDING)} == before.keys()
    run_main("prepare", str(data.parent / "old.jsonl"), "--tokenizer", "bytes", "--out", str(data), *WORDS).expect(
        0, "complete: nothing was done"
    )
    write_records(data.parent / "new.jsonl", ["other"])
    append(data).expect(2, "new.jsonl had", "what is new needs a name of its own")
    write_records(data.parent / "third.jsonl", ["third"] * 40)
    append(data, source="third.jsonl").expect(0)
    assert documents_in(data / "train")[-1] == b"third"


@pytest.mark.nightly
def test_interrupted_append_goes_on_to_the_same_bytes(data: Path, tmp_path: Path) -> None:
    write_records(tmp_path / "new.jsonl", [f"new text {number} " + "x" * 4000 for number in range(1000)])
    shown = 0

    def interrupt(_: PrepareProgress) -> None:
        nonlocal shown
        shown += 1
        if shown == 3:
            raise KeyboardInterrupt

    before, large = everything_in(data), replace(APPEND, shard_tokens=1_000_000)
    with pytest.raises(KeyboardInterrupt):
        prepare([tmp_path / "new.jsonl"], "bytes", data, large, interrupt)
    seen = everything_in(data)
    assert {name: seen[name] for name in before} == before, "nothing was published"
    assert any(name.startswith(f"{APPENDING}/") for name in seen)
    append(data).expect(2, "an unfinished preparation in this folder has other options: --shard-tokens was 1000000")
    assert len(prepare([tmp_path / "new.jsonl"], "bytes", data, large).appended) == 1
    prepare([tmp_path / "old.jsonl"], "bytes", tmp_path / "whole", SMALL)
    prepare([tmp_path / "new.jsonl"], "bytes", tmp_path / "whole", large)
    for split in ("train", "validation"):
        assert everything_in(data / split) == everything_in(tmp_path / "whole" / split)


def test_append_that_was_stopped_half_published_is_completed(data: Path) -> None:
    names = sorted(path.name for path in (data / "train").glob("*.bin"))
    obstacle = data / "train" / f"shard-{len(names) + 1:06}.bin"
    obstacle.write_bytes(b"mine")
    append(data).expect(2, f"{obstacle} is there already")
    assert (data / "train" / f"shard-{len(names):06}.bin").exists(), "the first is in its place"
    obstacle.unlink()
    append(data).expect(0)
    for split in ("train", "validation"):
        verify_folder(data / split, sorted(path.name for path in (data / split).glob("*.bin")))
    manifest = json.loads((data / "validation" / "epochal-manifest.json").read_text())
    assert len(manifest["preparation"]["appended"]) == 1
    assert not (data / APPENDING).exists()


def test_append_with_other_options_is_refused(data: Path) -> None:
    before = everything_in(data)
    for more, said in (
        (("--seq-len", "32"), "--seq-len was 16 and is 32"),
        (("--validation", "1%"), "--validation was '1/5' and is '1/100'"),
        (("--end-token", "0"), "--end-token was 255 and is 0"),
        (("--data-address", "127.0.0.1:1"), "and without --append"),
    ):
        append(data, *more).expect(2, said)
    assert everything_in(data) == before


def test_append_without_a_complete_preparation_is_refused(data: Path, tmp_path: Path) -> None:
    append(tmp_path / "nothing").expect(2, "nothing holds no complete preparation")
    assert not (tmp_path / "nothing").exists()
    (data / "train" / "shard-000000.bin").unlink()
    append(data).expect(1, "lists shard-000000.bin, which does not exist")


def test_append_whose_names_would_not_come_last_is_refused(data: Path) -> None:
    manifest = data / "train" / "epochal-manifest.json"
    document = json.loads(manifest.read_text())
    (data / "train" / "shard-000000.bin").rename(data / "train" / "zzz.bin")
    document["files"]["zzz.bin"] = document["files"].pop("shard-000000.bin")
    manifest.write_text(json.dumps(document))
    append(data).expect(2, "ends with zzz.bin; allowed with --append:", "names before shard-")


def test_appended_conversations_are_in_files_after_the_others(tmp_path: Path) -> None:
    need_module("jinja2")
    need_module("pyarrow")
    for name in ("old", "new"):
        talks = [{"prompt": f"{name} {number}?", "completion": "So."} for number in range(60)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    command = ("--chat", "--tokenizer", "bytes", "--out", str(tmp_path / "rows"), "--seq-len", "64", "--workers", "1")
    run_main("prepare", str(tmp_path / "old.jsonl"), *command).expect(0)
    run_main("prepare", str(tmp_path / "new.jsonl"), *command, "--append").expect(
        0, "120 documents", f"data append URL {tmp_path / 'rows'}"
    )
    assert [path.name for path in sorted((tmp_path / "rows" / "train").glob("*.parquet"))] == [
        "train-00000.parquet",
        "train-00001.parquet",
    ]
    verify_folder(tmp_path / "rows" / "train")


def test_what_a_kill_after_the_last_step_left_is_removed(data: Path, tmp_path: Path) -> None:
    append(data).expect(0)
    done = everything_in(data)
    shutil.rmtree(data / "train")
    shutil.rmtree(data / "validation")
    prepare([tmp_path / "old.jsonl"], "bytes", data, SMALL)
    obstacle = data / "train" / sorted(name for name in done if name.startswith("train/shard-"))[-1].partition("/")[2]
    obstacle.write_bytes(b"mine")
    append(data).expect(2, f"{obstacle} is there already")
    shutil.copytree(data / APPENDING, tmp_path / "left")
    obstacle.unlink()
    append(data).expect(0)
    shutil.copytree(tmp_path / "left", data / APPENDING)
    append(data).expect(0, "complete: nothing was done")
    assert everything_in(data) == done
    shutil.copytree(tmp_path / "left", data / APPENDING)
    write_records(tmp_path / "third.jsonl", ["third"] * 40)
    append(data, source="third.jsonl").expect(0)
    assert documents_in(data / "train")[-1] == b"third"
    assert not (data / APPENDING).exists()
