"""Wheels of projects in this repository."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.bounds import BOUND_S


def built_wheel(project: Path, folder: Path) -> zipfile.ZipFile:
    """Build the project's wheel into the folder and return it."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=BOUND_S)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def installed_package(project: Path, factory: pytest.TempPathFactory) -> str:
    """Return a folder with the project's package, installed."""
    folder = factory.mktemp("site")
    built_wheel(project, factory.mktemp("dist")).extractall(folder)  # which installs a pure wheel
    return str(folder)
