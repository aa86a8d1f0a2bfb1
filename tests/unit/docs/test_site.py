"""The site: every page has a place, and a reader needs no other host."""

import json
import os
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

import epochal
from docs.pictures import PHASE_PATHS
from epochal.cli.lazy import command_name
from epochal.cli.main import PANELS
from epochal.coordinator.machine.handle import PHASES
from tests.support.heavy import need_module

ROOT = Path(__file__).parents[3]
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc="?(https?:[^">\s]*)|<link\b[^>]*\bhref="?(https?:[^">\s]*)"""
)
"""What a browser fetches when it opens a page."""


BUILT = "EPOCHAL_SITE"
"""Environment variable with the folder of a site that `make docs` has just built, so that it is not built twice."""
pytestmark = [] if BUILT in os.environ else [pytest.mark.nightly]  # to build it takes most of a minute


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_module("material")
    if BUILT in os.environ:
        return Path(os.environ[BUILT])
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_site_is_built_with_every_link_checked(site: Path) -> None:
    assert (site / "index.html").exists()
    assert (site / "changelog.html").exists()


@pytest.mark.parametrize(
    "words", ["windows", "out memory", "learning rate", "validation loss", "expired invitation", "mix"]
)
def test_words_of_a_search_are_in_a_title_that_is_found_first(site: Path, words: str) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    first = [entry["title"].lower() for entry in entries if entry.get("boost", 1) >= 1]
    assert any(all(word in title for word in words.split()) for title in first)


def test_benchmarks_and_reference_are_found_last(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    last = {entry["location"].partition(".html")[0] for entry in entries if entry.get("boost", 1) < 1}
    assert last == {path.stem for path in (ROOT / "docs").glob("benchmarks*.md")} | {"changelog", "reference"}


def test_page_of_the_site_fetches_nothing_from_another_host(site: Path) -> None:
    pages = {page.name: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    fetched = {name: found for name, text in pages.items() if (found := FETCHED.findall(text))}
    assert fetched == {}


def test_link_that_leaves_the_site_becomes_the_path_of_its_file() -> None:
    need_module("mkdocs")
    from docs.site_hooks import with_site_links

    text = "[units](../deploy/systemd/) [changes](../CHANGELOG.md) [state](state-file.md#config) [x](https://x.example)"
    site_text = "units (`deploy/systemd`) [changes](changelog.md) [state](state-file.md#config) [x](https://x.example)"
    assert with_site_links(text, "docs/torch.md") == site_text


def test_link_of_a_page_outside_docs_leads_into_the_site() -> None:
    need_module("mkdocs")
    from docs.site_hooks import with_site_links

    assert with_site_links("[rooms](docs/architecture.md#rooms)", "CONTRIBUTING.md") == "[rooms](architecture.md#rooms)"


def test_page_of_the_site_has_no_diagram_that_needs_a_script(site: Path) -> None:
    assert [page.name for page in site.rglob("*.html") if 'class="mermaid"' in page.read_text(encoding="utf-8")] == []


def test_page_of_commands_has_every_command_with_its_options(site: Path) -> None:
    page = (site / "commands.html").read_text(encoding="utf-8")
    for target in chain.from_iterable(PANELS.values()):
        assert f'<h2 id="epochal-{command_name(target)}">' in page
    assert "<code>--leave-within" in page


def test_page_of_the_python_api_has_every_public_name_once(site: Path) -> None:
    page = (site / "reference.html").read_text(encoding="utf-8")
    headings = re.findall(r'<h3 id="[^"]*">([^<]*)<', page)
    assert sorted(headings) == sorted(set(epochal.__all__) - {"__version__"})


def test_page_of_the_python_api_has_docstrings_and_signatures(site: Path) -> None:
    page = (site / "reference.html").read_text(encoding="utf-8")
    assert "Return the samples of these data indices, in order." in page
    assert 'id="epochal.data_providers.protocol.DataProvider.get_samples"' in page


@pytest.mark.parametrize(
    ("page", "heading"),
    [("errors.html", "key-in-use"), ("document-fields.html", "rundocument"), ("architecture.html", "stateconfig")],
)
def test_page_that_is_made_with_the_site_has_its_body(site: Path, page: str, heading: str) -> None:
    assert f' id="{heading}">' in (site / page).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "cell"),
    [
        ("metrics.html", "<code>epochal_run_step</code>"),
        ("operations.html", "<code>EpochalRunHolds</code>"),
        ("concepts.html", "resume"),
        ("concepts.html", "train_same"),
        ("volunteer-safety.html", "<code>MAX_MIX_BYTES</code>"),
    ],
)
def test_table_that_is_made_with_the_site_has_its_rows(site: Path, page: str, cell: str) -> None:
    rows = re.findall("<td>(.*?)</td>", (site / page).read_text(encoding="utf-8"))
    assert any(cell in row for row in rows)


def test_picture_draws_every_transition_of_the_phases() -> None:
    assert set(PHASE_PATHS) == {(source, goal) for source, goal, _ in PHASES.conditions()}
