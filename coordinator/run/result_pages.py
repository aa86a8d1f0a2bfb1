"""Pages of the verified results of the round under way, for the witnesses that follow them as they arrive.

All followers are shown the same entries, so each is made and encoded once for all of them.
"""

from epochal.coordinator.machine.parts.persistent_map import shared
from epochal.coordinator.machine.parts.round_tasks import RoundAssignment
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.views import may_read_results
from epochal.state.errors import Refused
from epochal.state.messages.requests import CommittedResult, ResultsPage
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, canonical_json

MAX_PAGE_RESULTS = 4096
"""Maximum number of results in a page; the next page follows at once."""


class ResultPages:
    """Pages of the round under way."""

    def __init__(self) -> None:
        self._plan: RoundAssignment | None = None
        """Of the round of which the entries are; each round has its own."""
        self._entries: list[CommittedResult] = []
        self._encoded: list[bytes] = []

    def page(self, run: Run, step: int, attempt: int, after: int, client_id: ClientId | None) -> ResultsPage:
        """Return verified results of a round from number `after` on; none that this client may not read.

        Raises:
            Refused: `stale-round`, when the round is over or has not begun.
        """
        current = run.round
        if current is None or (current.number.step, current.number.attempt) != (step, attempt):
            raise Refused(Refusal.STALE_ROUND, f"round {step} attempt {attempt} is not under way")
        if not may_read_results(run, client_id):
            return ResultsPage(step, attempt, after, complete=False, results=())
        self._look(run)
        count = len(current.results.verified)
        last = min(count, after + MAX_PAGE_RESULTS)
        complete = last >= count and (run.clock.phase is not RunState.ROUND_TRAIN or not current.missing.pending)
        return ResultsPage(step, attempt, max(after, last), complete, tuple(self._entries[after:last]))

    def encoded(self, page: ResultsPage) -> bytes:
        """Return the canonical JSON of a page."""
        start = page.next - len(page.results)
        if tuple(self._entries[start : page.next]) != page.results:  # of a round that is over
            return canonical_json(page)
        complete = b"true" if page.complete else b"false"
        head = b'{"attempt":%d,"complete":%s,"next":%d,"results":[' % (page.attempt, complete, page.next)
        return b"".join((head, b",".join(self._encoded[start : page.next]), b'],"step":%d}' % page.step))

    def _look(self, run: Run) -> None:
        """Take note of the results that were verified since the last call."""
        current = run.round
        assert current is not None
        if current.tasks.plan is not self._plan:
            self._plan, self._entries, self._encoded = current.tasks.plan, [], []
        for client_id, norm in shared(current.results.norms).from_place(len(self._entries)):
            bound = current.results.commitments[client_id]
            self._entries.append(CommittedResult(client_id, bound.result_sha256, bound.size_bytes, norm))
            self._encoded.append(canonical_json(self._entries[-1]))
