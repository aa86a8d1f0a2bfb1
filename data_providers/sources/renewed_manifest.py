"""Writes a folder's manifest, and rewrites it without losing an earlier one's entries of unchanged files.

`epochal prepare` says in a manifest how it made the files (`data_providers/encoding.py`), by which data of another
tokenizer are refused. The rule kept here: that is carried over for every file whose SHA-256 is the same, and where it
is lost or missing, the file is named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochal.data_providers.sources.manifest import (
    DEFAULT_BLOCK_BYTES,
    MANIFEST_NAME,
    MAX_BLOCK_BYTES,
    MIN_BLOCK_BYTES,
    hashed_file,
    manifest_text,
    parse_manifest,
)
from epochal.runtime.files.durable_files import replace_file
from epochal.runtime.long_work import BYTES, long_work
from epochal.state.errors import DataError, InvalidInput
from epochal.state.wire import strict_json

ENCODING = "encoding"
_OF_MANIFEST = frozenset({"format", "block_bytes", "files"})


@dataclass(frozen=True, slots=True)
class WrittenManifest:
    """A manifest that was written.

    Attributes:
        path: of its file.
        lost: in sentences, the facts that an earlier manifest held, and this one does not.
        unknown: names of files of which it is not known how their tokens were made, while it is known of others.
    """

    path: Path
    lost: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def write_manifest(folder: Path, names: Sequence[str], block_bytes: int = DEFAULT_BLOCK_BYTES) -> WrittenManifest:
    """Write the manifest of these files of a folder, in the place of an earlier one. Blocks.

    What the earlier one says beyond hashes is carried over: of each file with the same content, and of all of them
    together as long as there is one.

    Raises:
        InvalidInput: a file cannot be read, or the size of the blocks is out of bounds; the user's fault.
    """
    if not MIN_BLOCK_BYTES <= block_bytes <= MAX_BLOCK_BYTES:
        raise InvalidInput(f"blocks of {block_bytes} bytes; allowed: {MIN_BLOCK_BYTES} to {MAX_BLOCK_BYTES}")
    path = folder / MANIFEST_NAME
    try:
        earlier, lost = _earlier(path)
        known: Mapping[str, Any] = earlier.get("files", {})
        files: dict[str, dict[str, Any]] = {}
        total_bytes = sum((folder / name).stat().st_size for name in names)
        with long_work("hashing the files", total_bytes, BYTES) as work:
            for name in sorted(names):
                entry, before = hashed_file(folder / name, block_bytes, work), known.get(name, {})
                is_same = before.get("sha256") == entry["sha256"]
                if ENCODING in before and not is_same:
                    lost.append(f"{name} is not the file of the earlier manifest: its tokenizer is no longer known")
                files[name] = {**before, **entry} if is_same else entry
        lost += [f"{name} is no longer there" for name in sorted({*known} - {*files})]
        more = {name: value for name, value in earlier.items() if name not in _OF_MANIFEST}
        if more and not any(entry["sha256"] == known.get(name, {}).get("sha256") for name, entry in files.items()):
            lost.append(f"no file of the earlier manifest is there: {', '.join(sorted(more))} no longer known")
            more = {}
        replace_file(path, manifest_text(files, block_bytes, more).encode())
    except OSError as error:
        raise InvalidInput(f"{error.filename or folder}: {error.strerror or error}") from error
    unknown = [name for name, entry in files.items() if ENCODING not in entry]
    return WrittenManifest(path, tuple(lost), tuple(unknown) if len(unknown) < len(files) else ())


def _earlier(path: Path) -> tuple[Mapping[str, Any], list[str]]:
    """Return the fields of the present manifest, and a sentence if it cannot be read."""
    if not path.exists():
        return {}, []
    text = path.read_bytes()
    try:
        parse_manifest(text, str(path))
    except DataError as error:
        return {}, [f"{error.message}: nothing was carried over"]
    found: Mapping[str, Any] = strict_json(text)
    return found, []
