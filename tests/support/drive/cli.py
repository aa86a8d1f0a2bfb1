"""The `epochal` command: run in this process, how it ended, and what a fresh process imports."""

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from unittest.mock import patch

import pytest

from epochal.cli.main import main
from tests.support.bounds import BOUND_S

PLAIN_OUTPUT = {"COLUMNS": "200", "NO_COLOR": "1"}
"""Variables with which a command prints long lines without colours."""
HEAVY = ("cryptography", "fastapi", "httpx", "jax", "numpy", "pydantic", "torch", "transitions", "uvicorn")


@dataclass(frozen=True, slots=True)
class Ran:
    """The exit code of a command, and what it printed."""

    code: int
    out: str
    err: str

    def expect(self, code: int, *texts: str) -> None:
        """Assert that the command ended with this code and printed each text, and no traceback."""
        printed = self.out + self.err
        assert self.code == code, printed
        assert [text for text in texts if text not in printed] == [], printed
        assert "Traceback" not in printed


def run_main(*arguments: str) -> Ran:
    """Run `epochal ARGUMENTS…` in this process."""
    out, err = StringIO(), StringIO()
    with (
        patch.object(sys, "argv", ["epochal", *arguments]),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    code = ended.value.code
    return Ran(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


async def run_main_in_thread(*arguments: str, environment: Mapping[str, str]) -> Ran:
    """Run `epochal ARGUMENTS…` in a thread of this process, while the test's event loop goes on.

    It saves the start of a process, which costs more than most commands do. Not for commands that handle signals; and
    the test may not start another one meanwhile, because what it prints is taken from the whole process.
    """
    with patch.dict(os.environ, {**PLAIN_OUTPUT, **environment}), _logging_as_before():
        return await asyncio.to_thread(run_main, *arguments)


@contextlib.contextmanager
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()  # a command closes those that it replaces
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def heavy_imports_of(code: str) -> set[str]:
    """Return the heavy packages that a fresh process has imported after running the code."""
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules, sep='\\n')"],
        capture_output=True,
        text=True,
        check=True,
        timeout=BOUND_S,
    )
    return set(HEAVY).intersection(ran.stdout.splitlines())
