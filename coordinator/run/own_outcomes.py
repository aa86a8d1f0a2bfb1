"""What each member needs of the last outcomes: all members ask for it, so each outcome is read once for all of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from epochal.state.documents import Outcome, OwnOutcome
from epochal.state.wire import ClientId, Sha256, canonical_json, document_digest

MAX_READ = 4
"""Number of outcomes that stay read."""


_NO_RESULT = b'"result_sha256":null'


@dataclass(frozen=True, slots=True)
class _Read:
    outcome: Outcome
    sha256: Sha256
    results: Mapping[ClientId, Sha256]
    without_result: bytes
    """The canonical JSON of one who has no result in it."""


class OwnOutcomes:
    """The parts of outcomes that single members need."""

    def __init__(self) -> None:
        self._read: dict[int, _Read] = {}

    def of(self, outcome: Outcome, client_id: ClientId) -> OwnOutcome:
        """Return what a member needs of an outcome."""
        read = self._reading(outcome)
        return _own(outcome, read.sha256, read.results.get(client_id))

    def encoded(self, outcome: Outcome, sha256: Sha256, client_id: ClientId) -> bytes:
        """Return the canonical JSON of what a member needs of an outcome of this digest."""
        read = self._reading(outcome, sha256)
        result = read.results.get(client_id)
        if result is None:
            return read.without_result
        return read.without_result.replace(_NO_RESULT, b'"result_sha256":"%b"' % result.encode(), 1)

    def _reading(self, outcome: Outcome, sha256: Sha256 | None = None) -> _Read:
        found = self._read.get(outcome.step)
        if found is None or found.outcome is not outcome:
            sha256 = sha256 or document_digest(outcome)
            counted = {entry.client_id: entry.result_sha256 for entry in outcome.entries}
            without_result = canonical_json(_own(outcome, sha256, None))
            found = self._read[outcome.step] = _Read(outcome, sha256, counted, without_result)
            while len(self._read) > MAX_READ:
                del self._read[min(self._read)]
        return found


def _own(outcome: Outcome, sha256: Sha256, result: Sha256 | None) -> OwnOutcome:
    return OwnOutcome(outcome.run_id, outcome.step, sha256, outcome.replica_digest, result)
