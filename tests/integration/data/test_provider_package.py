"""The example package of a data provider: built, installed into a folder of its own, and used by the command line."""

import json
from pathlib import Path

import pytest

from tests.support.drive.processes import run_command
from tests.support.wheels import installed_package

PACKAGE = Path(__file__).parents[3] / "examples" / "provider_package"
TEXT = "To be, or not to be, that is the question. " * 40


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder with the installed package."""
    return installed_package(PACKAGE, tmp_path_factory)


@pytest.mark.nightly
async def test_installed_package_serves_its_scheme(installed: str, tmp_path: Path) -> None:
    path = tmp_path / "play.txt"
    path.write_text(TEXT)
    inspect = ("data", "inspect", f"text://{path}", "--seq-len", "64", "--json")
    ran = await run_command(*inspect, PYTHONPATH=installed)
    ran.expect(0)
    report = json.loads(ran.out)
    assert (report["sequences"], report["sample_parts"]) == (len(TEXT) // 64, [{"text": TEXT[:64], "learnt": True}])
