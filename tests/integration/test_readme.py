"""README's own lines, as they stand and one after the other: installing, the demo, and joining somebody's run."""

import asyncio
import json
import os
import signal
import sys
import venv
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Mapping
from pathlib import Path

import pytest

from docs.page_blocks import ROOT, blocks_of
from tests.support.bounds import BOUND_S
from tests.support.drive.processes import in_training, real_run

LINES = next(blocks_of(ROOT / "README.md")).text.splitlines()
COORDINATOR = "https://coordinator.example:8000"
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1", "PIP_QUIET": "1"}
"""What the project needs is found where the tests run: nothing is fetched ("0": pip builds without isolation)."""


def fresh_machine(folder: Path) -> Mapping[str, str]:
    """Make a Python without Epochal, and return the environment of a shell that finds it first."""
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    needed = "\n".join(place for place in sys.path if place.endswith("site-packages"))
    (packages / "needed.pth").write_text(needed, encoding="utf-8")
    (folder / "bin" / "pip").write_text(f'#!/bin/sh\nexec "{folder}/bin/python" -m pip "$@"\n', encoding="utf-8")
    (folder / "bin" / "pip").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "EPOCHAL"))}
    return {**kept, **OFFLINE, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "NO_COLOR": "1"}


async def entered(line: str, folder: Path, environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_shell(
        f"exec {line}", cwd=folder, env=environment, stdout=PIPE, stderr=STDOUT, stdin=asyncio.subprocess.DEVNULL
    )


async def done(line: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Return what a line prints, once it has ended well."""
    async with asyncio.timeout(2 * BOUND_S):
        process = await entered(line, folder, environment)
        printed = (await process.communicate())[0].decode()
    assert process.returncode == 0, printed
    return printed


def test_readme_has_three_lines_which_name_a_copy_and_a_coordinator() -> None:
    assert [line.split("  ")[0] for line in LINES] == ["pip install .", "epochal up", f"epochal client {COORDINATOR}"]


@pytest.mark.nightly
async def test_first_line_of_readme_installs_the_command_of_the_others(tmp_path: Path) -> None:
    environment = fresh_machine(tmp_path / "machine")
    await done(LINES[0], ROOT, environment)
    found = await done("epochal --help", tmp_path, environment)
    assert {line.split()[1] for line in LINES[1:]} <= set(found.split())
    assert (tmp_path / "machine" / "bin" / "epochal").exists()


@pytest.mark.nightly
async def test_lines_of_readme_do_what_they_say(tmp_path: Path) -> None:
    environment = fresh_machine(tmp_path / "machine")
    await done(LINES[0], ROOT, environment)
    printed = await done(LINES[1], tmp_path, environment)
    assert printed.startswith("watch the run in a browser: http://")
    for text in ("was killed without warning", "all checks passed", "report.html"):
        assert text in printed
    (report,) = (tmp_path / "runs").glob("up-*/report.json")
    figures = json.loads(report.read_text(encoding="utf-8"))
    assert (figures["clients"], figures["duplicates"], figures["replicas_identical"]) == (4, 0, True)
    async with real_run(tmp_path / "run") as run:
        process = await entered(LINES[2].replace(COORDINATOR, run.url), tmp_path, environment)
        await run.until(in_training(3))
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(BOUND_S):
            printed = (await process.communicate())[0].decode()
    assert (process.returncode, "withdrawn with replica" in printed) == (0, True), printed
