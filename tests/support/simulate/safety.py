"""The safety of a run as its clients see it."""

from typing import Protocol

from epochal.run_manager.events import Event, ReplicaHeld
from epochal.state.documents import RunDocument
from epochal.state.wire import Blake3, Sha256, document_digest


class Vouching(Protocol):
    """A journal that knows which documents its records vouch for."""

    kept: dict[int, Sha256]
    """The digest of each version of the run document that a kept entry vouches for."""


class SafetyBroken(AssertionError):
    """A safety rule of the run was broken."""


class Witness:
    """Everything that any client saw or held.

    It raises `SafetyBroken` when a client is shown a document that is not in a kept record, when one version is two
    documents, or when two replicas of one step differ.
    """

    def __init__(self, journal: Vouching) -> None:
        self._journal = journal
        self._shown: dict[tuple[str, int], RunDocument] = {}
        self._lineage = ""
        self.digests: dict[int, Blake3] = {}
        """The digest of each replica that a client held."""

    def saw(self, document: RunDocument) -> None:
        """Check a document that a client was shown."""
        name = (document.lineage, document.version)
        if document.lineage != self._lineage:
            self._lineage = document.lineage
            self.digests.clear()
        if name in self._shown:
            if self._shown[name] != document:
                raise SafetyBroken(f"version {document.version} was two different documents")
            return
        self._check_kept(document)
        self._shown[name] = document

    def _check_kept(self, document: RunDocument) -> None:
        if self._journal.kept.get(document.version) != document_digest(document):
            raise SafetyBroken(f"version {document.version} was shown, and no kept record vouches for it")

    def event(self, event: Event) -> None:
        """Check a client's event."""
        if isinstance(event, ReplicaHeld):
            digest = self.digests.setdefault(event.step, event.replica_digest)
            # A client may make initial parameters that are never published, if another one is elected then.
            if digest != event.replica_digest and event.origin != "initial":
                raise SafetyBroken(f"two replicas of step {event.step} differ")

    def check(self) -> None:
        """Raise `SafetyBroken` if a document that was shown is not in the store now."""
        for document in self._shown.values():
            if document.lineage != self._lineage:
                continue
            self._check_kept(document)
