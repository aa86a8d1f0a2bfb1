"""Numbers, names and limits in the sentences of README, start and join are those of the code."""

import re
import tomllib
from inspect import signature

import pytest

from docs.page_blocks import ROOT
from epochal.cli.lazy import command_function
from epochal.coordinator.machine.parts.conduct import MISSES_BEFORE_REST
from epochal.run_manager.agent import LEAVE_BOUND_S
from epochal.run_manager.terms.idle_policy import IDLE_FOR_S, INPUT_IDLE_S, MAX_CORES_SHARE

README, START, JOIN = ("README.md", "docs/start.md", "docs/tutorials/join.md")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
UP = signature(command_function("serve.up:up")).parameters
NUMBERS = ("no", "one", "two", "three", "four", "five")


def text_of(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        (README, f"**Status: alpha** ({PROJECT['version'].rpartition('.')[0]}, "),
        (README, f"Python {PROJECT['requires-python'].removeprefix('>=')}+ on Linux or macOS"),
        (START, f"Python {PROJECT['requires-python'].removeprefix('>=')} or newer"),
        (JOIN, f"Linux or macOS with Python {PROJECT['requires-python'].removeprefix('>=')}"),
        (README, f"## Licence {PROJECT['license']}."),
        (README, f"a coordinator, a data server and {NUMBERS[UP['clients'].default]} clients as separate processes"),
        (START, f"a coordinator, a data server and {NUMBERS[UP['clients'].default]} clients as separate processes"),
        (JOIN, f"at most for {LEAVE_BOUND_S / 60:.0f} minute".replace("1 minute", "a minute") + " (`--leave-within`)"),
        (JOIN, f"no key was pressed for {NUMBERS[round(INPUT_IDLE_S / 60)]} minutes"),
        (JOIN, f"After {NUMBERS[round(IDLE_FOR_S / 60)]} quiet minutes it comes back"),
        (JOIN, f"misses {NUMBERS[MISSES_BEFORE_REST]} rounds, it rests"),
    ],
)
def test_sentence_says_what_the_code_does(page: str, sentence: str) -> None:
    assert sentence in text_of(page)


def test_a_quarter_of_the_processor_is_the_bound_of_join() -> None:
    assert MAX_CORES_SHARE == 1 / 4
    assert "others use less than a quarter of the processor" in text_of(JOIN)


@pytest.mark.parametrize("page", [README, START])
def test_targets_that_a_page_names_are_in_the_makefile(page: str) -> None:
    named = re.findall(r"`make ([a-z-]+)`", text_of(page))
    assert named
    assert [target for target in named if not re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)] == []


def test_members_that_the_readme_counts_were_measured() -> None:
    (most,) = re.findall(r"with up to ([0-9,]+) members on one machine", text_of(README))
    assert f"| {most} members on files: a round |" in text_of("docs/benchmarks-scale.md")
