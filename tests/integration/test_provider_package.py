"""The example package of a data provider: built, installed into a folder of its own, and used by the command line."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[2] / "examples" / "provider_package"
TEXT = "To be, or not to be, that is the question. " * 40


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package."""
    dist, site = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(dist)]
    subprocess.run(command, cwd=PACKAGE, check=True, capture_output=True, timeout=60)
    (wheel,) = dist.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)  # what installing a pure wheel is
    return site


def inspect(site: Path | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if site is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(site), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "epochal", "data", "inspect", *arguments]
    root = Path(__file__).parents[2]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=60)


def test_installed_package_serves_its_scheme(installed: Path, tmp_path: Path) -> None:
    path = tmp_path / "play.txt"
    path.write_text(TEXT)
    ran = inspect(installed, f"text://{path}", "--seq-len", "64", "--json")
    assert ran.returncode == 0, ran.stderr
    report: dict[str, Any] = json.loads(ran.stdout)
    assert report["sequences"] == len(TEXT) // 64
    assert report["sample_text"] == TEXT[:64]


def test_its_own_errors_are_shown_as_they_are(installed: Path, tmp_path: Path) -> None:
    ran = inspect(installed, f"text://{tmp_path / 'absent.txt'}")
    assert ran.returncode == 2
    assert "absent.txt cannot be read" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_without_the_package_the_scheme_is_unknown_and_the_known_ones_are_named() -> None:
    ran = inspect(None, "text://play.txt")
    assert ran.returncode == 2
    assert "no data provider is called 'text'; allowed: az, dummy, gs, http" in ran.stderr
