"""The run's page over HTTP: its files, who gets them in which form, and that it loads nothing but them."""

import gzip
import re
from pathlib import Path

import pytest

from epochal.coordinator.api.viewer_facing import RULES
from epochal.coordinator.page.page_files import MODULES, page_files
from tests.support.drive.served import Served, problem
from tests.support.thinned import thinned

PAGE = Path(__file__).parents[4] / "coordinator" / "page" / "assets"
OURS = [
    path for path in PAGE.rglob("*") if path.suffix in (".js", ".html", ".css", ".svg") and path.parent.name != "vendor"
]


@pytest.mark.parametrize("accept", [None, "*/*", "text/html,application/xhtml+xml,*/*;q=0.8", "text/*;q=0.5"])
async def test_page_is_at_the_root(coordinator: Served, accept: str | None) -> None:
    answer = await coordinator.http.get("/", headers={} if accept is None else {"Accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.text == (PAGE / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("accept", ["application/json", "text/html;q=0", "application/problem+json, image/png"])
async def test_root_is_not_found_for_who_reads_no_html(coordinator: Served, accept: str) -> None:
    answer = await coordinator.http.get("/", headers={"Accept": accept})
    assert problem(answer) == "not-found"


@thinned("name", sorted(page_files()))
async def test_file_is_sent_as_it_is_on_disk_or_made(coordinator: Served, name: str) -> None:
    answer = await coordinator.http.get(f"/dashboard/{name}", headers={"Accept-Encoding": "identity"})
    assert answer.content == (MODULES[name]().encode() if name in MODULES else (PAGE / name).read_bytes())
    assert "content-encoding" not in answer.headers
    assert answer.headers["content-security-policy"] == RULES
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


async def test_every_file_on_disk_is_sent(coordinator: Served) -> None:
    on_disk = {str(path.relative_to(PAGE)) for path in PAGE.rglob("*") if path.is_file()}
    assert on_disk | MODULES.keys() == set(page_files())
    assert not on_disk & MODULES.keys()


async def test_file_is_sent_compressed_and_once(coordinator: Served) -> None:
    url = "/dashboard/vendor/uPlot.iife.min.js"
    async with coordinator.http.stream("GET", url, headers={"Accept-Encoding": "gzip"}) as answer:
        raw = b"".join([piece async for piece in answer.aiter_raw()])
    assert answer.headers["content-encoding"] == "gzip"
    assert len(raw) < 25_000
    assert gzip.decompress(raw) == (PAGE / "vendor/uPlot.iife.min.js").read_bytes()
    again = await coordinator.http.get(url, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["none.js", "../page_files.py", "%2e%2e/page_files.py", "", "panels/", "/etc/passwd"])
async def test_other_files_are_not_found(coordinator: Served, name: str) -> None:
    answer = await coordinator.http.get(f"/dashboard/{name}")
    assert answer.status_code == 404


def test_page_has_nothing_inline_and_loads_nothing_from_elsewhere() -> None:
    text = (PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|style=|<script(?![^>]*src=)|\son\w+=", text)
    assert all(re.match(r"dashboard/|#|openapi", link) for link in re.findall(r'(?:src|href)="([^"]*)"', text))


def test_modules_are_loaded_ahead_of_their_imports() -> None:
    text = (PAGE / "index.html").read_text(encoding="utf-8")
    ahead = set(re.findall(r'<link rel="modulepreload" href="dashboard/([^"]+)"', text))
    needed, waiting = set[str](), ["main.js", "panels/run.js"]
    while waiting:
        name = waiting.pop()
        source = "" if name in MODULES else (PAGE / name).read_text(encoding="utf-8")
        for found in re.findall(r'^import .* from "([^"]+)";', source, re.MULTILINE):
            imported = str((PAGE / name).parent.joinpath(found).resolve().relative_to(PAGE))
            waiting += [] if imported in needed else [imported]
            needed.add(imported)
    assert ahead == needed | {"panels/run.js"}


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_no_text_becomes_html_and_nothing_is_stored(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|localStorage|sessionStorage|indexedDB|cookie"
    )
    assert not re.search(forbidden, text)
    assert not re.search(r'["\'(]https?://(?!www\.w3\.org/2000/svg)', text)
