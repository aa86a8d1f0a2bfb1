"""The journal as one coordinator knows it: the last record that it wrote or read, and the run after that.

Several coordinators may share a journal. If another one has appended first, `append` raises `StoreConflict` and keeps
nothing. That is routine: `catch_up` reads and replays what the other one wrote, and the stimuli are handled again.

A journal may also have gone back: a database failed over to a server that lacks the last records, or somebody restored
it. Readers have seen those records, which are void. The run is then taken as the journal has it, and is in doubt: it
takes no other record before one that gives it a new lineage, by which clients notice
(`coordinator/run/lost_records.py`).
"""

import contextlib
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from epochal.coordinator.machine.journal_records import NO_BLOBS, Segment
from epochal.coordinator.machine.records import (
    Kept,
    Replayed,
    Watch,
    encode_record,
    encode_snapshot,
    replay,
    replay_tail,
)
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import Stamped
from epochal.coordinator.machine.views import document_of
from epochal.coordinator.proof.counted_replay import replay_segment
from epochal.coordinator.run.publication import Published
from epochal.coordinator.store.sql.journal import Journal
from epochal.state.documents import RunDocument
from epochal.state.errors import StoreConflict, StoreFailed
from epochal.state.wire import Sha256

log = logging.getLogger(__name__)

MAX_KNOWN_LINEAGES = 64
MAX_SEGMENT_RECORDS = 20_000
"""A longer segment is followed by another within the epoch, so that a start replays a bounded number of records."""
SEGMENT_RECORDS = 1_024
SEGMENT_GROWTH = 16
"""A segment of this many records is followed by another if they are this many times as long as a snapshot: so a start
replays few records, and snapshots of many members take a small part of the journal."""


class RunJournal:
    """The journal and its run.

    Attributes:
        run: the run after the last known record.
        published: its published document.
        load_count: number of times that the journal was read anew, because what was known is not in it any more.
        is_doubtful: whether readers may have seen later documents of its lineage, which are not in the journal.
    """

    def __init__(self, journal: Journal, found: Replayed, record_count: int, *, is_doubtful: bool = False) -> None:
        self._journal = journal
        self._sequence = found.sequence
        self._record_count = record_count
        self._snapshot_bytes = self._record_bytes = 0
        """Size of the newest segment's snapshot and of its records, as far as they were seen here."""
        self._is_segment_due = False
        self.run = found.run
        self.published = Published.of(found.document)
        self.load_count = 0
        self.is_doubtful = is_doubtful
        self._lineages = deque([found.run.identity.lineage], MAX_KNOWN_LINEAGES)
        """Those that this coordinator may have shown."""

    @property
    def sequence(self) -> int:
        """Number of the last known record."""
        return self._sequence

    @property
    def kept(self) -> Kept:
        """The last known record."""
        return Kept(self._sequence, self.published.version, self.published.sha256)

    @classmethod
    async def load(cls, journal: Journal) -> "RunJournal | None":
        """Return the journal of a run that was started before, or None.

        Raises:
            StoreFailed: the journal is damaged, or was written under other rules.
        """
        segment = await journal.load()
        if segment is None:
            return None
        loaded = cls(journal, replay_segment(segment), len(segment.records), is_doubtful=segment.may_lack_last)
        loaded._note_sizes(segment)
        return loaded

    def _note_sizes(self, segment: Segment) -> None:
        self._snapshot_bytes = len(segment.snapshot.body)
        self._record_bytes = sum(len(record.body) for record in segment.records)

    @classmethod
    async def begin(cls, journal: Journal, run: Run) -> "RunJournal":
        """Return the journal of a new run, after keeping its first snapshot.

        Raises:
            StoreConflict: another coordinator has begun the run.
            StoreFailed: the snapshot cannot be kept.
        """
        begun = cls(journal, Replayed(0, document_of(run, version=0), run), 0)
        await begun._open_segment()
        return begun

    async def append(
        self, run: Run, stimuli: tuple[Stamped, ...], *, ends_segment: bool, blobs: Mapping[Sha256, bytes] = NO_BLOBS
    ) -> None:
        """Keep the stimuli that led from the last known run to `run`, in order.

        Args:
            ends_segment: whether a new segment is due after them.
            blobs: kept with them.

        Raises:
            StoreConflict: another coordinator has appended first, or the run is doubtful and they give it no new
                lineage; nothing was kept.
            StoreFailed: they may not have been kept.
        """
        if self.is_doubtful and run.identity.lineage in self._lineages:
            raise StoreConflict("the journal went back, and the run needs a new lineage first")
        published, document = self.published, self._document_of(run)
        if document != published.document:
            published = Published.of(replace(document, version=document.version + 1))
        sequence = self._sequence + 1
        record = encode_record(sequence, published.version, published.sha256, stimuli)
        await self._journal.append(replace(record, blobs=blobs))
        self._sequence, self.run, self.published = sequence, run, published
        self._note_lineage()
        self._record_count += 1
        self._record_bytes += len(record.body)
        self._is_segment_due |= ends_segment or self._is_long()

    def _is_long(self) -> bool:
        """Return whether the newest segment has so many records that another is to follow it."""
        is_grown = self._record_bytes >= SEGMENT_GROWTH * self._snapshot_bytes
        return self._record_count >= (SEGMENT_RECORDS if is_grown else MAX_SEGMENT_RECORDS)

    def _document_of(self, run: Run) -> RunDocument:
        """Return the document of a run that follows the last known one, in its version."""
        return document_of(run, self.published.version, (self.run, self.published.document))

    async def open_due_segment(self) -> None:
        """Open a new segment if one is due. It stays due if another coordinator has appended meanwhile.

        Raises:
            StoreFailed: it may not have been kept.
        """
        if self._is_segment_due:
            with contextlib.suppress(StoreConflict):
                await self._open_segment()
                self._is_segment_due, self._record_count = False, 0

    async def _open_segment(self) -> None:
        published = self.published
        snapshot = encode_snapshot(self._sequence, published.version, published.sha256, self.run)
        await self._journal.open_segment(snapshot)
        self._snapshot_bytes, self._record_bytes = len(snapshot.body), 0

    async def catch_up(self, watch: Watch | None = None) -> bool:
        """Read what other coordinators have appended, and replay it; return whether there was any.

        Args:
            watch: called with each stimulus that is replayed.

        Raises:
            StoreFailed: the journal is damaged, or was written under other rules; or it cannot be read now.
        """
        tail = await self._journal.tail(self._sequence)
        if tail is None:
            return await self._load_again(watch)
        if not tail.records:
            return False
        found = replay_tail(Replayed(self._sequence, self.published.document, self.run), tail.records, watch)
        self._is_segment_due &= tail.segment_records == self._record_count + len(tail.records)
        self._record_bytes += sum(len(record.body) for record in tail.records)
        self._take(found, tail.segment_records)
        return True

    async def _load_again(self, watch: Watch | None) -> bool:
        """Go on from the newest segment, because what is known is not in the journal, or not any more."""
        segment = await self._journal.load()
        if segment is None:
            raise StoreFailed("the journal is gone")
        self.load_count += 1
        found = replay(segment, watch)
        self._is_segment_due = False
        is_lost = (
            segment.lacks_known or found.sequence < self._sequence
        ) and found.run.identity.lineage in self._lineages
        is_news = found.sequence != self._sequence or found.document != self.published.document
        before = self._sequence
        self._note_sizes(segment)
        self._take(found, len(segment.records))
        self.is_doubtful = segment.may_lack_last or is_lost
        if self.is_doubtful:
            log.warning("journal_went_back", extra={"known": before, "found": found.sequence, "is_certain": is_lost})
        return is_news

    def _take(self, found: Replayed, record_count: int) -> None:
        self._sequence, self._record_count, self.run = found.sequence, record_count, found.run
        self._note_lineage()
        if found.document != self.published.document:
            self.published = Published.of(found.document)

    def _note_lineage(self) -> None:
        """Note the run's lineage; a new one ends the doubt."""
        if self.run.identity.lineage not in self._lineages:
            self._lineages.append(self.run.identity.lineage)
            self.is_doubtful = False
