"""The examples of docs/planning.md: their commands print what the page shows, between its "…"."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import tomli_w

from docs.page_blocks import ROOT, blocks
from tests.support.drive.cli import run_main
from tests.support.heavy import need_module
from tests.unit.docs.test_blocks import STATE, merged

PAGE = "docs/planning.md"


def block_of(language: str, text: str) -> str:
    """Return the first block of this language that has a text."""
    found = (block.text for block in blocks() if block.page == PAGE and block.language == language)
    return next(block for block in found if text in block)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("state", "command", "printed"),
    [("", "", "124,000,000 parameters"), ("[model.LLM.adapter]", "adapter/state.toml", "and for the base")],
)
def test_example_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, command: str, printed: str
) -> None:
    if state:
        need_module("peft")
    tables = merged(tomllib.loads(STATE), tomllib.loads(block_of("toml", state)))
    (tmp_path / "adapter").mkdir()
    for place in ("state.toml", "adapter/state.toml"):
        (tmp_path / place).write_text(tomli_w.dumps(tables), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(block_of("bash", command).replace("\\\n", " "))
    assert program == "epochal"
    ran = run_main(*arguments)
    ran.expect(0)
    for part in block_of("text", printed).split("…\n"):
        assert part in ran.out, f"write the printed text into {ROOT / PAGE}"
    share = re.search(r"clients train (\d+) % of the time", ran.out)
    assert share is not None
    assert int(share[1]) >= 95 or not state, "16 homes train an adapter of 8 billion parameters"
