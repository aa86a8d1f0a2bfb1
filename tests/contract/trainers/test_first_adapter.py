"""A run that trains an adapter: its first model, from a folder and from the Hub, and who can train it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from epochal.runtime.permissions import OWNERS, Permissions
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidInput, Unsupported
from epochal.state.model.first_model import model_document, spec_of_document
from epochal.trainers.architectures import open_model
from epochal.trainers.first_parameters import look_at_source, make_first_model
from epochal.trainers.mesh.mesh_options import MeshOptions
from epochal.trainers.registry import TrainerOptions, check_mesh_trains, check_trains
from epochal.trainers.torch.torch_options import TorchOptions
from tests.support.data.states import state_file
from tests.support.heavy import need_module
from tests.support.models.adapted_llama import spec_with, write_base
from tests.support.servers.hub_server import COMMIT, REPOSITORY, FakeHub, fake_hub, point_at

LORA = {"Lora": {"r": 4, "alpha": 8.0}}
WEIGHTS = "model.safetensors"


@pytest.fixture(autouse=True)
def peft() -> None:
    for module in ("torch", "transformers", "peft"):
        need_module(module)


def state_with(checkpoint: Any, **more: Any) -> StateFile:
    fields = {"model__LLM__architecture": "HfAuto", "model__LLM__adapter": LORA, "model__LLM__checkpoint": checkpoint}
    return state_file(**(fields | more))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    write_base(tmp_path / "base", spec_with())
    return tmp_path / "base"


@pytest.fixture
def hub(base: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    need_module("huggingface_hub")
    with fake_hub() as hub:
        point_at(hub, base.parent / "cache", monkeypatch)
        hub.files = {path.name: path.read_bytes() for path in base.iterdir()}
        yield hub


def weights_asked(hub: FakeHub) -> list[str]:
    return [method for method, path in hub.requests if path.endswith(WEIGHTS)]


def test_first_model_has_the_adapter_and_names_the_files_of_its_base(base: Path) -> None:
    state = state_with({"Local": str(base)})
    first, again, other = (make_first_model(state, 0, seed) for seed in (None, None, 5))
    assert first.spec.base == spec_with_files(base)
    assert all("lora_" in name for name, _ in first.layout.entries)
    assert first.spec.completes(state.model.LLM.spec)
    assert not state.model.LLM.spec.completes(state.model.LLM.spec)
    assert not first.spec.whole.completes(state.model.LLM.spec)
    values = [dict(one.replica.parameters) for one in (first, again, other)]
    a = next(name for name in values[0] if name.endswith("lora_A.weight"))
    assert values[0][a].tobytes() == values[1][a].tobytes() != values[2][a].tobytes()
    assert spec_of_document(model_document(first.spec).decode()) == first.spec


def spec_with_files(base: Path) -> Any:
    from epochal.trainers.sources.folder_source import FolderSource
    from epochal.trainers.sources.local_model import LocalFolder

    return FolderSource(LocalFolder(base)).weight_files()


def test_magnitudes_of_dora_are_the_norms_of_the_base(base: Path) -> None:
    from safetensors.numpy import load_file

    state = state_with({"Local": str(base)}, model__LLM__adapter={"Lora": {"use_dora": True}})
    found = make_first_model(state, 0).replica.parameters
    weights = load_file(base / WEIGHTS)
    name = "model.layers.1.mlp.up_proj"
    norms = np.linalg.norm(weights[f"{name}.weight"], axis=1)
    np.testing.assert_allclose(found[f"base_model.model.{name}.lora_magnitude_vector"], norms, rtol=1e-6)


def test_digests_of_a_repository_are_known_without_its_weights(hub: FakeHub, base: Path) -> None:
    state = state_with({"Hub": {"repo_id": REPOSITORY}})
    first = make_first_model(state, 0)
    assert first.spec.base == spec_with_files(base)
    assert set(weights_asked(hub)) == {"HEAD"}
    assert (first.spec.hf or {})["_commit_hash"] == COMMIT


def test_client_reads_the_base_of_a_repository_at_its_commit(hub: FakeHub) -> None:
    state = state_with({"Hub": {"repo_id": REPOSITORY}})
    spec = make_first_model(state, 0).spec
    check_trains("torch", state, spec, TrainerOptions(permissions=OWNERS))
    assert "GET" in weights_asked(hub)
    hub.files[WEIGHTS] = hub.files[WEIGHTS][:-1] + b"\x7f"
    check_trains("torch", state, spec, TrainerOptions(permissions=OWNERS))  # from the cache, by its commit


def test_base_whose_bytes_changed_under_a_commit_is_refused(hub: FakeHub) -> None:
    state = state_with({"Hub": {"repo_id": REPOSITORY}})
    spec = make_first_model(state, 0).spec
    hub.files[WEIGHTS] = hub.files[WEIGHTS][:-1] + b"\x7f"
    with pytest.raises(InvalidInput, match=f"hf://{REPOSITORY}@{COMMIT}: {WEIGHTS} is another file"):
        check_trains("torch", state, spec, TrainerOptions(permissions=OWNERS))


@pytest.mark.parametrize(("status", "reason"), [(401, "needs a token in HF_TOKEN"), (403, "does not allow this token")])
def test_gated_base_is_refused_with_how_to_show_a_token(hub: FakeHub, status: int, reason: str) -> None:
    state = state_with({"Hub": {"repo_id": REPOSITORY}})
    spec = make_first_model(state, 0).spec
    hub.fail_with(status)
    stranger = TrainerOptions(permissions=Permissions.of_volunteer())
    with pytest.raises(InvalidInput, match=f"{reason}.*--credentials-for huggingface.co shows the Hub your token"):
        check_trains("torch", state, spec, stranger)


def test_base_without_room_is_refused_before_it_is_downloaded(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_with({"Hub": {"repo_id": REPOSITORY}})
    spec = make_first_model(state, 0).spec
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000))
    with pytest.raises(InvalidInput, match=r"to be downloaded, and .*cache.* has room for 0.00 GB; .*--base DIR"):
        check_trains("torch", state, spec, TrainerOptions(permissions=OWNERS))
    assert "GET" not in weights_asked(hub)


@pytest.mark.parametrize(
    ("precision", "fitting"), [("float32", r"bf16 \(.* GB\), int8 \(.* GB\), nf4 \(.* GB\)"), ("bf16", "int8 .*nf4 .*")]
)
def test_base_without_room_on_the_gpu_is_refused_before_it_is_downloaded(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, precision: str, fitting: str
) -> None:
    import torch

    from epochal.trainers.torch.frozen_base import base_bytes

    state = state_with({"Hub": {"repo_id": REPOSITORY}})
    spec = make_first_model(state, 0).spec
    shapes = open_model(spec.whole).shapes
    beside_bytes = 16 * sum(int(np.prod(shape)) for shape in open_model(spec).shapes.values())
    room_bytes = base_bytes(shapes, 256, precision) + beside_bytes - 1
    for name, value in {"is_available": True, "device_count": 1, "memory_reserved": 0}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (room_bytes, 1 << 40))
    options = TrainerOptions(
        torch=TorchOptions(device="cuda:0", precision="float32", base_precision=precision), permissions=OWNERS
    )
    told = rf"--base-precision {precision}: base and adapter take .* GB without activations, and cuda:0 has room for"
    with pytest.raises(InvalidInput, match=rf"{told} .* GB; what fits: {fitting}"):
        check_trains("torch", state, spec, options)
    assert "GET" not in weights_asked(hub)


def test_tokenizer_of_another_base_is_refused(base: Path) -> None:
    (base / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    state = state_with({"Local": str(base)}, model__LLM__tokenizer="0" * 64)
    with pytest.raises(InvalidInput, match=r"tokenizer.json is another tokenizer .* or another base"):
        make_first_model(state, 0)


def test_base_of_another_config_is_refused_where_the_run_begins(base: Path) -> None:
    config = (base / "config.json").read_text()
    (base / "config.json").write_text(config.replace('"hidden_size": 32', '"hidden_size": 64'))
    with pytest.raises(InvalidInput, match="has shape"):
        make_first_model(state_with({"Local": str(base)}), 0)


def test_one_file_is_no_base(base: Path) -> None:
    state = state_with({"Local": str(base / WEIGHTS)}, model__LLM__hf=spec_with().hf)
    with pytest.raises(InvalidInput, match="an adapter's base is a repository or a folder"):
        make_first_model(state, 0)


def test_look_at_a_source_hashes_nothing(base: Path) -> None:
    spec = look_at_source(state_with({"Local": str(base)}))
    assert spec.is_complete
    assert spec.base is None


def test_mesh_and_training_service_refuse_adapters_by_name(base: Path) -> None:
    state = state_with({"Local": str(base)})
    spec = make_first_model(state, 0).spec
    with pytest.raises(Unsupported, match=r"model.LLM.adapter.*each client reads the base itself"):
        check_trains("remote", state, spec)
    with pytest.raises(Unsupported, match="no adapter with a mesh"):
        check_mesh_trains(MeshOptions("fsdp=2", 2, trainer="torch", torch=TorchOptions(device="cpu")), state, spec)
