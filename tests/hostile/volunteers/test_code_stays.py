"""Code that a run's document names: none is imported on a volunteer's machine before its package is allowed."""

import asyncio
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from epochal.data_providers.open_data import OpenOptions, open_location
from epochal.data_providers.protocol import DatasetSpec
from epochal.runtime.entry_points import load_registered
from epochal.runtime.permissions import OWNERS, Permissions
from epochal.state.config.data_location import Local
from epochal.state.config.state_file import parse_state
from epochal.state.errors import EpochalError, InvalidConfig, InvalidInput
from epochal.trainers.sources.local_model import local_source
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.drive.processes import RealRun, prepared_run
from tests.support.models.installed_trainers import register
from tests.support.servers.spy import spying

MARK = """
from pathlib import Path
Path(__file__).with_name("imported").write_text("")
"""
CALL = """
import os, socket
if "CALLED_PORT" in os.environ:
    socket.create_connection(("127.0.0.1", int(os.environ["CALLED_PORT"]))).close()
"""
ENCODER = MARK + CALL + "from epochal import TaskEncoder\nclass Chat(TaskEncoder):\n    pass\n"
TRAINER = (
    MARK
    + """
import numpy as np

class Lab:
    @staticmethod
    def open(setup):
        raise AssertionError("nobody asked for it")

    @staticmethod
    def open_model(spec, options):
        return Model()

class Model:
    vocabulary = 256
    shapes = {"w": (3,)}

    def initial_parameters(self, seed):
        return {"w": np.zeros(3, np.float32)}

    def learner(self):
        raise AssertionError("nothing trains")
"""
)
CUSTOM = {"model__LLM__architecture": "Custom", "model__LLM__custom": {"trainer": "lab"}}


def records(folder: Path) -> dict[str, Any]:
    """Return the part of the state file of a run that packs records with the encoder `chat`."""
    (folder / "train.jsonl").write_text('{"text": "to be or not to be"}\n' * 400)
    location = {"Local": str(folder / "train.jsonl")}
    return {
        "model__LLM__data_type": "Finetuning",
        "model__LLM__data_location": location,
        "packing": {"task_encoder": "chat", "oversized": "truncate"},
    }


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder with an installed package `bad`: an encoder and a trainer, whose import leaves a file."""
    folder = tmp_path / "site"
    register(folder, "bad", "epochal.task_encoders", chat="bad_encoder:Chat")
    register(folder / "more", "bad-lab", "epochal.trainers", lab="bad_trainer:Lab")
    (folder / "bad_encoder.py").write_text(ENCODER)
    (folder / "bad_trainer.py").write_text(TRAINER)
    return folder


def module_path(site: Path) -> str:
    return os.pathsep.join((str(site), str(site / "more")))


async def ran_client(run: RealRun, site: Path, *arguments: str) -> Any:
    allowed = ("--allow-local", str(site.parent), *arguments)
    return await run.command("client", run.url, *allowed, PYTHONPATH=module_path(site))


@pytest.mark.nightly
async def test_encoder_of_a_run_is_not_imported_before_it_is_allowed(tmp_path: Path, site: Path) -> None:
    async with prepared_run(tmp_path / "run", **records(tmp_path)) as run:
        await run.start_coordinator()
        ran = await ran_client(run, site)
        ran.expect(2, "packing.task_encoder 'chat' is code of the package bad", "--allow-package bad")
        assert not (site / "imported").exists()


@pytest.mark.nightly
async def test_encoder_of_an_allowed_package_packs(tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", module_path(site))
    async with prepared_run(tmp_path / "run", **records(tmp_path), config__total_steps=2) as run:
        await run.start_coordinator()
        for _ in range(2):
            await run.start_client("--allow-package", "bad")
        assert (await run.finish()).rounds == 2
        assert (site / "imported").exists()


async def test_allowed_code_connects_where_it_likes(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(site))
    permissions = Permissions.of_volunteer(packages=["bad"])
    assert permissions.reach is not None
    permissions.reach.meet("93.184.216.34")
    async with spying() as spy:
        monkeypatch.setenv("CALLED_PORT", str(spy.port))
        await asyncio.to_thread(load_registered, "epochal.task_encoders", "chat", "packing.task_encoder", permissions)
        async with asyncio.timeout(BOUND_S):
            await spy.connected.wait()


@pytest.mark.nightly
async def test_trainer_of_a_run_is_not_imported_by_the_null_trainer(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with prepared_run(tmp_path / "run", **CUSTOM) as run:
        with monkeypatch.context() as operators:
            operators.setenv("PYTHONPATH", module_path(site))
            await run.start_coordinator()
        (site / "imported").unlink()  # the operator's own machine, and the operator's own file
        ran = await ran_client(run, site, "--trainer", "null")
        ran.expect(2, "model.LLM.custom.trainer 'lab' is code of the package bad-lab", "--allow-package bad-lab")
        assert not (site / "imported").exists()
        ran = await ran_client(run, site, "--trainer", "numpy")
        ran.expect(2, "allowed: --trainer lab")
        assert not (site / "imported").exists()


@pytest.mark.parametrize(
    ("part", "allowed"),
    [
        ({"packing": {"task_encoder": "os:path"}, "model__LLM__data_type": "Finetuning"}, "epochal.task_encoders"),
        ({**CUSTOM, "model__LLM__custom": {"trainer": "os:path"}}, "epochal.trainers"),
    ],
)
def test_document_that_names_a_module_is_refused_when_it_is_read(part: dict[str, Any], allowed: str) -> None:
    tree = state_file(**{name: value for name, value in part.items() if name == "model__LLM__data_type"}).to_plain()
    for name, value in part.items():
        *path, last = name.split("__")
        place = tree
        for key in path:
            place = place[key]
        place[last] = value
    with pytest.raises(InvalidConfig, match=allowed):
        parse_state(tomli_w.dumps(_without_none(tree)), "state.toml")


def _without_none(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_none(value) for key, value in tree.items() if value is not None}
    return [_without_none(item) for item in tree] if isinstance(tree, list | tuple) else tree


@pytest.mark.parametrize("place", ["lab://x", "memory://x"])
def test_document_cannot_name_a_provider_of_a_package(place: str) -> None:
    for kind in ("Local", "Preprocessed", "WeightedHttp"):
        with pytest.raises(InvalidConfig):
            state_file(model__LLM__data_location={kind: place})


async def test_pickled_data_are_not_loaded(tmp_path: Path) -> None:
    class Canary:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "executed",)

    np.save(tmp_path / "tokens.npy", np.array([Canary()] * 64, dtype=object), allow_pickle=True)
    with pytest.raises(EpochalError):
        await open_location(Local(str(tmp_path / "tokens.npy")), DatasetSpec(2, 16), OpenOptions("run", None, OWNERS))
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "model.pt"])
def test_pickled_weights_are_not_loaded(tmp_path: Path, name: str) -> None:
    class Canary:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "executed",)

    folder = tmp_path / "model"
    folder.mkdir()
    (folder / name).write_bytes(pickle.dumps({"w": Canary()}))
    for place in (folder, folder / name):
        with pytest.raises(InvalidInput, match="safetensors"):
            list(local_source(place).tensors({"w": (1,)}))
    assert not (tmp_path / "executed").exists()
