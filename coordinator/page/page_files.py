"""The files of the page, read and compressed once for all who ask.

The page is plain HTML, CSS and ES modules below `page/`; nothing builds them. Modules of words are made from the tables
of the programs (`page_words.py`). It holds nothing of any run: it asks the
REST service for that, under the rules of `[access] dashboard`. So it is the same for everyone.
"""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from epochal.coordinator.page.page_words import MODULES

INDEX = "index.html"
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
_LEVEL = 9


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page, as it is sent: plain or compressed with gzip."""

    media_type: str
    etag: str
    plain: bytes
    compressed: bytes


@cache
def page_files() -> dict[str, PageFile]:
    """Return the page's files by their path below `page/`, such as `panels/run.js`."""
    made = {name: _page_file(MEDIA_TYPES["js"], make().encode()) for name, make in MODULES.items()}
    return dict(_below(files("epochal.coordinator.page") / "assets", "")) | made


def _below(folder: Traversable, prefix: str) -> list[tuple[str, PageFile]]:
    found = []
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.is_dir():
            found += _below(item, f"{prefix}{item.name}/")
        elif (media_type := MEDIA_TYPES.get(item.name.rpartition(".")[2])) is not None:
            found.append((prefix + item.name, _page_file(media_type, item.read_bytes())))
    return found


def _page_file(media_type: str, body: bytes) -> PageFile:
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return PageFile(media_type, etag, body, gzip.compress(body, _LEVEL, mtime=0))
