"""Hashes that an index of shards names: Python's own algorithms, and those of the `xxhash` package where there is one.

MosaicML's datasets have none, or any of these: `streaming` takes the names of `hashlib` and of `xxhash`. An algorithm
that is not known here is named in the log once, with what to install for it, and not compared.
"""

import hashlib
import importlib
import logging
from collections.abc import Mapping
from typing import Any

from epochal.data_providers.protocol import CorruptData

log = logging.getLogger(__name__)

XXHASHES = frozenset({"xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128"})
XXHASH_EXTRA = "pip install 'epochal[compression]'"
MAX_SHOWN_CHARS = 128
"""Maximum number of characters of an index's hash in a message."""
_VARIABLE_LENGTH = "shake"
_said: set[str] = set()
"""Algorithms that the log has named: once is enough for a dataset of many shards."""


class IndexHashes:
    """The hashes of one file, while it is read.

    Args:
        wanted: hexadecimal hashes by algorithm, as the index has them.
        place: of the file, for messages.
    """

    def __init__(self, wanted: Mapping[str, str], place: str) -> None:
        self._wanted = wanted
        self._place = place
        made = {name: _new(name) for name in wanted}
        self._hashes = {name: one for name, one in made.items() if one is not None}
        _say_unknown(place, sorted(set(made) - set(self._hashes)))

    def update(self, data: Any, /) -> None:
        """Hash further bytes."""
        for one in self._hashes.values():
            one.update(data)

    def compare(self) -> None:
        """Raise `CorruptData` if one of the hashes is not the index's; the fault of the data's owner."""
        for name, one in self._hashes.items():
            if one.hexdigest() != self._wanted[name].lower():
                said = self._wanted[name][:MAX_SHOWN_CHARS]
                raise CorruptData(
                    f"{self._place} has {name} {one.hexdigest()}; its index says {said}", place=self._place
                )


def _new(name: str) -> Any:
    """Return a new hash, or None for an algorithm that is not known here."""
    if name in XXHASHES:
        try:
            return getattr(importlib.import_module("xxhash"), name)()
        except ImportError:
            return None
    if name not in hashlib.algorithms_available or name.startswith(_VARIABLE_LENGTH):
        return None
    return hashlib.new(name, usedforsecurity=False)


def _say_unknown(place: str, names: list[str]) -> None:
    new = [name for name in names if name not in _said]
    if new:
        _said.update(new)
        needed = f"for {', '.join(sorted(XXHASHES))}: {XXHASH_EXTRA}"
        log.warning("hashes_not_compared", extra={"place": place, "algorithms": ", ".join(new), "note": needed})
