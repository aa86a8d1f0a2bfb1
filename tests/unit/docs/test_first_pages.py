"""Numbers, names and limits in the sentences of README, start and join are those of the code."""

import re
import tomllib
from inspect import signature

import pytest
from typer.testing import CliRunner

from docs.page_blocks import ROOT
from epochal.cli.lazy import command_function
from epochal.cli.main import app
from epochal.coordinator.machine.parts.conduct import MISSES_BEFORE_REST
from epochal.data_providers.locations import parse_location
from epochal.data_providers.sources.hub_dataset import HubDataset
from epochal.run_manager.agent import LEAVE_BOUND_S
from epochal.run_manager.terms.hours import Hours
from epochal.run_manager.terms.idle_policy import IDLE_FOR_S, INPUT_IDLE_S, MAX_CORES_SHARE
from epochal.state.config.data_location import S3, Azure, Gcp, Local, Server, SingleUrl

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


@pytest.mark.parametrize(
    ("target", "recipe"),
    [
        ("demo", "epochal up"),
        ("docs-serve", "mkdocs serve"),
        ("test", "pytest"),
        ("bench", "python -m benchmarks --write benchmarks"),
        ("setup", ""),
    ],
)
def test_target_does_what_the_pages_say_and_sets_up_all(target: str, recipe: str) -> None:
    needs = "RUNS" if target == "demo" else "STAMP"
    found = re.search(rf"^{target}: \$\({needs}\).*(?:\n\t.*)*", MAKEFILE, re.MULTILINE)
    assert found is not None
    assert recipe in found[0]
    (making,) = re.findall(r"^\$\(RUNS\): .*(?:\n\t.*)*", MAKEFILE, re.MULTILINE)
    assert "-m venv" in making
    assert "--editable .\n" in making
    (adding,) = re.findall(r"^\$\(STAMP\): \$\(RUNS\)\n(?:\t.*\n?)*", MAKEFILE, re.MULTILINE)
    assert "--editable '.[dev]'" in adding


def test_site_has_a_search() -> None:
    assert "`make docs-serve` shows all pages as a site with a search" in text_of(README)
    assert re.search(
        r"^plugins:\n(?:  .*\n)*?  - search", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
    )


@pytest.mark.parametrize("page", sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")))
def test_extras_that_a_page_installs_exist(page: str) -> None:
    named = {
        extra for group in re.findall(r"(?:epochal|'\.)\[([a-z,-]+)\]", text_of(page)) for extra in group.split(",")
    }
    assert named <= PROJECT["optional-dependencies"].keys()


@pytest.mark.parametrize(
    ("words", "place", "kind"),
    [
        ("files", "/data/tokens", Local),
        ("HTTP", "https://host/tokens.bin", SingleUrl),
        ("buckets", "s3://bucket/folder", S3),
        ("buckets", "gs://bucket/folder", Gcp),
        ("buckets", "az://account/container/folder", Azure),
        ("the Hugging Face Hub", "hf://datasets/owner/name", HubDataset),
        ("a TCP data server", "tcp://host:39405", Server),
    ],
)
def test_places_of_data_that_the_readme_names_are_understood(words: str, place: str, kind: type) -> None:
    (sentence,) = re.findall(r"data from (files.*?), mixed and shuffled", text_of(README))
    assert words in sentence
    assert isinstance(parse_location(place), kind)


def test_help_of_init_shows_its_options_and_their_defaults() -> None:
    assert "`epochal init --help` shows the options and their defaults" in text_of(START)
    shown = " ".join(CliRunner(env={"COLUMNS": "300", "NO_COLOR": "1"}).invoke(app, ["init", "--help"]).output.split())
    for name, option in signature(command_function("design.init:init")).parameters.items():
        if name != "folder":
            assert f"--{name.replace('_', '-')}" in shown, name
        if option.default not in (None, False):
            assert f"[default: {getattr(option.default, 'value', option.default)}" in shown, name


def test_hours_of_join_are_understood() -> None:
    hours = re.findall(r"--hours ([0-9:,-]+)", text_of(JOIN))
    assert "12:30-13:30,22-07" in hours
    assert all(Hours.parse("--hours", text) for text in hours)


def test_members_that_the_readme_counts_were_measured() -> None:
    (most,) = re.findall(r"with up to ([0-9,]+) members on one machine", text_of(README))
    assert f"| {most} members on files: a round |" in text_of("docs/benchmarks-scale.md")
