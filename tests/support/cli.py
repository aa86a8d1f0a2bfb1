"""The command line: run in this process, and what a fresh one imports."""

import subprocess
import sys

import pytest

from epochal.cli.main import main

HEAVY = ("cryptography", "fastapi", "httpx", "jax", "numpy", "pydantic", "torch", "transitions", "uvicorn")


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of `epochal ARGUMENTS…`."""
    monkeypatch.setattr(sys, "argv", ["epochal", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    code = caught.value.code
    return code if isinstance(code, int) else 0


def heavy_imports_of(code: str) -> set[str]:
    """The heavy packages that a fresh process has imported after running the code."""
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules, sep='\\n')"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(HEAVY).intersection(ran.stdout.splitlines())
