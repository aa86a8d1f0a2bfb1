"""Wheels of projects in this repository."""

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.support.bounds import BOUND_S


def built_wheel(project: Path, folder: Path) -> zipfile.ZipFile:
    """Build the project's wheel into the folder and return it."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=BOUND_S)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)
