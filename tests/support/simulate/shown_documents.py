"""Every run document that readers were shown, to be compared with what the journal keeps: none may be taken back."""

import asyncio
from dataclasses import dataclass, field

from epochal.coordinator.machine.journal_records import Segment
from epochal.coordinator.machine.records import replay, replay_tail
from epochal.coordinator.store.open import open_store_reader
from epochal.coordinator_client.api import DocumentMark
from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.retry import RetryPolicy
from epochal.state.documents import RunDocument
from epochal.state.errors import CoordinatorUnreachable, Refused
from epochal.state.wire import Sha256, document_digest
from tests.support.bounds import BOUND_S

WAIT_S = 2.0
AGAIN_S = 0.1


@dataclass
class ShownDocuments:
    """Digests of documents by lineage and version.

    Attributes:
        digests: of all that were shown.
        lineages: in the order in which they were shown first.
    """

    digests: dict[tuple[str, int], Sha256] = field(default_factory=dict)
    lineages: list[str] = field(default_factory=list)

    def add(self, document: RunDocument) -> None:
        """Take note of a document; two of one version must be one."""
        digest = document_digest(document)
        assert self.digests.setdefault((document.lineage, document.version), digest) == digest, document
        if document.lineage not in self.lineages:
            self.lineages.append(document.lineage)

    async def follow(self, address: str) -> None:
        """Read what a coordinator shows, until cancelled; it may be away for a while."""
        api = await CoordinatorClient.connect(address, RetryPolicy(bound_s=BOUND_S), True)
        mark: DocumentMark | None = None
        try:
            while True:
                try:
                    document = await api.run_document(mark, WAIT_S)
                except (CoordinatorUnreachable, Refused):
                    await asyncio.sleep(AGAIN_S)
                    continue
                if document is not None:
                    is_newer = mark is None or mark.lineage != document.lineage or mark.version < document.version
                    assert is_newer, f"{address} showed version {document.version} after {mark}"
                    self.add(document)
                    mark = DocumentMark(document.lineage, document.version)
        finally:
            await api.aclose()

    async def void(self, store: str) -> int:
        """Return the number of documents that the journal does not keep; only those that a new lineage has disowned.

        Raises:
            AssertionError: one that is not kept was not disowned, or the journal keeps another of its version.
        """
        kept: dict[tuple[str, int], Sha256] = {}
        last: dict[str, int] = {}
        async for segment in open_store_reader(store).journal.history():
            found = replay(Segment(segment.number, segment.snapshot, ()))
            for record in (None, *segment.records):
                found = found if record is None else replay_tail(found, (record,))
                document = found.document
                kept[document.lineage, document.version] = document_digest(document)
                last[document.lineage] = document.version
        first, newest, void = next(iter(kept)), list(last)[-1], 0
        for (lineage, version), digest in self.digests.items():
            if (lineage, version) in kept:
                assert kept[lineage, version] == digest, f"another document of version {version} is kept"
            elif lineage != first[0] or version > first[1]:
                assert lineage != newest, f"version {version} was shown and is not kept"
                assert version > last.get(lineage, 0), f"version {version} was shown, and passed over"
                void += 1
        return void
