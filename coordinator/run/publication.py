"""The run and its documents for their readers, and how they wait for news: they never wait for the writer."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from epochal.coordinator.machine.parts.member import Member
from epochal.coordinator.machine.parts.persistent_map import shared
from epochal.coordinator.machine.parts.round_tasks import RoundAssignment
from epochal.coordinator.machine.parts.run_identity import config_json
from epochal.coordinator.machine.replays.reveals import with_challenges
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.views import may_read_results
from epochal.coordinator.run.long_polls import Reader
from epochal.runtime.broadcast import Broadcast, PacedBroadcast
from epochal.runtime.clock import RunClock
from epochal.state.config.state_file import MergeConfig
from epochal.state.documents import MAX_RUN_DOCUMENT_BYTES, Outcome, OwnOutcome, Roster, RunDocument, WorkList
from epochal.state.errors import InternalError, Refused
from epochal.state.messages.requests import CommittedResult, ResultsPage, Standing
from epochal.state.model.first_model import model_document
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256, canonical_json, document_digest, sha256_hex

MAX_PAGE_RESULTS = 4096
"""Maximum number of results in a page; the next page follows at once."""
MAX_READ = 4
"""Number of outcomes that stay read."""


_NO_RESULT = b'"result_sha256":null'
MAX_ROUND_DOCUMENTS = 32
"""Number of rosters and work lists that are served: those of the round under way, the next and the last ones."""
PROMPT_STRANGERS = 8
"""Up to this number of waiting strangers are sent news at once."""
GATHERED_S = 0.05
"""Time for which a page of results gathers what arrives, unless nothing more can: instead of a page for each result."""
STRANGERS_TOLD_PER_S = 50.0
"""Number of strangers that are sent news in a second if more of them wait: their number must not slow the run."""

UPDATE_AWAITED_S = 1.0
"""Maximum time for which the document of a new round waits for the update from which the round trains: waiting members
are sent both at once."""
AHEAD_TOLD_S = 5.0
"""Time after which waiting members are sent another provisional next round: mostly the next one begins meanwhile."""
WAITING_TOLD_S = 0.25
"""Time after which viewers are sent a change that the document does not show: the run may wait for others."""
VIEWERS_TOLD_PER_S = 500.0
"""Number of viewers that are sent news in a second if more of them wait."""


class ResultPages:
    """Pages of the verified results of the round under way, for the witnesses that follow them as they arrive.

    All followers are shown the same entries, so each is made and encoded once for all of them.
    """

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


@dataclass(frozen=True, slots=True)
class _Read:
    outcome: Outcome
    sha256: Sha256
    results: Mapping[ClientId, Sha256]
    without_result: bytes
    """The canonical JSON of one who has no result in it."""


class OwnOutcomes:
    """The parts of outcomes that single members need: all ask for them, so each outcome is read once for all."""

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


@dataclass(frozen=True, slots=True)
class Published:
    """A run document with its bytes, serialised once for the journal and all readers."""

    document: RunDocument
    body: bytes
    sha256: Sha256
    etag: str

    @classmethod
    def of(cls, document: RunDocument) -> "Published":
        body = canonical_json(document)
        if len(body) > MAX_RUN_DOCUMENT_BYTES:
            raise InternalError(f"the run document has {len(body)} bytes, above {MAX_RUN_DOCUMENT_BYTES}")
        return cls(document, body, sha256_hex(body), f'"{document.lineage}-{document.version}"')

    @property
    def version(self) -> int:
        return self.document.version

    def is_news(self, after: int, lineage: str | None) -> bool:
        """Whether its version is above `after`, or its lineage is not `lineage`."""
        return self.version > after or (lineage is not None and lineage != self.document.lineage)


class Readers:
    """Shows immutable values that are replaced after each commit, and wakes those who wait for newer ones.

    Attributes:
        run: the run as it is kept.
        published: the document that it publishes.
    """

    def __init__(self, run: Run, published: Published, clock: RunClock) -> None:
        self.run = run
        self.published = published
        self._clock = clock
        self._news = Broadcast()
        self._results_news = Broadcast()
        self._round_news = Broadcast()
        """Of a round that has ended, or waits for nobody any more."""
        self.pages = ResultPages()
        self.own_outcomes = OwnOutcomes()
        self.viewer_news = PacedBroadcast(PROMPT_STRANGERS, VIEWERS_TOLD_PER_S)
        """Of the document and of the run's wait, for those who are sent all news."""
        self._telling: asyncio.TimerHandle | None = None
        self._members_timer: asyncio.TimerHandle | None = None
        """While members are not sent the document yet."""
        self._awaited_step = 0
        """The last step that waited for its update, which it does once."""
        self._news_for_strangers = PacedBroadcast(PROMPT_STRANGERS, STRANGERS_TOLD_PER_S)
        self._round_documents: OrderedDict[Sha256, bytes] = OrderedDict()
        self._is_released = False
        self._on_change: list[Callable[[Run, Run], None]] = []
        self._remember_round_documents()

    def on_change(self, watcher: Callable[[Run, Run], None]) -> None:
        """Call `watcher` with the run before and after each change."""
        self._on_change.append(watcher)

    def show(self, run: Run, published: Published) -> None:
        """Show a run that was kept, and its document."""
        before, self.run = self.run, run
        for watcher in self._on_change:
            watcher(before, run)
        if run.round is not before.round or run.clock.phase is not before.clock.phase:
            self._remember_round_documents()
            self._results_news.notify()
            self._news_for_strangers.notify()
            if run.clock.phase is not before.clock.phase or run.round is None or not run.round.missing.pending:
                self._round_news.notify()
        if published is not self.published:
            known, self.published = self.published.document, published
            self._tell_members(known)
            self._news_for_strangers.notify()
            self.viewer_news.notify()
        elif self._telling is None and not self._is_released:  # it may wait for others than before
            self._telling = asyncio.get_running_loop().call_later(WAITING_TOLD_S, self._tell_viewers)

    def _tell_members(self, known: RunDocument) -> None:
        """Send the new document to those who wait, now or later.

        Later if it lacks the update without which nobody can begin its round, or if it names another next round only,
        unless that is promised.
        """
        document, is_hint = self.published.document, not self.run.state_file.merge.delay
        most_s, is_first = _awaited_s(self.run, document), document.step != self._awaited_step
        if most_s > 0 and not self._is_released and (is_first or self._members_timer is not None):
            if is_first:
                self._awaited_step = document.step
                self._tell_members_within(most_s)
        elif is_hint and _is_same_but_ahead(known, document) and not self._is_released:
            if self._members_timer is None:
                self._tell_members_within(AHEAD_TOLD_S)
        else:
            self._tell_members_now()

    def _tell_members_within(self, most_s: float) -> None:
        self._cancel_members_timer()
        self._members_timer = asyncio.get_running_loop().call_later(most_s, self._tell_members_now)

    def _tell_members_now(self) -> None:
        self._cancel_members_timer()
        self._news.notify()

    def _cancel_members_timer(self) -> None:
        if self._members_timer is not None:
            self._members_timer.cancel()
            self._members_timer = None

    def _tell_viewers(self) -> None:
        self._telling = None
        self.viewer_news.notify()

    def release(self) -> None:
        """Answer every waiting reader, because the service stops."""
        self._is_released = True
        self._news.close()
        self._results_news.close()
        self._round_news.close()
        self._news_for_strangers.close()
        self.viewer_news.close()
        self._cancel_members_timer()
        if self._telling is not None:
            self._telling.cancel()

    async def wait_published(
        self, after: int, lineage: str | None, timeout_s: float, *, is_stranger: bool = False
    ) -> Published | None:
        """Return the published document once it is news (see `Published.is_news`), or None after `timeout_s`.

        Where many strangers wait, all of them are answered later, also with a document that is new already. The others
        who may wait are sent the document of a new round with its update, if that is made within `UPDATE_AWAITED_S`,
        and one that names another next round only, unless that is promised, after `AHEAD_TOLD_S`.
        """
        news = self._news_for_strangers if is_stranger else self._news
        if self.published.is_news(after, lineage):
            if is_stranger and not self._news_for_strangers.is_prompt:
                self._news_for_strangers.notify()
            elif is_stranger or self._members_timer is None or timeout_s <= 0:
                return self.published
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await news.wait()
                while not (self.published.is_news(after, lineage) or self._is_released):
                    await news.wait()
        return self.published if self.published.is_news(after, lineage) else None

    async def wait_results(self, step: int, attempt: int, after: int, timeout_s: float, reader: Reader) -> ResultsPage:
        """Return a round's verified results from number `after` on, once the reader may see any, or after `timeout_s`.

        It returns at once when no further result can come, and otherwise gathers those of a short while.

        Raises:
            Refused: `stale-round`.
        """
        until_s = self._clock.now_s() + timeout_s
        news = self._news_for_strangers if reader.is_stranger else self._results_news
        while True:
            page = self.pages.page(self.run, step, attempt, after, reader.client_id)
            remaining_s = until_s - self._clock.now_s()
            if page.complete or len(page.results) >= MAX_PAGE_RESULTS or remaining_s <= 0 or self._is_released:
                return page
            if page.results:  # others will follow soon: one page for all of them
                await _within(min(remaining_s, GATHERED_S), self._round_news)
                return self.pages.page(self.run, step, attempt, after, reader.client_id)
            await _within(remaining_s, news)

    def own_outcome_with(self, document: RunDocument, client_id: ClientId) -> bytes | None:
        """Return the canonical JSON of a member's part of a document's last outcome; None if that is not kept."""
        outcome, sha256 = self.run.models.outcomes.get(document.step - 1), document.last_outcome_sha256
        if outcome is None or sha256 is None or document.version != self.published.version:
            return None
        if self.run.state_file.reveals_inner_states:
            return canonical_json(with_challenges(self.run, self.own_outcomes.of(outcome, client_id), client_id))
        return self.own_outcomes.encoded(outcome, Sha256(sha256), client_id)

    def immutable(self, sha256: Sha256) -> bytes | None:
        """Return the configuration, the model document, a checkpoint's manifest, or a recent roster or work list."""
        if sha256 == self.run.identity.config_sha256:
            return canonical_json(config_json(self.run.identity.state_file))
        if self.run.models.spec is not None and sha256 == self.run.models.spec_sha256:
            return model_document(self.run.models.spec)
        if sha256 in self.run.models.manifests:
            return canonical_json(self.run.models.manifests[sha256])
        return self._round_documents.get(sha256)

    def _remember_round_documents(self) -> None:
        current, kept = self.run.round, self._round_documents
        if current is None:
            return
        documents: list[tuple[Sha256, Roster | WorkList]] = [
            (current.tasks.roster_sha256, current.tasks.roster),
            (current.tasks.work_sha256, current.tasks.work),
        ]
        if current.ahead is not None:
            documents.append((current.ahead.work_sha256, current.ahead.work))
            if current.ahead.roster is not None:
                documents.append((current.ahead.roster_sha256, current.ahead.roster))
        for sha256, document in documents:
            if sha256 not in kept:
                kept[sha256] = canonical_json(document)
            kept.move_to_end(sha256)
        while len(kept) > MAX_ROUND_DOCUMENTS:
            kept.popitem(last=False)


def _is_same_but_ahead(known: RunDocument, document: RunDocument) -> bool:
    return document == replace(known, version=document.version, ahead=document.ahead)


def _awaited_s(run: Run, document: RunDocument) -> float:
    """Return how long a document waits for the update of its step: 0 if there is none to come that all must have."""
    merge = run.state_file.merge
    if document.run_state is not RunState.ROUND_TRAIN or not run.models.lacks_update(document.step - 1):
        return 0.0
    return update_awaited_s(merge)


def update_awaited_s(merge: MergeConfig) -> float:
    """Return for how long the document of a round that begins is held so that it brings the update along."""
    return 0.0 if merge.delay else min(UPDATE_AWAITED_S, merge.update_wait_s)


async def _within(timeout_s: float, news: Broadcast | PacedBroadcast) -> None:
    """Return at the next notification, or after some time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await news.wait()


def standing_of(run: Run, member: Member, now_s: float) -> Standing:
    """Return which of a member's messages for the round under way have arrived, and whether it rests."""
    current, client_id = run.round, member.client_id
    commitment = None if current is None else current.results.commitments.get(client_id)
    return Standing(
        client_id=client_id,
        ready=run.is_ready(member),
        in_roster=current is not None and client_id in current.tasks.plan.positions,
        step=run.progress.step,
        attempt=run.progress.attempt,
        committed_sha256=None if commitment is None else commitment.result_sha256,
        result_verified=current is not None and client_id in current.results.verified,
        result_rejected=None if current is None else current.missing.rejected.get(client_id),
        attested=current is not None and client_id in current.witnessed.attestations,
        failed=current is not None and client_id in current.missing.failures,
        missed=member.conduct.misses,
        rest_s=member.conduct.rest_s(now_s),
        last_miss=member.conduct.last_miss,
    )
