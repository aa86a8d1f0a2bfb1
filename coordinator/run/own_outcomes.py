"""What each member needs of the last outcomes: all members ask for it, so each outcome is read once for all of them."""

from collections.abc import Mapping

from epochal.state.documents import Outcome, OwnOutcome
from epochal.state.wire import ClientId, Sha256, document_digest

MAX_READ = 4
"""Number of outcomes that stay read."""


class OwnOutcomes:
    """The parts of outcomes that single members need."""

    def __init__(self) -> None:
        self._read: dict[int, tuple[Outcome, Sha256, Mapping[ClientId, Sha256]]] = {}

    def of(self, outcome: Outcome, client_id: ClientId) -> OwnOutcome:
        """Return what a member needs of an outcome."""
        found = self._read.get(outcome.step)
        if found is None or found[0] is not outcome:
            counted = {entry.client_id: entry.result_sha256 for entry in outcome.entries}
            found = self._read[outcome.step] = outcome, document_digest(outcome), counted
            while len(self._read) > MAX_READ:
                del self._read[min(self._read)]
        _, sha256, results = found
        return OwnOutcome(outcome.run_id, outcome.step, sha256, outcome.replica_digest, results.get(client_id))
