"""A model on the Hugging Face Hub: `huggingface_hub` against a server that answers as the Hub does, good and bad."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from epochal.runtime.hub import MAX_ATTEMPTS, hub_error
from epochal.runtime.retry import RetryPolicy
from epochal.state.config.model_table import P2P, Hub
from epochal.state.errors import InvalidInput, ModelUnavailable
from epochal.trainers.sources.folder_source import FolderSource
from epochal.trainers.sources.hub_model import HubFolder
from epochal.trainers.sources.open_model import open_source, parse_source
from tests.support.bounds import BOUND_S
from tests.support.heavy import need_module
from tests.support.models.model_files import CONFIG, write_model
from tests.support.servers.hub_server import COMMIT, REPOSITORY, FakeHub, Wrong, fake_hub, point_at

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.array([0.5, -1.25], np.float32)
SHAPES = {"a": (2, 3), "b": (2,)}
AT_ONCE = RetryPolicy(attempts=MAX_ATTEMPTS, first_delay_s=0.0, max_asked_s=0.0)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with a model in two shards; its cache is in `tmp_path / "cache"`."""
    need_module("huggingface_hub")
    with fake_hub() as hub:
        point_at(hub, tmp_path / "cache", monkeypatch)
        hub.files = files_of(write_model(tmp_path / "model", {"a": A}, {"b": B}))
        yield hub


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def source() -> FolderSource:
    return FolderSource(HubFolder(REPOSITORY, None, AT_ONCE))


def values_of(found: FolderSource) -> dict[str, list[float]]:
    return {name: values.reshape(-1).tolist() for name, values in found.tensors(SHAPES)}


EXPECTED = {"a": A.reshape(-1).tolist(), "b": B.tolist()}


def test_repository_gives_config_and_tensors_of_one_commit(hub: FakeHub) -> None:
    for found in (open_source(Hub(repo_id=REPOSITORY)), open_source(P2P(repo_id=REPOSITORY, revision="main"))):
        assert found.config() == CONFIG
        assert {name: values.reshape(-1).tolist() for name, values in found.tensors(SHAPES)} == EXPECTED
    resolved = [path for _, path in hub.requests if "/resolve/" in path]
    assert resolved[0].endswith("/resolve/main/config.json")
    assert all(f"/resolve/{COMMIT}/" in path for path in resolved[3:5]), "later files are of the first one's commit"


def test_files_in_the_cache_are_not_fetched_again(hub: FakeHub) -> None:
    assert values_of(source()) == EXPECTED
    fetched = [request for request in hub.requests if request[0] == "GET"]
    assert values_of(source()) == EXPECTED
    assert [request for request in hub.requests if request[0] == "GET"] == fetched


def test_environment_names_the_hub_and_the_token_of_a_private_repository(hub: FakeHub, tmp_path: Path) -> None:
    hub.token = "hf_secret"
    code = (
        "from epochal.trainers.sources.open_model import parse_source\n"
        f"found = parse_source('hf://{REPOSITORY}')\n"
        "print(found.config()['model_type'])\n"
        "import sys; print('torch' in sys.modules)\n"
    )
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": hub.token}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=BOUND_S)
    assert ran.stdout.split() == ["llama", "False"], ran.stderr
    with pytest.raises(
        InvalidInput, match=r"hf://org/model.*needs a token in HF_TOKEN, or there is no such repository"
    ):
        source().config()


@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        (401, {}, "needs a token in HF_TOKEN, or there is no such repository"),
        (403, {}, "does not allow this token"),
        (403, {"X-Error-Code": "GatedRepo"}, "access to the repository must be granted first"),
        (404, {"X-Error-Code": "RepoNotFound"}, "there is no such repository"),
        (404, {"X-Error-Code": "RevisionNotFound"}, "the repository has no such revision"),
        (400, {}, "refuses the request"),
    ],
)
def test_hub_that_refuses_is_not_asked_again(hub: FakeHub, status: int, headers: dict[str, str], words: str) -> None:
    hub.fail_with(status, headers=headers)
    with pytest.raises(InvalidInput, match=rf"hf://org/model/config\.json: .*{words}"):
        source().config()
    assert len(hub.requests) == 1


@pytest.mark.parametrize(
    ("status", "words"), [(429, "too many requests .*429"), (500, "the Hub fails .*500"), (503, "the Hub fails .*503")]
)
def test_hub_that_fails_is_asked_again_within_a_bound(hub: FakeHub, status: int, words: str) -> None:
    hub.fail_with(status, headers={"Retry-After": "1000"})
    with pytest.raises(ModelUnavailable, match=words):
        source().config()
    assert len(hub.requests) == MAX_ATTEMPTS
    hub.fail_with(status, times=MAX_ATTEMPTS - 1)
    assert values_of(source()) == EXPECTED


def test_hub_that_hangs_is_given_up_within_a_bound(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.1)
    hub.wrong = lambda method, path: Wrong(0)
    with pytest.raises(ModelUnavailable, match=r"the Hub, http://127.*, does not answer: .*timed out"):
        source().config()
    assert len(hub.requests) == MAX_ATTEMPTS


def test_cache_serves_while_the_hub_fails_or_in_offline_mode(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    assert values_of(source()) == EXPECTED
    hub.fail_with(503)
    assert values_of(source()) == EXPECTED
    asked = len(hub.requests)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert values_of(source()) == EXPECTED
    assert len(hub.requests) == asked
    with pytest.raises(InvalidInput, match=r"hf://org/other is not in the Hub's cache, .*HF_HUB_OFFLINE is set"):
        FolderSource(HubFolder("org/other", None, AT_ONCE)).config()
    with pytest.raises(
        InvalidInput, match=r"hf://org/model in the Hub's cache \(HF_HUB_OFFLINE is set\) holds no config"
    ):
        source().config()  # it was not asked for when the Hub answered


def test_download_that_breaks_off_is_continued_or_named(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    shard = "model-00001-of-00002.safetensors"
    hub.wrong = lambda method, path: Wrong(cut=10) if method == "GET" and path.endswith(shard) else None
    with pytest.raises(ModelUnavailable, match=shard):
        values_of(source())


def test_repository_in_another_format_is_refused_by_name(hub: FakeHub) -> None:
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    with pytest.raises(InvalidInput, match=r"hf://org/model holds pytorch_model\.bin, and no model\.safetensors"):
        values_of(source())
    assert not [path for method, path in hub.requests if method == "GET" and path.endswith("model.bin")]


@pytest.mark.parametrize("text", ["hf://", "hf://a/b/c", "hf://org/na me"])
def test_name_that_no_repository_can_have_is_refused(hub: FakeHub, text: str) -> None:
    with pytest.raises(InvalidInput, match="hf://"):
        parse_source(text).config()


def test_errors_of_the_librarys_transfers_are_named() -> None:
    need_module("huggingface_hub")
    denied = hub_error(PermissionError("401 from the store of large files"), "hf://org/model")
    assert isinstance(denied, InvalidInput)
    assert "HF_TOKEN" in denied.message
    full = hub_error(RuntimeError("Data processing error: No space left on device (os error 28)"), "hf://org/model")
    assert isinstance(full, ModelUnavailable)
    assert (full.context["is_full"], "HF_HOME" in full.message) == (True, True)
    broken = hub_error(RuntimeError("Data processing error: connection reset"), "hf://org/model")
    assert isinstance(broken, ModelUnavailable)
    assert "connection reset" in broken.message
    assert "is_full" not in broken.context


def test_hub_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InvalidInput, match=r"needs huggingface_hub: pip install 'epochal\[hub\]'"):
        FolderSource(HubFolder(REPOSITORY, None)).config()
