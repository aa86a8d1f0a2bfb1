"""A run whose state file names a repository: what its first model takes from there, and what a check looks at."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from state.config.model import Architecture
from tests.support.bag_of_bytes import ENTRY, WEIGHT, BagOfBytes
from tests.support.cli import run_main
from tests.support.heavy import need_module
from tests.support.hub_server import REPOSITORY, FakeHub, fake_hub, point_at
from tests.support.model_files import CONFIG, write_model
from tests.support.states import state_file, state_text
from trainers.architectures import ARCHITECTURES
from trainers.genesis import make_first_model

WEIGHTS = BagOfBytes().initial_parameters(bytes(32))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    need_module("huggingface_hub")
    monkeypatch.setitem(ARCHITECTURES, Architecture.HF_LLAMA, ENTRY)
    with fake_hub() as hub:
        point_at(hub, tmp_path / "cache", monkeypatch)
        folder = write_model(tmp_path / "model", WEIGHTS)
        hub.files = {path.name: path.read_bytes() for path in folder.iterdir()}
        yield hub


@pytest.mark.parametrize("kind", ["Hub", "P2P"])
def test_first_model_takes_config_and_weights_from_a_repository(hub: FakeHub, kind: str) -> None:
    checkpoint = {kind: {"repo_id": REPOSITORY}}
    state = state_file(model__LLM__architecture="HfLlama", model__LLM__checkpoint=checkpoint)
    found = make_first_model(state, 0)
    assert found.spec.hf == CONFIG
    assert found.replica.parameters[WEIGHT].tobytes() == WEIGHTS[WEIGHT].tobytes()


def test_check_with_network_opens_a_repository_without_its_weights(hub: FakeHub, tmp_path: Path) -> None:
    path = tmp_path / "state.toml"
    checkpoint = {"Hub": {"repo_id": REPOSITORY}}
    path.write_text(state_text(model__LLM__architecture="HfLlama", model__LLM__checkpoint=checkpoint))
    run_main("check", str(path)).expect(0, "model.LLM.checkpoint was not opened", "--network opens it")
    assert hub.requests == []
    run_main("check", str(path), "--network").expect(0, "was opened, but its weights were not read", "is valid")
    assert not any("safetensors" in asked for _, asked in hub.requests)
    path.write_text(path.read_text().replace(REPOSITORY, "org/other"))
    run_main("check", str(path), "--network").expect(2, "model.LLM.checkpoint", "org/other")
