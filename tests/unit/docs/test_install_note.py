"""Where Epochal is installed from is said in the same words everywhere."""

import tomllib

import pytest

from docs.page_blocks import ROOT
from epochal.coordinator.page.page_files import words_module
from epochal.state.shown.installing import INDEX_URL, INSTALL_NOTE, SOURCE_URL, install_command, install_note

PLACES = {"Source": SOURCE_URL, "Index": INDEX_URL}


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_page_says_where_to_install_from(page: str) -> None:
    assert INSTALL_NOTE in " ".join((ROOT / page).read_text().split())


@pytest.mark.parametrize("page", ["join", "first-model", "your-own-text"])
def test_tutorial_leads_to_that_place(page: str) -> None:
    assert "(../start.md#install)" in (ROOT / f"docs/tutorials/{page}.md").read_text()


def test_page_of_a_run_says_it_too() -> None:
    assert INSTALL_NOTE.replace("`", "") in words_module()
    assert install_command("EXTRAS") in words_module()


@pytest.mark.parametrize(("page", "extras"), [("start", ""), ("tutorials/join", "torch")])
def test_command_of_a_page_is_the_one_that_works(page: str, extras: str) -> None:
    assert f"```bash\n{install_command(extras)}\n```" in (ROOT / f"docs/{page}.md").read_text()


def test_package_names_the_places_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project.get("urls", {}) == {name: url for name, url in PLACES.items() if url is not None}


@pytest.mark.parametrize(
    ("index", "source", "command"),
    [
        (
            "https://index.example",
            "https://git.example/e",
            "pip install --extra-index-url https://index.example epochal",
        ),
        (None, "https://git.example/e", "pip install 'epochal @ git+https://git.example/e'"),
        (None, None, "pip install '.[torch]'"),
    ],
)
def test_best_place_that_exists_is_named(index: str | None, source: str | None, command: str) -> None:
    assert f"`{command}`" in install_note(index, source)
    assert command.partition(" epochal")[0].partition("'")[0] in install_command("torch", index, source)
