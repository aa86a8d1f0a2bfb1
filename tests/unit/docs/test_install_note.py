"""Where Epochal is installed from is said in the same words everywhere."""

import pytest

from docs.page_blocks import ROOT
from epochal.coordinator.page.page_words import words_module
from epochal.state.shown.installing import INSTALL_NOTE


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_page_says_where_to_install_from(page: str) -> None:
    assert INSTALL_NOTE in " ".join((ROOT / page).read_text().split())


@pytest.mark.parametrize("page", ["join", "first-model", "your-own-text"])
def test_tutorial_leads_to_that_place(page: str) -> None:
    assert "(../start.md#install)" in (ROOT / f"docs/tutorials/{page}.md").read_text()


def test_page_of_a_run_says_it_too() -> None:
    assert INSTALL_NOTE.replace("`", "") in words_module()
