"""Hooks of mkdocs: pages from outside `docs/`, bodies that are made with the site, and links that leave it.

The site has no public address of its source, so that a link to a file of the repository becomes the file's path.
"""

import posixpath
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from docs import (
    alerts_table,
    command_page,
    document_fields,
    errors_page,
    house_map,
    limits_table,
    metrics_tables,
    reference,
    words_table,
)
from docs.pictures import phase_conditions
from epochal.run_manager.step_state_machine import STEPS, News

ROOT = Path(__file__).resolve().parent.parent
OTHER_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages of the site by the file of the repository that holds them."""

BODIES: dict[str, Callable[[], str]] = {
    "alerts": alerts_table.table,
    "commands": command_page.body,
    "document-fields": document_fields.body,
    "errors": errors_page.body,
    "limits": limits_table.table,
    "map": house_map.body,
    "phases": phase_conditions,
    "reference": reference.body,
    "steps": lambda: STEPS.grid(News),
    "words": words_table.body,
    **{f"metrics-{program}": partial(metrics_tables.table, add) for program, add in metrics_tables.PROGRAMS.items()},
}
"""Makers of the bodies that only the site has, by the name in a page's `<!-- made with the site: NAME -->`."""

FOUND_LAST = ("benchmarks", "changelog", "reference")
"""Beginnings of the names of pages that a search shows after all others: they have nearly every word."""
FOUND_LAST_BOOST = 0.001
"""Factor of such a page's place in a search; a word in a title counts a thousand times."""

_PLACE = re.compile(r"<!-- made with the site: ([a-z-]+) -->")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside `docs/`."""
    for source, page in OTHER_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page's text with its links as the site needs them; what is looked up by name is found last."""
    if page.file.src_uri.startswith(FOUND_LAST):
        page.meta["search"] = {"boost": FOUND_LAST_BOOST}
    sources = {site: source for source, site in OTHER_PAGES.items()}
    here = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return _PLACE.sub(lambda place: BODIES[place[1]](), with_site_links(markdown, here))


def with_site_links(markdown: str, here: str) -> str:
    """Return a page's text; links that leave the site are the path of their file.

    Args:
        markdown: the text.
        here: path of its file in the repository.
    """

    def site_link(match: re.Match[str]) -> str:
        text, target, anchor = match.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        page = OTHER_PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if page is not None:
            at = posixpath.relpath(page, posixpath.dirname(OTHER_PAGES.get(here, here.removeprefix("docs/"))) or ".")
            return f"[{text}]({at}{anchor or ''})"
        return text if path in text else f"{text} (`{path}`)"

    return _LINK.sub(site_link, markdown)
