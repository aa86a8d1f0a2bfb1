"""The `epochal` command itself: its commands, what it imports, its errors and exit codes."""

import re
from itertools import chain
from pathlib import Path
from typing import get_type_hints

import pytest

from epochal import __version__
from epochal.cli.lazy import command_function, command_name, summary_of
from epochal.cli.main import COMMANDS_OF, OTHER_WORDS, PANELS
from tests.support.drive.cli import heavy_imports_of, run_main
from tests.support.thinned import thinned

COMMANDS = tuple(chain.from_iterable(PANELS.values()))
ALL_COMMANDS = (*COMMANDS, *chain.from_iterable(COMMANDS_OF.values()))


def after_help_of(*arguments: str) -> str:
    return (
        f"from epochal.cli.main import app\ntry:\n    app({[*arguments, '--help']!r})\nexcept SystemExit as end:\n"
        "    assert not end.code"
    )


def test_help_lists_every_command() -> None:
    run_main("--help").expect(0, *map(command_name, COMMANDS))


def test_help_groups_commands_by_who_needs_them() -> None:
    shown = run_main("--help").out
    titles = [match[1] for match in re.finditer("^╭─ (.*?) ─", shown, re.M)]
    assert titles == ["Options", *PANELS]
    assert 4 <= len(PANELS) <= 6


def test_help_imports_nothing_heavy() -> None:
    assert heavy_imports_of(after_help_of()) == set()


@thinned(
    ("command", "needed"),
    [
        ("check", {"pydantic"}),
        ("status", {"httpx", "pydantic"}),
        ("audit", {"cryptography", "numpy", "pydantic", "transitions"}),
        ("evaluate", {"cryptography", "httpx", "numpy", "pydantic", "transitions"}),
        ("client", {"cryptography", "httpx", "numpy", "pydantic", "transitions", "uvicorn"}),
    ],
)
def test_command_imports_only_what_it_needs(command: str, needed: set[str]) -> None:
    assert heavy_imports_of(after_help_of(command)) <= needed


def test_summaries_are_the_first_paragraphs_of_the_docstrings() -> None:
    documented = {target: (command_function(target).__doc__ or "").partition("\n\n")[0] for target in ALL_COMMANDS}
    assert {target: " ".join(text.split()) for target, text in documented.items()} == {
        target: summary_of(target) for target in ALL_COMMANDS
    }


@pytest.mark.parametrize("target", COMMANDS, ids=command_name)
def test_help_explains_every_command(target: str) -> None:
    name = command_name(target)
    run_main(name, "--help").expect(0, f"{name} [OPTIONS]")


def test_help_keeps_what_stands_in_brackets() -> None:
    for command in map(command_function, ALL_COMMANDS):
        options = [
            getattr(option, "help", None)
            for hint in get_type_hints(command, include_extras=True).values()
            for option in getattr(hint, "__metadata__", ())
        ]
        for text in filter(None, (command.__doc__, *options)):
            assert re.findall(r"(?<!\\)\[[a-z]+\]", text) == [], f"rich takes it for a style: {command.__name__}"


def test_misspelt_command_is_answered_with_the_nearest() -> None:
    run_main("aduit").expect(2, "Did you mean 'audit'?")


@pytest.mark.parametrize("word", OTHER_WORDS)
def test_other_word_for_a_command_is_answered_with_the_command(word: str) -> None:
    run_main(word).expect(2, f"there is no command '{word}'; did you mean `epochal {OTHER_WORDS[word]}`?")
    assert word not in map(command_name, COMMANDS)
    assert OTHER_WORDS[word].partition(" ")[0] in map(command_name, COMMANDS)


@pytest.mark.parametrize("alone", [(), ("data",)])
def test_nothing_asked_for_is_answered_with_the_help_alone(alone: tuple[str, ...]) -> None:
    ran = run_main(*alone)
    assert "Usage" in ran.out + ran.err
    assert "epochal explain" not in ran.err


def test_version_is_shown() -> None:
    assert run_main("--version").out == f"epochal {__version__}\n"


def test_known_error_is_one_message_and_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "run.sqlite").write_text("no database")
    ran = run_main("audit", str(tmp_path))
    damaged = "file is not a database: a page of the database is damaged; restore a backup"
    assert (ran.code, ran.err) == (1, f"epochal: {tmp_path}: {damaged}\nsee: epochal explain store-failed\n")
