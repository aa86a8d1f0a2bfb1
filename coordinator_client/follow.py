"""Following a run: ever newer run documents, and the immutable documents that they name, verified.

The rules kept here: a run document is never replaced by an older one of the same lineage, nor by one of an earlier
lineage; and a document that was asked for by digest is accepted only with that digest.
"""

import asyncio
import json
import logging
from collections import deque
from typing import TypeVar

from epochal.coordinator_client.api import DocumentMark, DocumentRequests
from epochal.state.documents import RunDocument
from epochal.state.errors import InvalidDocument
from epochal.state.wire import Sha256, canonical_json, parse_document, sha256_hex

log = logging.getLogger(__name__)

MAX_LEFT_LINEAGES = 64
RESTORED_POLL_S = 1.0
"""Wait before the next request after an answer that is older than a previous one."""

T = TypeVar("T")


class DocumentFeed:
    """Run documents, each newer than the one before.

    Args:
        requests: the coordinator.
        seen: the newest document that this client saw earlier; an older one of its lineage is ignored.
    """

    def __init__(self, requests: DocumentRequests, seen: DocumentMark | None = None) -> None:
        self._requests = requests
        self._seen = seen
        self._mark: DocumentMark | None = None
        self._left: deque[str] = deque(maxlen=MAX_LEFT_LINEAGES)

    async def next(self, wait_s: float) -> RunDocument:
        """Return the next document, as soon as there is one; each request waits up to `wait_s` seconds."""
        while True:
            document = await self.poll(wait_s)
            if document is not None:
                return document

    async def poll(self, wait_s: float) -> RunDocument | None:
        """Return the answer to one request if it is newer than all before, else None."""
        document = await self._requests.run_document(self._mark, wait_s)
        if document is None:
            return None
        seen, self._seen = self._seen, None
        if seen is not None and seen.lineage == document.lineage and seen.version > document.version:
            self._mark = seen
        if not self._is_newer(document):
            log.warning("older_document_ignored", extra={"lineage": document.lineage, "version": document.version})
            await asyncio.sleep(RESTORED_POLL_S)
            return None
        if self._mark is not None and self._mark.lineage != document.lineage:
            self._left.append(self._mark.lineage)
        self._mark = DocumentMark(document.lineage, document.version)
        return document

    def _is_newer(self, document: RunDocument) -> bool:
        if document.lineage in self._left:
            return False
        mark = self._mark
        return mark is None or mark.lineage != document.lineage or document.version > mark.version


def parse_immutable(kind: type[T], sha256: Sha256, content: bytes) -> T:
    """Return the document of type `kind` in the JSON bytes.

    Raises:
        InvalidDocument: it has another digest, or is not of this type; the coordinator's fault.
    """
    document = parse_document(kind, content)
    found = sha256_hex(content)
    if found != sha256:  # a proxy may have written the same document in another way
        found = sha256_hex(canonical_json(json.loads(content)))
    if found != sha256:
        raise InvalidDocument(f"{kind.__name__} {sha256} came with digest {found}", expected=sha256, found=found)
    return document
