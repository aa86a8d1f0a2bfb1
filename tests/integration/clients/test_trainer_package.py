"""The example package of a trainer: built, installed into a folder of its own, and a run of it with two clients."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bounds import BOUND_S
from tests.support.drive.processes import prepared_run, run_command
from tests.support.heavy import need_module
from tests.support.wheels import installed_package

PACKAGE = Path(__file__).parents[3] / "examples" / "trainer_package"
CLASS = "epochal_digit_trainer:DigitTrainer"
CHANCE_LOSS = math.log(10)
"""Loss of a guess among ten digits."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder with the installed package."""
    need_module("torch")
    return installed_package(PACKAGE, tmp_path_factory)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder with the example's data."""
    need_module("pyarrow")
    folder = str(tmp_path_factory.mktemp("digits"))
    command = [sys.executable, str(PACKAGE / "make_digits.py"), folder]
    subprocess.run(command, check=True, capture_output=True, timeout=BOUND_S)
    return folder


@pytest.mark.nightly
async def test_run_of_the_packages_trainer_learns_the_digits(
    installed: str, digits: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", installed)
    async with prepared_run(tmp_path) as run:
        shutil.copy(PACKAGE / "state.toml", run.state_path)
        await run.start_coordinator()
        await run.start_client("--data", digits, trainer="digits")
        await run.start_client("--data", digits, "--micro-batch", "20", trainer=CLASS)
        report = await run.finish()
        assert (report.quarantined, report.unapplied) == (0, 0)
        ran = await run.command("evaluate", str(run.run_dir), "--data", digits, "--json")
        ran.expect(0)
        found = json.loads(ran.out)
        assert (found["split"], found["samples"], found["tokens"]) == ("validation", 512, 512)
        # A wrong answer costs at least ln 2 nats, so this loss has at least three of four held-out images right.
        assert found["loss"] < math.log(2) / 4 < CHANCE_LOSS / 10, found


@pytest.mark.nightly
async def test_check_opens_the_model_and_the_data(installed: str, digits: str, tmp_path: Path) -> None:
    state = tmp_path / "state.toml"
    text = (PACKAGE / "state.toml").read_text(encoding="utf-8")
    state.write_text(text.replace('Preprocessed = "digits"', f"Preprocessed = '{digits}'"), encoding="utf-8")
    (await run_command("check", str(state), PYTHONPATH=installed)).expect(0, "is valid")


@pytest.mark.nightly
async def test_without_the_package_the_trainer_is_named(tmp_path: Path) -> None:
    state = str(PACKAGE / "state.toml")
    ran = await run_command("check", state)
    ran.expect(2, "model.LLM.custom.trainer 'digits' is not installed", "install its package")
    (await run_command("check", state, "--no-files")).expect(0)
    ran = await run_command("coordinator", state, "--store", str(tmp_path / "run"), "--port", "0")
    ran.expect(2, "model.LLM.custom.trainer 'digits' is not installed")
    ran = await run_command("client", "http://127.0.0.1:9", "--trainer", "digits")
    ran.expect(2, "there is no trainer 'digits'; allowed: null, numpy")
