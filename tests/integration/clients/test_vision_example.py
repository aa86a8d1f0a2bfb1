"""The example of text and images: its package installed into a folder of its own, and a run of it with two clients."""

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

PACKAGE = Path(__file__).parents[3] / "examples" / "vision"
BLIND_LOSS = math.log(4) / 6.25
"""Loss of a byte for a model that knows the four names, of 6.25 bytes on average, and sees no image."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder with the installed package."""
    need_module("torch")
    return installed_package(PACKAGE, tmp_path_factory)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder with the example's data."""
    folder = str(tmp_path_factory.mktemp("shapes"))
    command = [sys.executable, str(PACKAGE / "make_shapes.py"), folder]
    subprocess.run(command, check=True, capture_output=True, timeout=BOUND_S)
    return folder


@pytest.mark.nightly
async def test_run_on_text_and_images_learns_to_name_shapes(
    installed: str, shapes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", installed)
    async with prepared_run(tmp_path) as run:
        shutil.copy(PACKAGE / "state.toml", run.state_path)
        await run.start_coordinator()
        await run.start_client("--data", shapes, "--assets", shapes, trainer="shapes")
        await run.start_client("--data", shapes, "--assets", shapes, "--micro-batch", "20", trainer="shapes")
        report = await run.finish()  # the replicas are the recomputed ones
        assert (report.quarantined, report.unapplied) == (0, 0)
        evaluate = ("evaluate", str(run.run_dir), "--data", shapes, "--json")
        ran = await run.command(*evaluate, "--assets", shapes)
        ran.expect(0)
        found = json.loads(ran.out)
        assert (found["split"], found["samples"]) == ("validation", 128)
        assert found["loss"] < BLIND_LOSS / 4 < math.log(256) / 10, found
        ran = await run.command(*evaluate)
        ran.expect(1, "the image at 'images/validation-0001.png' is a path on this machine", "--assets DIR")


@pytest.mark.nightly
async def test_check_and_inspect_read_the_samples(installed: str, shapes: str, tmp_path: Path) -> None:
    state = tmp_path / "state.toml"
    text = (PACKAGE / "state.toml").read_text(encoding="utf-8")
    state.write_text(text.replace('Local = "shapes"', f"Local = '{shapes}'"), encoding="utf-8")
    (await run_command("check", str(state), PYTHONPATH=installed)).expect(0, "is valid")
    ran = await run_command("data", "inspect", "--state", str(state), "--json", PYTHONPATH=installed)
    ran.expect(0)
    found = json.loads(ran.out)
    assert (found["sequences"], found["images"]["samples"]) == (384, 256)
    assert (found["images"]["images"], found["images"]["pointers"]) == (128, 128)
