"""A run's history as it is kept beside the journal, so that a start need not read all of it.

It is derived: who finds none, or one that is damaged or of another journal, reads the journal from its beginning. It
names the last record that it includes, with the digest of the document that was published then: a journal that went
back has another record there, because its run goes on under another lineage.
"""

import logging
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.machine.journal_records import Segment
from epochal.coordinator.machine.records import published_by
from epochal.coordinator.store.sql.history import JournalReader
from epochal.state.documents import Count, HexSha256
from epochal.state.errors import InvalidDocument, StoreFailed
from epochal.state.wire import Sha256, canonical_json, parse_document, sha256_hex
from epochal.state.wire_document import WireDocument

log = logging.getLogger(__name__)

FORMAT = 3
_DIGEST_CHARS = 64


@dataclass(frozen=True, slots=True)
class RecordMark:
    """A record of the journal: its number, and the digest of the document that was published after it."""

    sequence: int
    document_sha256: str


@dataclass(frozen=True, slots=True)
class _Body(WireDocument):
    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)]
    sequence: Count
    document_sha256: HexSha256
    segment: Count
    history: str


@dataclass(frozen=True, slots=True)
class KeptHistory:
    """A history up to a record.

    Attributes:
        mark: the last record that it includes.
        segment: number of the segment that holds the record.
        history: as `Projection.encoded` writes it.
    """

    mark: RecordMark
    segment: int
    history: str

    def encoded(self) -> bytes:
        """Return it as bytes, which begin with their digest."""
        digest = Sha256(self.mark.document_sha256)
        body = canonical_json(_Body(FORMAT, self.mark.sequence, digest, self.segment, self.history))
        return sha256_hex(body).encode() + b"\n" + body

    @classmethod
    def decoded(cls, data: bytes) -> "KeptHistory | None":
        """Return what `encoded` wrote; None of anything else."""
        body = data[_DIGEST_CHARS + 1 :]
        if data[: _DIGEST_CHARS + 1] != sha256_hex(body).encode() + b"\n":
            return None
        try:
            read: _Body = parse_document(_Body, body)
        except InvalidDocument:  # of a newer version
            return None
        return cls(RecordMark(read.sequence, read.document_sha256), read.segment, read.history)

    def opened(self) -> Projection | None:
        """Return the history; None if it cannot be read."""
        try:
            return Projection.decoded(self.history)
        except StoreFailed:
            return None


async def find_kept(journal: JournalReader, first: int) -> KeptHistory | None:
    """Return the history that is kept beside a journal, if the journal has the record that it names.

    Args:
        journal: of the run.
        first: number of the first segment that is not compacted.

    Raises:
        StoreFailed: the journal cannot be read.
    """
    try:
        data = await journal.kept_history()
    except StoreFailed as error:
        log.info("kept_history_not_read", extra={"reason": error.message})
        return None
    kept = None if data is None else KeptHistory.decoded(data)
    if kept is None or kept.segment < first:
        return None
    async with aclosing(journal.history(kept.segment)) as segments:
        async for segment in segments:
            return kept if segment.number == kept.segment and holds(segment, kept.mark) else None
    return None


def holds(segment: Segment, mark: RecordMark) -> bool:
    """Whether a segment holds a record, after which the same was published."""
    place = mark.sequence - segment.snapshot.sequence - 1
    return 0 <= place < len(segment.records) and published_by(segment.records[place]) == mark.document_sha256
