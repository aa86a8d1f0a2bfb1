"""The journal as values: records, the snapshots with which segments begin, and the segments that are read back.

`coordinator/store/sql/journal.py` says what a store promises about them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from epochal.state.wire import Sha256

NO_BLOBS: Mapping[Sha256, bytes] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One group commit.

    Attributes:
        sequence: its number: 1, 2, 3, … over the whole run.
        body: it, as JSON.
        version: of the run document that was published after it; 0 where a journal lacks it. The body holds it too.
        blobs: small blobs that the run needs from it on, kept in its transaction; they are no part of what is read
            back.
    """

    sequence: int
    body: bytes
    version: int = field(default=0, compare=False)
    blobs: Mapping[Sha256, bytes] = field(default_factory=lambda: NO_BLOBS, compare=False)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole run after record `sequence`, as JSON."""

    sequence: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Segment:
    """A snapshot and the records after it.

    Attributes:
        number: counts segments from 0. Each epoch begins one; a long epoch has several.
        may_lack_last: whether records after its last one may be lost that were kept, as after a failover of a database.
        lacks_known: whether the journal does not hold the record that this object read or appended last before.
    """

    number: int
    snapshot: Snapshot
    records: tuple[JournalRecord, ...]
    may_lack_last: bool = field(default=False, compare=False)
    lacks_known: bool = field(default=False, compare=False)
