"""Sources of text for `epochal prepare`, and what it made of them."""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from epochal.tools.prepare.portions import Portion, Position
from epochal.tools.prepare.prepare_options import PrepareOptions
from epochal.tools.prepare.reading import portions
from epochal.tools.prepare.sources import Sources
from epochal.tools.prepare.texts import Documents
from tests.support.heavy import need_module

END = 255


def write_records(path: Path, texts: Sequence[str], field: str = "text") -> Path:
    """Write a file of JSON lines, compressed if its name says so."""
    data = "".join(json.dumps({field: text}) + "\n" for text in texts).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zst":
        need_module("zstandard")
        import zstandard

        data = zstandard.ZstdCompressor().compress(data)
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def portions_of(place: Path, options: PrepareOptions, start: Position | None = None) -> Iterator[Portion]:
    """Yield the portions of the files at a path."""
    yield from portions(Sources.of([str(place)]), options, start or Position())


def texts_of(place: Path, options: PrepareOptions) -> list[str]:
    """Return every document of the files at a path; fail if one is bad."""
    found = []
    for portion in portions_of(place, options):
        documents = Documents.of(portion, options)
        assert (portion.bad, documents.bad) == ("", [])
        found += [text.decode() for text in documents.texts]
    return found


def mistakes_of(place: Path, options: PrepareOptions) -> list[str]:
    """Return everything that is wrong with the files at a path, in order."""
    found = []
    for portion in portions_of(place, options):
        found += Documents.of(portion, options).bad
        found += [portion.bad] if portion.bad else []
    return found


def documents_in(folder: Path) -> list[bytes]:
    """Return the documents in a folder of shards of bytes, in their order."""
    tokens = b"".join(path.read_bytes() for path in sorted(folder.glob("*.bin")))
    return np.frombuffer(tokens, "<u2").astype(np.uint8).tobytes().split(bytes([END]))[:-1]


def everything_in(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, by its path there."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
