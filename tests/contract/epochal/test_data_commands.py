"""`epochal data`: what people see of a location."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.data.data_formats import write_megatron
from tests.support.data.image_samples import image, pointer, sample, tokens, write_samples
from tests.support.data.states import state_text
from tests.support.drive.cli import Ran, run_main
from tests.support.heavy import need_module

TEXT = b"Shall I compare thee to a summer's day? Thou art more lovely and more temperate."


def data(*arguments: object) -> Ran:
    """Run `epochal data ARGUMENTS…`."""
    return run_main("data", *map(str, arguments))


def inspected(*arguments: object) -> dict[str, Any]:
    ran = data("inspect", *arguments, "--json")
    ran.expect(0)
    report: dict[str, Any] = json.loads(ran.out)
    return report


def text_in(report: dict[str, Any]) -> str:
    return "".join(part["text"] for part in report["sample_parts"])


def write_text(folder: Path) -> Path:
    np.frombuffer(TEXT, np.uint8).astype("<u2").tofile(folder / "sonnet.bin")
    return folder


def test_inspect_shows_files_sequences_tokens_and_a_decoded_sample(tmp_path: Path) -> None:
    report = inspected(write_text(tmp_path), "--seq-len", "16")
    assert (report["sequences"], report["tokens"]) == (5, 80)
    assert report["files"] == [{"name": "sonnet.bin", "format": "raw", "size_bytes": 160, "sequences": 5}]
    assert text_in(report) == TEXT[:16].decode()
    assert len(report["fingerprint"]) == 64


def test_inspect_tells_what_of_a_record_is_learnt(tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_text('{"prompt": "Why?", "completion": "So."}\n')
    data("inspect", tmp_path / "chat.jsonl").expect(0, "masked  Why?", "learnt  So.")
    report = inspected(tmp_path / "chat.jsonl")
    assert report["sample_parts"] == [{"text": "Why?", "learnt": False}, {"text": "So.", "learnt": True}]


def test_inspect_counts_the_images_of_samples(tmp_path: Path) -> None:
    samples = [sample(image(100), pointer("a.png"), tokens(1, 2), weights=[1, 1])] * 3
    report = inspected(write_samples(tmp_path / "train.jsonl", samples))
    counts = {"samples": 3, "images": 3, "image_bytes": 300, "pointers": 3, "text_tokens": 6}
    assert report["images"] == counts | {"size": 3 * (100 + 5 + 20 + 20)}
    assert report["notes"] == []
    data("inspect", tmp_path / "train.jsonl").expect(0, "images in them", "3 of 300 bytes", "locations of images")
    write_samples(tmp_path / "train.jsonl", [samples[0], samples[0] | {"chunks": []}])
    (note,) = inspected(tmp_path / "train.jsonl")["notes"]
    assert note.startswith(
        "data index 1: chunks is a list of 0; allowed: a list of 1 to 1024 chunks; it is record 2 of"
    )


def test_inspect_notes_tokens_that_the_embedded_model_lacks(tmp_path: Path) -> None:
    np.full(640, 42_749, "<u2").tofile(tmp_path / "gpt.bin")
    data("inspect", tmp_path, "--seq-len", 16).expect(0, "largest token", "42,749", "vocabulary of more than 42749")


def test_inspect_for_a_run_ends_with_what_is_wrong(tmp_path: Path) -> None:
    np.full(640, 42_749, "<u2").tofile(tmp_path / "gpt.bin")
    (tmp_path / "state.toml").write_text(state_text())
    ran = data("inspect", tmp_path / "gpt.bin", "--state", tmp_path / "state.toml", "--json")
    ran.expect(2, "token 42749")
    assert (len(json.loads(ran.out)["problems"]), json.loads(ran.out)["sequence_length"]) == (1, 16)


def test_inspect_for_people_is_a_table_with_the_text(tmp_path: Path) -> None:
    ran = data("inspect", write_text(tmp_path), "--seq-len", 40)
    ran.expect(0, "sonnet.bin", "Shall I compare thee to a summer's day?")


def test_inspect_shows_names_that_look_like_markup_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "data[" / "a]"
    folder.mkdir(parents=True)
    (write_text(folder) / "sonnet.bin").rename(folder / "data[train].bin")
    data("inspect", folder, "--seq-len", 40).expect(0, "data[train].bin")


@pytest.mark.parametrize(("write", "kind"), [("megatron", "Megatron"), ("npy", "npy")])
def test_inspect_names_the_format(tmp_path: Path, write: str, kind: str) -> None:
    tokens = np.arange(64, dtype="<u2")
    if write == "megatron":
        write_megatron(tmp_path, "text", [tokens])
    else:
        np.save(tmp_path / "a.npy", tokens)
    report = inspected(tmp_path, "--seq-len", "16")
    assert [file["format"] for file in report["files"]] == [kind]
    assert report["sequences"] == 4


def test_inspect_of_a_location_that_is_wrong_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(3))
    data("inspect", tmp_path).expect(2, "a.bin has 3 bytes, not a multiple of the token size 2")


def test_inspect_reads_a_data_toml_with_its_own_sequence_length(tmp_path: Path) -> None:
    write_text(tmp_path)
    config = tmp_path / "data.toml"
    config.write_text('dir = "."\ntoken_size = "TwoBytes"\nseq_len = 20\n')
    assert inspected(config)["sequences"] == 4


@pytest.mark.parametrize("place", ["", "data.toml"])
def test_inspect_shows_a_folder_of_json_lines(tmp_path: Path, place: str) -> None:
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "train.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (tmp_path / "data.toml").write_text('dir = "samples"\n')
    report = inspected(tmp_path / (place or "samples"))
    assert (report["kind"], report["sequences"], text_in(report)) == ("JSON lines", 2, "one")


def test_inspect_shows_a_folder_of_parquet_files(tmp_path: Path) -> None:
    need_module("pyarrow")
    import pyarrow
    import pyarrow.parquet

    for name in ("train.parquet", "test.parquet"):
        pyarrow.parquet.write_table(pyarrow.table({"inputs": [[72, 105]] * 7}), tmp_path / name)
    report = inspected(tmp_path)
    assert (report["kind"], report["sequences"], text_in(report)) == ("parquet files", 7, "Hi")
    (file,) = report["files"]
    assert (file["name"], file["format"], file["sequences"]) == ("train.parquet", "parquet", 7)


def test_inspect_shows_rows_of_text_as_records(tmp_path: Path) -> None:
    need_module("pyarrow")
    import pyarrow
    import pyarrow.feather

    pyarrow.feather.write_feather(pyarrow.table({"text": ["one", "two"], "id": [1, 2]}), tmp_path / "a.feather")
    shown = inspected(tmp_path / "a.feather")
    assert (shown["sequences"], text_in(shown)) == (2, "one")
    assert shown["files"][0]["format"] == "Arrow"


def test_inspect_decodes_with_a_tokenizer(tmp_path: Path) -> None:
    need_module("tokenizers")
    import tokenizers
    from tokenizers.models import WordLevel

    path = tmp_path / "tokenizer.json"
    words = {"[UNK]": 0, "summer": 300, "day": 301}
    tokenizers.Tokenizer(WordLevel(words, unk_token="[UNK]")).save(str(path))
    np.array([300, 301, 300], "<u2").tofile(tmp_path / "a.bin")
    report = inspected(tmp_path / "a.bin", "--seq-len", "3", "--tokenizer", path)
    assert text_in(report) == "summer day summer"
    assert inspected(tmp_path / "a.bin", "--seq-len", "3")["sample_parts"] == []
    data("inspect", tmp_path / "a.bin", "--tokenizer", "byte").expect(
        2, "there is no such file; allowed: a tokenizer.json, or bytes"
    )


def test_inspect_shows_the_shares_of_a_mix(tmp_path: Path) -> None:
    write_text(tmp_path)
    entries = [{"location": {"Local": "sonnet.bin"}, "weight": 2}, {"location": "Dummy", "weight": 1}]
    (tmp_path / "mix.json").write_text(json.dumps(entries))
    report = inspected(tmp_path / "mix.json", "--seq-len", "16")
    assert report["shares"] == [[0, {"0 (Local)": 43691, "1 (Dummy)": 21845}]]


def test_manifest_is_written_and_verified(tmp_path: Path) -> None:
    write_text(tmp_path)
    data("manifest", tmp_path).expect(0)
    data("verify", tmp_path).expect(0, "the manifest matches 1 file")


def test_manifest_written_anew_keeps_what_is_known_of_the_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a text of some length\n" * 40)
    options = ("--tokenizer", "bytes", "--seq-len", "16", "--shard-tokens", "320", "--workers", "1")
    run_main("prepare", str(tmp_path / "a.txt"), *options, "--out", str(tmp_path / "d")).expect(0)
    train = tmp_path / "d" / "train"
    before = (train / "epochal-manifest.json").read_text()
    data("manifest", train).expect(0)
    assert (train / "epochal-manifest.json").read_text() == before
    state = tmp_path / "d" / "state.toml"
    state.write_text(re.sub(r'tokenizer = "[0-9a-f]+"', f'tokenizer = "{"a" * 64}"', state.read_text()))
    ran = run_main("check", str(state), "--data-config", str(tmp_path / "d" / "data.toml"))
    ran.expect(2, "was made with the tokenizer bytes")

    np.zeros(160, "<u2").tofile(train / "shard-000000.bin")
    (train / "shard-000001.bin").unlink()
    np.zeros(160, "<u2").tofile(train / "shard-000009.bin")
    ran = data("manifest", train)
    ran.expect(
        0,
        "shard-000000.bin is not the file of the earlier manifest: its tokenizer is no longer known",
        "shard-000001.bin is no longer there",
        "shard-000000.bin, and 1 more file: the manifest does not say with which tokenizer",
    )
    written = json.loads((train / "epochal-manifest.json").read_text())
    assert "encoding" in written["files"]["shard-000002.bin"]
    assert "encoding" not in written["files"]["shard-000000.bin"]
    assert "preparation" in written


def test_manifest_of_other_files_alone_says_what_is_lost(tmp_path: Path) -> None:
    write_text(tmp_path)
    data("manifest", tmp_path).expect(0)
    path = tmp_path / "epochal-manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"preparation": {}}))
    (tmp_path / "sonnet.bin").write_bytes(bytes(160))
    data("manifest", tmp_path).expect(0, "no file of the earlier manifest is there: preparation no longer known")
    assert "preparation" not in json.loads(path.read_text())
    path.write_text("{")
    data("manifest", tmp_path).expect(0, "is not a manifest", "nothing was carried over")
    data("verify", tmp_path).expect(0)


def test_verify_names_a_data_file_that_the_manifest_does_not_list(tmp_path: Path) -> None:
    write_text(tmp_path)
    data("manifest", tmp_path).expect(0)
    (tmp_path / "notes.txt").write_text("no data")
    data("verify", tmp_path).expect(0)
    (tmp_path / "more.npy").write_bytes(bytes(64))
    data("verify", tmp_path).expect(1, "more.npy")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["inspect", "absent.bin"], 2, "absent.bin cannot be read"),
        (["inspect", "workshop://x"], 2, "no data provider is called 'workshop'"),
        (["inspect", "tcp://127.0.0.1:9"], 2, "inspect the files that it serves"),
        (["inspect"], 2, "give a LOCATION, or the run whose data are meant: --state STATE.toml"),
        (["inspect", "--state", "state.toml", "--seq-len", "8"], 2, "do not go with --state"),
        (["verify", "absent"], 2, "epochal-manifest.json"),
        (["manifest", "absent"], 2, "absent is not a folder"),
    ],
)
def test_mistakes_are_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    data(*arguments).expect(code, message)
