"""Every command and snippet of `docs/figures.md`, over a real run."""

import asyncio
import re
import shlex
from pathlib import Path

import pytest

from tests.support.bounds import BOUND_S
from tests.support.drive.cli import run_main_in_thread
from tests.support.drive.restarted_run import restarted_run
from tests.support.heavy import need_module

PAGE = Path(__file__).parents[2] / "docs/figures.md"
URL, STORE = "http://host:8000", "runs/up-1"
ENDS = {"config__total_steps": 2, "config__cooldown_time": 0.2}
TRAINS = {"config__waiting_for_members_extra_time": 0.001, "config__init_min_clients": 1, "config__total_steps": 2}


def written(language: str) -> list[str]:
    """The page's blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def files(folder: Path, pattern: str) -> list[bytes]:
    return [path.read_bytes() for path in folder.glob(pattern)]


@pytest.mark.nightly
async def test_commands_do_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tensorboard", "matplotlib"):
        need_module(module)
    monkeypatch.chdir(tmp_path)
    lines = [
        shlex.split(line) for block in written("bash") for line in block.splitlines() if line.startswith("epochal")
    ]
    assert [words[1] for words in lines] == ["watch", "report"]
    async with asyncio.timeout(BOUND_S), restarted_run(tmp_path / STORE, **ENDS) as run:
        await run.play(2)
        for words in lines:
            arguments = [run.url if word == URL else word for word in words[1:]]
            (await run_main_in_thread(*arguments, environment={})).expect(0)
    for pattern in ("logs/*/events*", "report.html"):
        assert files(tmp_path, pattern), pattern
    (rows,) = files(tmp_path, "run.jsonl")
    assert rows.count(b"\n") == 2


async def test_following_in_python_does_what_the_page_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = (block for block in written("python") if URL in block)
    async with asyncio.timeout(BOUND_S), restarted_run(tmp_path / "run", **ENDS) as run:
        await run.play(2)
        await asyncio.to_thread(exec, snippet.replace(URL, run.url), {})
    assert capsys.readouterr().out.startswith("2 1.0 ")
