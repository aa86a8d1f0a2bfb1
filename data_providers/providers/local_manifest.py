"""Manifests beside files on this machine: what they say of the contents, and whether the files are what they say.

Local files are not hashed as they are read, which would take longer than reading them. They are compared with their
manifest when a dataset is opened: the sizes of all of them, and the hashes of blocks that are spread evenly over all
of the data, up to `CHECKED_BYTES`. So a small dataset is compared whole; of a large one, a file that was replaced is
noticed if it makes up more than the part that one block represents, and `epochal data verify` compares the rest. What
changes later is compared by `KeptFile`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from epochal.data_providers.protocol import CorruptData, Rejected
from epochal.data_providers.providers.unchanged_file import check_block
from epochal.data_providers.sources.byte_source import SourceFile
from epochal.data_providers.sources.manifest import (
    HEAD_BYTES,
    MANIFEST_NAME,
    Manifest,
    check_lists_all,
    check_sizes,
    combined,
    manifests_among,
    parse_manifest,
)
from epochal.state.reader_limits import MAX_MANIFEST_BYTES

CHECKED_BYTES = 64 * 1024**2
"""Approximate maximum number of bytes that are compared when a dataset is opened."""


def listed_in_folder(folder: Path, paths: Mapping[str, Path]) -> Manifest:
    """Return what the manifests among a folder's files list; nothing without a manifest. Blocks.

    Args:
        folder: the dataset's, for messages.
        paths: its files by name, hidden ones left out.

    Raises:
        CorruptData: a manifest is damaged, does not list a token file, or lists a file that does not exist or has
            another size or another content; the fault of the data's owner.
        OSError: a file cannot be read.
    """
    held = manifests_among(paths)
    manifest = combined({name: _read(paths[name]) for name in held})
    if held:
        check_lists_all(str(folder), paths, held, manifest)
        files = {name: _source_file(name, paths[name]) for name in manifest if name in paths}
        check_sizes(str(folder), files, manifest)
        _compare_some(paths, manifest)
    return manifest


def listed_beside(manifest_path: Path, path: Path) -> Manifest:
    """Return the entry of a manifest for one file beside it; empty without a manifest or without an entry.

    Raises what `listed_in_folder` raises.
    """
    if not manifest_path.is_file():
        return {}
    manifest = {name: listed for name, listed in _read(manifest_path).items() if name == path.name}
    check_sizes(str(path.parent), {path.name: _source_file(path.name, path)}, manifest)
    _compare_some({path.name: path}, manifest)
    return manifest


def _source_file(name: str, path: Path) -> SourceFile:
    return SourceFile(name, path.stat().st_size, str(path))


def _read(path: Path) -> Manifest:
    size_bytes = path.stat().st_size
    if size_bytes > MAX_MANIFEST_BYTES:
        raise CorruptData(f"{path} has {size_bytes} bytes; at most {MAX_MANIFEST_BYTES}", path=str(path))
    return parse_manifest(path.read_bytes(), str(path))


def _compare_some(paths: Mapping[str, Path], manifest: Manifest) -> None:
    """Raise `CorruptData` if one of the inspected blocks differs from its hash."""
    names = sorted(manifest)
    ends = np.cumsum([manifest[name].block_count for name in names], dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    if not total:
        return
    block_bytes = max(listed.block_bytes for listed in manifest.values())
    wanted = np.linspace(0, total - 1, min(total, max(1, CHECKED_BYTES // block_bytes))).astype(np.int64)
    files = np.searchsorted(ends, wanted, side="right")
    for file in np.unique(files).tolist():
        listed, path = manifest[names[file]], paths[names[file]]
        with path.open("rb") as opened:
            for number in (wanted[files == file] - (ends[file] - listed.block_count)).tolist():
                opened.seek(number * listed.block_bytes)
                check_block(path, listed, number, opened.read(listed.block_bytes))


def refuse_splits(folder: Path, names: Iterable[str]) -> None:
    """Raise `Rejected` for a folder that `epochal prepare` made: what was held out is not to be trained on.

    Args:
        folder: which somebody wants to read as one dataset.
        names: of the files in it and below.

    Raises:
        Rejected: it has the folders `train` and `validation`, each with the manifest of a preparation.
    """
    if {"train", "validation"} <= {name.partition("/")[0] for name in names}:
        heads = [(folder / split / MANIFEST_NAME) for split in ("train", "validation")]
        if all(path.is_file() and b'"preparation"' in _head(path) for path in heads):
            allowed = f"{folder / 'data.toml'}, or {folder / 'train'}"
            raise Rejected(
                f"{folder} holds what to train on and what was held out; allowed: {allowed}", path=str(folder)
            )


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)
