"""Which tokenizer an export copies, and what it says of it."""

import os
from pathlib import Path
from typing import Any

import pytest

from epochal.state.config.model_table import ModelSpec
from epochal.state.errors import InvalidInput
from epochal.tools.checkpoints.readable_run import RunView
from epochal.tools.export.tokenizer import NONE_NAMED, READS_BYTES, FoundTokenizer, find_tokenizer
from epochal.tools.prepare.text_tokenizer import BYTES_SHA256
from epochal.trainers.sources.tokenizers import identity_of
from tests.support.data.states import state_file
from tests.support.heavy import need_module
from tests.support.servers.hub_server import COMMIT, REPOSITORY, fake_hub, point_at

HF = {"model_type": "llama"}
TOKENIZER = {"tokenizer.json": b"{}"}


def view_of(checkpoint: Any, tokenizer: str | None = None, **hf: Any) -> RunView:
    pinned = {} if tokenizer is None else {"model__LLM__tokenizer": tokenizer}
    state = state_file(model__LLM__architecture="HfLlama", model__LLM__checkpoint=checkpoint, **pinned)
    return RunView(state, ModelSpec.model_validate({**dict(state.model.LLM.spec), "hf": HF | hf}), (), False)


def model_folder(folder: Path, config: str = '{"model_type": "llama"}') -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config)
    (folder / "tokenizer.json").write_bytes(TOKENIZER["tokenizer.json"])
    return folder


def test_tokenizer_is_of_the_commit_from_which_the_run_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("huggingface_hub")
    with fake_hub() as hub:
        point_at(hub, tmp_path / "cache", monkeypatch)
        hub.files = dict(TOKENIZER)
        view = view_of({"Hub": {"repo_id": "org/moved"}}, _name_or_path=REPOSITORY, _commit_hash=COMMIT)
        found = find_tokenizer(view, None)
        asked = [path for _, path in hub.requests]
    assert found.files == TOKENIZER
    assert found.said == f"tokenizer: tokenizer.json of hf://{REPOSITORY}@{COMMIT}"
    assert all(path.startswith(f"/{REPOSITORY}/resolve/{COMMIT}/") for path in asked if "/resolve/" in path)


def test_relative_folder_gives_its_tokenizer_only_if_it_is_the_runs_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    view = view_of({"Local": "m"})
    absent = find_tokenizer(view, None)
    assert absent.files == {}
    assert f"no tokenizer: {tmp_path / 'm'}, the run's `checkpoint`, is not on this machine" in absent.said
    model_folder(tmp_path / "m")
    found = find_tokenizer(view, None)
    assert (found.files, found.said) == (TOKENIZER, "tokenizer: tokenizer.json of m")
    os.chdir(model_folder(tmp_path / "elsewhere" / "m", '{"model_type": "gpt2"}').parent)
    other = find_tokenizer(view, None)
    assert other.files == {}
    assert "m differs from the run's model; `checkpoint` names m where its coordinator was started" in other.said


def test_tokenizer_of_a_full_path_or_of_the_option_is_taken_and_named(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", '{"model_type": "gpt2"}')
    for view, place in ((view_of({"Local": str(folder)}), None), (view_of("Ephemeral"), str(folder))):
        found = find_tokenizer(view, place)
        assert (found.files, found.said) == (TOKENIZER, f"tokenizer: tokenizer.json of {folder}")
    (folder / "tokenizer.json").unlink()
    assert "has none; --tokenizer names one" in find_tokenizer(view_of({"Local": str(folder)}), None).said
    with pytest.raises(InvalidInput, match="there is no tokenizer"):
        find_tokenizer(view_of("Ephemeral"), str(folder))


def test_run_without_a_source_or_with_none_has_no_tokenizer(tmp_path: Path) -> None:
    found = find_tokenizer(view_of("Ephemeral"), None)
    assert (found.files, found.said) == ({}, NONE_NAMED)
    assert find_tokenizer(view_of({"Local": "x"}), "none") == FoundTokenizer()


def test_tokenizer_of_the_option_must_be_that_of_the_runs_data(tmp_path: Path) -> None:
    folder, file = model_folder(tmp_path / "m"), b'{"model": {"vocab": {"a": 0}}}'
    (folder / "tokenizer.json").write_bytes(file)
    assert find_tokenizer(view_of("Ephemeral", tokenizer=identity_of(file)), str(folder)).files
    with pytest.raises(InvalidInput, match=r"is another tokenizer \(.* than that of the run's data \(aaaaaaaaaaaa…"):
        find_tokenizer(view_of("Ephemeral", tokenizer="a" * 64), str(folder))


def test_run_of_bytes_needs_no_tokenizer() -> None:
    state = state_file()
    for view in (RunView(state, state.model.LLM.spec, (), False), view_of("Ephemeral", tokenizer=BYTES_SHA256)):
        assert find_tokenizer(view, None) == FoundTokenizer(said=READS_BYTES)


def test_run_of_bytes_takes_no_tokenizer_of_more_tokens(tmp_path: Path) -> None:
    folder, state = model_folder(tmp_path / "m"), state_file()
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "b": 2047}}}')
    with pytest.raises(InvalidInput, match="vocab_size is 256"):
        find_tokenizer(RunView(state, state.model.LLM.spec, (), False), str(folder))


def test_tokenizer_of_the_option_must_fit_the_model(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "b": 300}}, "added_tokens": [{"id": 301}]}')
    with pytest.raises(
        InvalidInput, match=r"tokenizer\.json is a tokenizer of tokens from 0 to 300; .* vocab_size is 300"
    ):
        find_tokenizer(view_of("Ephemeral", vocab_size=300), str(folder))
    assert find_tokenizer(view_of("Ephemeral", vocab_size=301), str(folder)).files, "an added token is no obstacle"


@pytest.mark.parametrize("hf", [{}, {"vocab_size": 300}])
def test_tokenizer_of_the_option_that_is_not_json_is_refused(tmp_path: Path, hf: dict[str, Any]) -> None:
    folder = model_folder(tmp_path / "m")
    (folder / "tokenizer.json").write_text('{"model"')
    with pytest.raises(InvalidInput, match=r"m/tokenizer\.json is not JSON"):
        find_tokenizer(view_of("Ephemeral", **hf), str(folder))
