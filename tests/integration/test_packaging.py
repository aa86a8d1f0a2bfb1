"""The files and metadata of the wheel that users install."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.bounds import BOUND_S
from tests.support.wheels import built_wheel

ROOT = Path(__file__).parents[2]
ROOMS = tuple(sorted(path.name for path in (ROOT / "epochal").iterdir() if path.is_symlink()))
"""The top-level folders of the repository that are installed inside `epochal`."""
DEMO_FILES = {"demo_state.toml", "demo_torch_state.toml", "demo_llama.json"}
OWN_FILES = {
    "state.py": "raise AssertionError('a module of the user: state.py')",
    "coordinator.py": "raise AssertionError('a module of the user: coordinator.py')",
    "runtime/__init__.py": "raise AssertionError('a module of the user: runtime')",
    "trainers/__init__.py": """
from epochal.trainers.architectures import open_model
from epochal.trainers.null import NullTrainer

class Mine(NullTrainer):
    name = "mine"

    @classmethod
    def open(cls, setup):
        return cls(open_model(setup.spec))
""",
}
"""Files of a user beside a notebook, called as rooms of the repository are."""
EVERY_NAME = """
import epochal, importlib.util, sys
needs = {"global_rows": "jax", "RowBroadcast": "torch", "TorchTask": "torch"}
for name in epochal.__all__:
    if name not in needs or importlib.util.find_spec(needs[name]):
        assert getattr(epochal, name) is not None
assert not {"state", "coordinator", "runtime", "trainers"} & sys.modules.keys()
"""
NOTEBOOK = """
import epochal
with epochal.run_local(rounds=2, clients=2, trainer="trainers:Mine", run_dir="local") as run:
    run.wait()
    with epochal.connect(run.url) as connection:
        print(connection.history().step.tolist())
"""
MAX_WHEEL_BYTES = 2 * 1024**2


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return built_wheel(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a fresh environment that holds the wheel, and finds only what it needs besides."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
    ]
    subprocess.run([*pip, str(wheel.filename)], check=True, capture_output=True, timeout=BOUND_S)
    (packages,) = folder.glob("lib/python*/site-packages")
    needed = [place for place in sys.path if place.endswith("site-packages")]
    (packages / "needed.pth").write_text("\n".join(needed), encoding="utf-8")
    return python


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    """Return a user's folder with modules of the user's own."""
    for name, text in OWN_FILES.items():
        place = tmp_path / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(text, encoding="utf-8")
    return tmp_path


def run_in(folder: Path, python: Path, *arguments: str) -> str:
    """Return the output of a Python that runs in a folder, once it has ended well."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(python), *arguments]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=BOUND_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_wheel_has_one_import_name(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"epochal"}
    assert len(tops) == 2


@pytest.mark.nightly
def test_installed_names_are_those_of_the_wheel_and_hidden_by_no_file(installed: Path, own_folder: Path) -> None:
    run_in(own_folder, installed, "-c", EVERY_NAME)


def test_installed_program_finds_its_own_files(installed: Path, tmp_path: Path) -> None:
    """Outside the repository, whose folders hide that a name is only there."""
    assert run_in(tmp_path, installed, "-m", "epochal", "explain", "invalid-input").startswith("invalid-input (")
    page = "from epochal.coordinator.page.page_files import page_files; print(len(page_files()))"
    assert int(run_in(tmp_path, installed, "-c", page)) > 10


@pytest.mark.nightly
def test_notebook_trains_with_the_users_own_trainer(installed: Path, own_folder: Path) -> None:
    assert run_in(own_folder, installed, "-c", NOTEBOOK).split("\n")[-2] == "[1, 2]"


def test_wheel_holds_every_module_and_the_files_of_the_demos(wheel: zipfile.ZipFile) -> None:
    held = set(wheel.namelist())
    sources = {path.relative_to(ROOT) for folder in ("epochal", *ROOMS) for path in (ROOT / folder).rglob("*.py")}
    assert {str(path if path.parts[0] == "epochal" else "epochal" / path) for path in sources} <= held
    assert "epochal/py.typed" in held
    assert {f"epochal/tools/testnet/{name}" for name in DEMO_FILES} <= held
    page = ROOT / "coordinator" / "page" / "assets"
    assert {f"epochal/{path.relative_to(ROOT)}" for path in page.rglob("*") if path.is_file()} <= held


def test_wheel_declares_the_command_and_carries_the_licence(wheel: zipfile.ZipFile) -> None:
    def text(ending: str) -> str:
        (name,) = [name for name in wheel.namelist() if name.endswith(ending)]
        return wheel.read(name).decode()

    assert "epochal = epochal.cli.main:main" in text(".dist-info/entry_points.txt")
    assert "Apache License" in text("licenses/LICENSE")
    assert "Leon Sorokin" in text("licenses/coordinator/page/assets/vendor/uPlot.LICENSE.txt")
    metadata = text(".dist-info/METADATA")
    assert "Requires-Python: >=3.11" in metadata
    assert "Requires-Dist: fastapi" in metadata


def test_wheel_is_small(wheel: zipfile.ZipFile) -> None:
    assert wheel.filename is not None
    assert Path(wheel.filename).stat().st_size < MAX_WHEEL_BYTES
