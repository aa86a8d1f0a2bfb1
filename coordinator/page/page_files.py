"""The files of the page, read and compressed once for all who ask.

The page is plain HTML, CSS and ES modules below `page/`; nothing builds them. Modules of words are made from the tables
of the programs, so that the page calls things what others call them; a word that another program shows as well is in
`runtime` alone. The page holds nothing of any run: it asks the REST service for that, under the rules of `[access]
dashboard`. So it is the same for everyone.
"""

import gzip
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any, get_args

from epochal.runtime.explanations import explanation_of
from epochal.runtime.glossary import WORDS
from epochal.state.errors import FailureKind
from epochal.state.refusals import Refusal
from epochal.state.shown.glossary import FATES, NOT_REPORTED, PARTS, PHASES, WHOSE_NOBODY
from epochal.state.shown.installing import INSTALL_NOTE, install_command
from epochal.state.shown.join_guide import CERTIFICATE_FILE
from epochal.state.shown.smoothing import SMOOTHED_PART

INDEX = "index.html"
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
_LEVEL = 9


def words_module() -> str:
    """Return `words.js`: the words of a run's views, and what they mean."""
    parts = {name: asdict(part) for name, part in PARTS.items()} | {"unknown": asdict(NOT_REPORTED)}
    return _module(
        "The words of a run's views, made from the coordinator's own tables.",
        PARTS=parts,
        WHOSE_NOBODY=dict(WHOSE_NOBODY),
        FATES=dict(FATES),
        PHASES={str(phase.value): words for phase, words in PHASES.items()},
        WORDS=dict(WORDS),
        INSTALL_NOTE=INSTALL_NOTE.replace("`", ""),
        INSTALL=(install_command(), install_command("EXTRAS")),
        SMOOTHED_PART=SMOOTHED_PART,
        CERTIFICATE_FILE=CERTIFICATE_FILE,
    )


def kinds_module() -> str:
    """Return `kinds.js`: what each kind of refusal and of failure means."""
    found = {kind: explanation_of(kind) for kind in (*map(str, Refusal), *get_args(FailureKind))}
    kinds = {kind: {"page": known.kind, "means": known.summary} for kind, known in found.items() if known is not None}
    return _module("Kinds of refusals and failures, made from the coordinator's own explanations.", KINDS=kinds)


MODULES: Mapping[str, Callable[[], str]] = MappingProxyType({"words.js": words_module, "kinds.js": kinds_module})
"""The maker of each of these modules, by its name."""


def _module(says: str, **tables: Any) -> str:
    lines = [f"export const {name} = {json.dumps(table, ensure_ascii=False)};" for name, table in tables.items()]
    return "\n".join((f"// {says}", *lines, ""))


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
