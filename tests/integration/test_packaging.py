"""The files and metadata of the wheel that users install."""

import zipfile
from pathlib import Path

import pytest

from tests.support.wheels import built_wheel

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "batching",
    "coordinator",
    "coordinator_client",
    "data_providers",
    "epochal",
    "run_manager",
    "runtime",
    "state",
    "trainers",
    "training_service",
}
DEMO_FILES = {"demo_state.toml", "demo_torch_state.toml", "demo_llama.json"}


MAX_WHEEL_BYTES = 2 * 1024**2


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return built_wheel(ROOT, tmp_path_factory.mktemp("dist"))


def test_wheel_holds_the_packages_and_nothing_else_at_its_top(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    assert len(tops) == len(PACKAGES) + 1


def test_wheel_holds_every_module_and_the_files_of_the_demos(wheel: zipfile.ZipFile) -> None:
    held = set(wheel.namelist())
    sources = {str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert sources <= held
    assert {f"{package}/py.typed" for package in PACKAGES} <= held
    assert {f"epochal/tools/testnet/{name}" for name in DEMO_FILES} <= held
    page = ROOT / "coordinator" / "page" / "assets"
    assert {str(path.relative_to(ROOT)) for path in page.rglob("*") if path.is_file()} <= held
    assert not [name for name in held if name.startswith(("tests/", "docs/", "benchmarks/", "deploy/"))]


def test_wheel_declares_the_command_and_carries_the_licence(wheel: zipfile.ZipFile) -> None:
    def text(ending: str) -> str:
        (name,) = [name for name in wheel.namelist() if name.endswith(ending)]
        return wheel.read(name).decode()

    assert "epochal = epochal.cli.main:main" in text(".dist-info/entry_points.txt")
    assert "Apache License" in text("licenses/LICENSE")
    assert "Leon Sorokin" in text("licenses/coordinator/dashboard/page/vendor/uPlot.LICENSE.txt")
    metadata = text(".dist-info/METADATA")
    assert "Requires-Python: >=3.11" in metadata
    assert "Requires-Dist: fastapi" in metadata


def test_wheel_is_small(wheel: zipfile.ZipFile) -> None:
    assert wheel.filename is not None
    assert Path(wheel.filename).stat().st_size < MAX_WHEEL_BYTES
