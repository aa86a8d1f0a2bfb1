"""The text of the quality bench: Python's standard library as bytes, whole files of it held out."""

import hashlib
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from epochal.state.errors import EpochalError

LENGTH = 160
HELD_OUT_SEQUENCES = 2048
HELD_OUT_ONE_IN = 16
"""One file in so many is held out."""
LEFT_OUT = frozenset({"site-packages", "test", "tests", "idle_test", "__pycache__"})
"""Folders whose files are not read: what is installed differs, and tests are mostly tables."""

Rows = NDArray[np.uint16]
"""Samples, `(count, LENGTH)`."""


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """The samples of training, and those that no run trains on."""

    training: Rows
    held_out: Rows


def is_held_out(name: str) -> bool:
    """Return whether the file of this name, relative to the library's folder, is held out."""
    return hashlib.sha256(name.encode()).digest()[0] % HELD_OUT_ONE_IN == 0


def library_text() -> Text:
    """Return the standard library's sources, in samples of `LENGTH` bytes.

    Raises:
        EpochalError: this Python has no sources, or too few.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in sorted(folder.rglob("*.py")) if not LEFT_OUT & set(path.relative_to(folder).parts)]
    held_out = [path for path in paths if is_held_out(path.relative_to(folder).as_posix())]
    rows = _rows(held_out)
    if len(rows) < HELD_OUT_SEQUENCES:
        raise EpochalError(f"{folder} has {len(rows)} samples of held-out text; needed: {HELD_OUT_SEQUENCES}")
    chosen = np.random.default_rng(0).permutation(len(rows))[:HELD_OUT_SEQUENCES]
    return Text(_rows(path for path in paths if path not in set(held_out)), rows[chosen])


def _rows(paths: Iterable[Path]) -> Rows:
    data = np.frombuffer(b"".join(path.read_bytes() for path in paths), np.uint8)
    return data[: len(data) // LENGTH * LENGTH].reshape(-1, LENGTH).astype("<u2")
