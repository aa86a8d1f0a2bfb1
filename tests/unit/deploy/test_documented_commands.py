"""The `epochal` commands of the pages for operators are commands that `epochal` takes."""

import re
import shlex

import pytest

from epochal.cli.options import STORE_VARIABLE
from tests.support.deployment import ROOT, parsed_command

PAGES = ("deployment.md", "operations.md", "postgresql.md")
COMMAND = re.compile(r"(?:^|[ /])epochal ((?:[a-z-]+ )?[a-z-]+(?: .*)?)$")
FENCE = re.compile(r"^```([a-z]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands_of(page: str) -> list[list[str]]:
    """Return the words of each command in the page's blocks, without what a shell does with it."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    lines = [line for language, block in FENCE.findall(text) if not language for line in block.splitlines()]
    found = [COMMAND.search(re.split(r" (?:>|\||#|&&) ?", line)[0].rstrip()) for line in lines]
    return [shlex.split(match[1]) for match in found if match is not None]


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_are_taken(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORE_VARIABLE, "postgresql://epochal@db.example.org/runs")
    commands = commands_of(page)
    assert commands
    for words in commands:
        name, _ = parsed_command(words)
        assert name in words
