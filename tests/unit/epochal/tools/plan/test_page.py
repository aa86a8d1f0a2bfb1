"""The example of docs/planning.md: its command prints what the page shows."""

import shlex
import tomllib
from pathlib import Path

import pytest
import tomli_w

from docs.page_blocks import ROOT, blocks
from tests.support.drive.cli import run_main
from tests.unit.docs.test_blocks import STATE, merged

PAGE = "docs/planning.md"


def block_of(language: str) -> str:
    return next(block.text for block in blocks() if block.page == PAGE and block.language == language)


def test_example_prints_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = merged(tomllib.loads(STATE), tomllib.loads(block_of("toml")))
    (tmp_path / "state.toml").write_text(tomli_w.dumps(tables), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(block_of("bash").replace("\\\n", " "))
    assert program == "epochal"
    ran = run_main(*arguments)
    ran.expect(0)
    assert ran.out == block_of("text"), f"write the printed text into {ROOT / PAGE}"
