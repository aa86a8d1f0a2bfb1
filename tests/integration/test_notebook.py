"""The page on notebooks, as a real notebook: its blocks are the cells, in their order."""

import os
from pathlib import Path
from typing import Any

import pytest

from docs.page_blocks import ROOT, blocks_of
from tests.support.bounds import BOUND_S
from tests.support.heavy import need_module

CELLS = [block.text for block in blocks_of(ROOT / "docs/notebook.md")]


def played(folder: Path) -> list[Any]:
    """The page's cells with their outputs, in a kernel of its own."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(book, timeout=int(BOUND_S), resources={"metadata": {"path": str(folder)}}).execute()
    return list(book.cells)


def shown(cells: list[Any], kind: str) -> str:
    """What the cells have displayed of one kind."""
    found = [one for cell in cells for one in cell.outputs]
    return "\n".join(one["data"].get(kind, "") if "data" in one else one.get("text", "") for one in found)


@pytest.mark.nightly
def test_page_on_notebooks_runs_as_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("nbclient")
    need_module("ipykernel")
    need_module("matplotlib")
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [path])]))
    cells = played(tmp_path)
    page = shown(cells, "text/html")
    for word in ("run_state", "sentence", "delivered_s", "client-1", "gradient_norm", "data:image/svg+xml;base64,"):
        assert word in page, f"{word} is shown as HTML"
    printed = shown(cells, "text/plain")
    assert printed.count("gradient norm") == 6
    assert "Finished kept in local" in printed
