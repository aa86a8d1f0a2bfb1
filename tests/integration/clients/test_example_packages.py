"""The example packages of trainers: each built, installed into a folder of its own, and run with two clients."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.bounds import BOUND_S
from tests.support.drive.processes import prepared_run, run_command
from tests.support.heavy import need_module
from tests.support.wheels import installed_package

EXAMPLES = Path(__file__).parents[3] / "examples"
DIGITS = EXAMPLES / "trainer_package"


class Example(NamedTuple):
    """An example: its package, the module of its data, how the state file names them, and its clients' trainers.

    `loss` is a bound on the loss of the held-out `samples`, and `naive_loss` that of a guess.
    """

    package: Path
    data: str
    place: str
    trainers: tuple[str, str]
    loss: float
    naive_loss: float
    samples: int


CASES = (
    # A wrong answer costs at least ln 2 nats, so this loss has at least three of four held-out images right.
    Example(
        DIGITS, "digits", "Preprocessed", ("digits", "epochal_digit_trainer:DigitTrainer"),
        math.log(2) / 4, math.log(10) / 10, 512,
    ),
    # The loss of a byte for a model that knows the four names, of 6.25 bytes on average, and sees no image, is above.
    Example(
        EXAMPLES / "vision", "shapes", "Local", ("shapes", "shapes"),
        math.log(4) / 6.25 / 4, math.log(256) / 10, 128,
    ),
)  # fmt: skip


class Made(NamedTuple):
    """An example whose package is installed into a folder, with its data in another."""

    example: Example
    installed: str
    data: str


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.data)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    example: Example = request.param
    need_module("torch")
    if example.package == DIGITS:
        need_module("pyarrow")
    folder = str(tmp_path_factory.mktemp(example.data))
    command = [sys.executable, str(example.package / f"make_{example.data}.py"), folder]
    subprocess.run(command, check=True, capture_output=True, timeout=BOUND_S)
    return Made(example, installed_package(example.package, tmp_path_factory), folder)


@pytest.mark.nightly
async def test_run_of_a_packages_trainer_learns(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example, data = made.example, ("--data", made.data)
    images = ("--assets", made.data) if example.data == "shapes" else ()
    monkeypatch.setenv("PYTHONPATH", made.installed)
    async with prepared_run(tmp_path) as run:
        shutil.copy(example.package / "state.toml", run.state_path)
        await run.start_coordinator()
        await run.start_client(*data, *images, trainer=example.trainers[0])
        await run.start_client(*data, *images, "--micro-batch", "20", trainer=example.trainers[1])
        report = await run.finish()  # the replicas are the recomputed ones
        assert (report.quarantined, report.unapplied) == (0, 0)
        evaluate = ("evaluate", str(run.run_dir), *data, "--json")
        ran = await run.command(*evaluate, *images)
        ran.expect(0)
        found = json.loads(ran.out)
        assert (found["split"], found["samples"]) == ("validation", example.samples)
        assert found["loss"] < example.loss < example.naive_loss, found
        if images:
            ran = await run.command(*evaluate)
            ran.expect(1, "the image at 'images/validation-0001.png' is a path on this machine", "--assets DIR")
        else:
            assert found["tokens"] == example.samples


@pytest.mark.nightly
async def test_check_and_inspect_open_model_and_data(made: Made, tmp_path: Path) -> None:
    example, state = made.example, tmp_path / "state.toml"
    text = (example.package / "state.toml").read_text(encoding="utf-8")
    named = f'{example.place} = "{example.data}"'
    assert named in text
    state.write_text(text.replace(named, f"{example.place} = '{made.data}'"), encoding="utf-8")
    (await run_command("check", str(state), PYTHONPATH=made.installed)).expect(0, "is valid")
    if example.data == "shapes":
        ran = await run_command("data", "inspect", "--state", str(state), "--json", PYTHONPATH=made.installed)
        ran.expect(0)
        found = json.loads(ran.out)
        assert (found["sequences"], found["images"]["samples"]) == (384, 256)
        assert (found["images"]["images"], found["images"]["pointers"]) == (128, 128)


@pytest.mark.nightly
async def test_without_the_package_the_trainer_is_named(tmp_path: Path) -> None:
    state = str(DIGITS / "state.toml")
    ran = await run_command("check", state)
    ran.expect(2, "model.LLM.custom.trainer 'digits' is not installed", "install its package")
    (await run_command("check", state, "--no-files")).expect(0)
    ran = await run_command("coordinator", state, "--store", str(tmp_path / "run"), "--port", "0")
    ran.expect(2, "model.LLM.custom.trainer 'digits' is not installed")
    ran = await run_command("client", "http://127.0.0.1:9", "--trainer", "digits")
    ran.expect(2, "there is no trainer 'digits'; allowed: null, numpy")
