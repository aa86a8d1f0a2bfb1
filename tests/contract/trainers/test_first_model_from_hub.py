"""A run whose state file names a repository: what its first model takes from there, and what a check looks at."""

from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

from epochal.cli.output.logs import LogFormat, start_logging
from epochal.state.config.model_table import Architecture
from epochal.trainers.architectures import ARCHITECTURES
from epochal.trainers.first_parameters import make_first_model
from tests.support.data.states import state_file, state_text
from tests.support.drive.cli import run_main
from tests.support.heavy import need_module
from tests.support.models.bag_of_bytes import ENTRY, WEIGHT, BagOfBytes
from tests.support.models.model_files import CONFIG, write_model
from tests.support.servers.hub_server import COMMIT, REPOSITORY, FakeHub, fake_hub, point_at

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
    assert found.spec.hf == CONFIG | {"_name_or_path": REPOSITORY, "_commit_hash": COMMIT}
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


def test_requests_to_a_hub_leave_no_line_each_in_the_log(hub: FakeHub) -> None:
    said = StringIO()
    start_logging(LogFormat.TEXT, verbose=False, stream=said)
    state = state_file(model__LLM__architecture="HfLlama", model__LLM__checkpoint={"Hub": {"repo_id": REPOSITORY}})
    make_first_model(state, 0)
    assert hub.requests
    assert "HTTP Request" not in said.getvalue()
