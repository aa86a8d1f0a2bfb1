"""`file:` URLs where commands and files take a location: each does with one what it does with the path."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.cli.options.shared import local_path
from epochal.coordinator.store.published_files import FolderFiles
from epochal.data_providers.open_data import open_provider
from epochal.data_providers.protocol import CorruptData
from epochal.data_providers.sources.manifest import MANIFEST_NAME
from epochal.runtime.permissions import OWNERS
from epochal.state.config.data_file import parse_data_config
from epochal.state.errors import InvalidInput
from epochal.state.intervals import DataIds
from epochal.tools.init.choices import chosen_data
from epochal.tools.published_place import published_files
from epochal.trainers.sources.open_model import parse_source
from tests.support.data.states import state_file, state_text
from tests.support.drive.cli import run_main
from tests.support.heavy import need_module
from tests.support.models.model_files import write_model

SEQ_LEN = 16


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """What `epochal prepare` makes of a source that it is given as a URL, into a folder that is one, too."""
    (tmp_path / "a text.txt").write_text("one two three. " * 200)
    out = tmp_path / "made"
    arguments = ("--tokenizer", "bytes", "--seq-len", str(SEQ_LEN), "--workers", "1")
    ran = run_main("prepare", (tmp_path / "a text.txt").as_uri(), *arguments, "--out", out.as_uri())
    ran.expect(0)
    return out


async def tokens_at(location: Any) -> list[int]:
    state = state_file(model__LLM__data_location=location, model__LLM__max_seq_len=SEQ_LEN)
    provider = await open_provider(state, lambda: "", OWNERS)
    try:
        found: list[int] = (await provider.get_samples(DataIds(0, 3))).input_ids.tolist()
        return found
    finally:
        await provider.aclose()


def test_prepared_data_of_a_url_continue_by_the_path(prepared: Path) -> None:
    made = json.loads((prepared / "train" / MANIFEST_NAME).read_bytes())
    source = str(prepared.parent / "a text.txt")
    assert source in json.dumps(made, ensure_ascii=False)
    arguments = ("--tokenizer", "bytes", "--seq-len", str(SEQ_LEN), "--workers", "1", "--out", str(prepared))
    run_main("prepare", source, *arguments).expect(0, "holds this preparation already")


def test_data_of_a_url_are_those_of_its_manifest(prepared: Path) -> None:
    shown = [
        json.loads(run_main("data", "inspect", place, "--json").out)
        for place in (str(prepared / "train"), (prepared / "train").as_uri())
    ]
    assert shown[0] == shown[1]
    run_main("data", "verify", (prepared / "train").as_uri()).expect(0, f"{prepared / 'train'}: the manifest matches")
    location = {"Local": (prepared / "train").as_uri()}
    assert len(asyncio.run(tokens_at(location))) == 4 * SEQ_LEN
    shard = next((prepared / "train").glob("*.bin"))
    shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(CorruptData, match="manifest"):
        asyncio.run(tokens_at(location))


def test_folder_of_a_url_gets_its_manifest_and_a_run_its_data_file(tmp_path: Path) -> None:
    data = tmp_path / "some data"
    data.mkdir()
    np.zeros(1000, "<u2").tofile(data / "tokens.bin")
    run_main("data", "manifest", data.as_uri()).expect(0, f"{data / MANIFEST_NAME}: 1 file")
    state, described = tmp_path / "state.toml", tmp_path / "data.toml"
    state.write_text(state_text(model__LLM__data_location={"Server": "127.0.0.1:9"}, model__LLM__max_seq_len=SEQ_LEN))
    described.write_text(f'dir = "{data.as_uri()}"\ntoken_size = 2\nseq_len = {SEQ_LEN}\n')
    run_main("check", str(state), "--data-config", described.as_uri()).expect(0, f"is valid, and {described} fits it")


async def test_mix_names_its_sources_by_url_and_is_named_by_one(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    np.arange(64, dtype="<u2").tofile(tmp_path / "data" / "tokens.bin")
    entries = [{"location": {"Local": (tmp_path / "data").as_uri()}, "weight": 1}]
    (tmp_path / "mix.json").write_text(json.dumps(entries))
    assert sorted(await tokens_at({"WeightedHttp": (tmp_path / "mix.json").as_uri()})) == list(range(64))
    (tmp_path / "mix.json").write_text(json.dumps([{"location": {"Local": "file://there/data"}, "weight": 1}]))
    with pytest.raises(InvalidInput, match="file:///PATH, an absolute path of this machine"):
        await tokens_at({"WeightedHttp": (tmp_path / "mix.json").as_uri()})


def test_data_file_and_new_run_take_a_folder_by_url(tmp_path: Path) -> None:
    np.zeros(1000, "<u2").tofile(tmp_path / "tokens.bin")
    text = f'dir = "{tmp_path.as_uri()}"\ntoken_size = 2\nseq_len = 16\n'
    assert parse_data_config(text, "data.toml").dir == str(tmp_path)
    assert chosen_data(tmp_path.as_uri(), 2, "host:1") == chosen_data(str(tmp_path), 2, "host:1")


def test_model_tokenizer_and_publication_are_found_by_url(tmp_path: Path) -> None:
    write_model(tmp_path / "a model", {"a": np.ones((2, 2), np.float32)})
    assert parse_source((tmp_path / "a model").as_uri()).config() == parse_source(str(tmp_path / "a model")).config()
    with pytest.raises(InvalidInput, match=r"absent: No such file"):
        parse_source((tmp_path / "absent").as_uri())
    files = published_files((tmp_path / "published").as_uri())
    assert isinstance(files, FolderFiles)
    assert files.folder == tmp_path / "published"
    assert local_path((tmp_path / "a folder").as_uri()) == tmp_path / "a folder"
    assert local_path("relative/folder") == Path("relative/folder")


def test_tokenizer_of_a_preparation_is_found_by_url(tmp_path: Path) -> None:
    need_module("tokenizers")
    import tokenizers

    from epochal.tools.prepare.text_tokenizer import find_tokenizer

    model = tokenizers.models.WordLevel({"one": 0, "</s>": 1}, unk_token="one")
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    by_url = find_tokenizer((tmp_path / "tokenizer.json").as_uri(), "</s>")
    assert by_url == find_tokenizer(str(tmp_path / "tokenizer.json"), "</s>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("client", "http://127.0.0.1:1", "--data", "file:///nope.bin"), "--data /nope.bin: there is no such file"),
        (
            ("client", "http://127.0.0.1:1", "--data", "file:x.bin"),
            "data location 'file:x.bin': a file URL is file:///",
        ),
        (("evaluate", ".", "--data", "file:///nope.bin"), "--data /nope.bin: there is no such file"),
        (("evaluate", ".", "--data", "file://host/x"), "data location 'file://host/x': a file URL is file:///PATH"),
        (("data", "inspect", "file:///nope.bin"), "/nope.bin"),
        (("data", "inspect", "file://data/x"), "an absolute path of this machine, and no host"),
        (("data", "manifest", "file://data/x"), "path 'file://data/x': a file URL is"),
        (("data", "verify", "file:x"), "path 'file:x': a file URL is file:///PATH"),
        (("data-server", "file:d.toml", "--coordinator", "http://127.0.0.1:1"), "path 'file:d.toml': a file URL is"),
        (("coordinator", "s.toml", "--data-config", "file://h/d.toml"), "path 'file://h/d.toml': a file URL is"),
        (("check", "s.toml", "--data-config", "file://h/d.toml"), "path 'file://h/d.toml': a file URL is"),
        (("client", "http://127.0.0.1:1", "--assets", "file://h/x"), "path 'file://h/x': a file URL is"),
        (("client", "http://127.0.0.1:1", "--assets", "file:///nope"), "--assets /nope: there is no such folder"),
        (("prepare", "file:///nope.txt", "--tokenizer", "bytes", "--out", "o"), "/nope.txt cannot be read: No such"),
        (("prepare", "file:a.txt", "--tokenizer", "bytes", "--out", "o"), "source 'file:a.txt': a file URL is"),
        (("prepare", "a.txt", "--tokenizer", "file://h/t", "--out", "o"), "tokenizer 'file://h/t': a file URL is"),
        (("prepare", "a.txt", "--tokenizer", "bytes", "--out", "file:o"), "path 'file:o': a file URL is file:///PATH"),
        (("init", "run", "--data", "file:tokens"), "--data 'file:tokens': a file URL is file:///PATH"),
        (("init", "run", "--data", "file:///nope"), "--data /nope: no such folder"),
        (("export", ".", "--out", "file://host/m"), "path 'file://host/m': a file URL is file:///PATH"),
        (("publish", ".", "file://host/p"), "place 'file://host/p': a file URL is file:///PATH"),
        (("backup", ".", "file:copy"), "path 'file:copy': a file URL is file:///PATH"),
    ],
)
def test_url_of_no_path_or_of_one_that_is_not_there_is_said(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_main(*arguments).expect(2, message)
