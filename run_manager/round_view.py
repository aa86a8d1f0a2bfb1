"""A round as a client sees it: the roster, what each client trains on, and the witnesses.

The run document names the round's documents by digest, so a client can prove most of them by itself: most work
lists are one interval, and most outcomes hold every result. Those are not requested.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from epochal.coordinator_client.api import RunRequests
from epochal.state.assignment import DataAssignments, assign_data_for_state, proven_ahead
from epochal.state.documents import Roster, RoundAhead, RoundHead, RunDocument, WorkList
from epochal.state.election import elect_witnesses
from epochal.state.errors import InvalidDocument
from epochal.state.intervals import BatchId
from epochal.state.wire import ClientId, Seed, Sha256, document_digest

MAX_CACHED_DOCUMENTS = 8

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RoundView:
    """Everything about a round that follows from its documents without asking anyone.

    Attributes:
        assignments: everyone's data assignment.
        roster: the round's clients.
        positions: the roster position of each client.
        witnesses: the elected witnesses.
        isolated: the intervals that are tried alone.
    """

    head: RoundHead
    roster: Roster
    assignments: DataAssignments
    positions: dict[ClientId, int]
    witnesses: frozenset[ClientId]
    isolated: frozenset[BatchId]

    @classmethod
    def of(cls, head: RoundHead, roster: Roster, work: WorkList) -> "RoundView":
        """Return the view of this round."""
        return cls(
            head,
            roster,
            assign_data_for_state(roster, work, head.assignment_seed, head.seed),
            {entry.client_id: position for position, entry in enumerate(roster.clients)},
            frozenset(elect_witnesses(roster, head.seed, head.witness_count)),
            work.isolated_batches(),
        )


class RoundViews:
    """Round views by round. Rosters and work lists are fetched once per digest; a roster often outlives its round."""

    def __init__(self, requests: RunRequests) -> None:
        self._requests = requests
        self._rosters: OrderedDict[Sha256, Roster] = OrderedDict()
        self._work: OrderedDict[Sha256, WorkList] = OrderedDict()
        self._view: RoundView | None = None
        self._fetching = asyncio.Lock()

    async def of(self, head: RoundHead) -> RoundView:
        """Return the view of the round that the run document names."""
        async with self._fetching:
            if self._view is None or self._view.head != head:
                roster = await _cached(self._rosters, head.roster_sha256, self._requests.roster)
                work = usual_work(head)
                if work is None:
                    work = await _cached(self._work, head.work_sha256, self._requests.work)
                self._view = RoundView.of(head, roster, work)
            return self._view

    async def ahead_of(self, ahead: RoundAhead, seed: Seed, client_id: ClientId) -> tuple[BatchId, ...]:
        """Return what the provisional next round assigns a client; () if nothing, or if it is not known yet.

        Args:
            ahead: names the provisional round.
            seed: of the round under way.
            client_id: of the client.

        Raises:
            Refused: the coordinator no longer has its documents; the round is over.
        """
        roster = await _cached(self._rosters, ahead.roster_sha256, self._requests.roster)
        work = await _cached(self._work, ahead.work_sha256, self._requests.work)
        return proven_ahead(roster, work, seed).get(client_id, ())


def usual_work(head: RoundHead) -> WorkList | None:
    """Return the round's work list if it is the interval before the cursor and nothing else, by its digest."""
    if not 0 < head.batches <= head.cursor:
        return None
    work = WorkList((), (BatchId(head.cursor - head.batches, head.cursor - 1),))
    return work if document_digest(work) == head.work_sha256 else None


async def _cached(cache: OrderedDict[Sha256, T], sha256: Sha256, fetch: Callable[[Sha256], Awaitable[T]]) -> T:
    found = cache.get(sha256)
    if found is None:
        cache[sha256] = found = await fetch(sha256)
        while len(cache) > MAX_CACHED_DOCUMENTS:
            cache.popitem(last=False)
    return found


def round_of(document: RunDocument) -> RoundHead:
    """Return the round of a document in a round's phase.

    Raises:
        InvalidDocument: it has none; the coordinator's fault.
    """
    if document.round is None:
        raise InvalidDocument(f"a run document in {document.run_state.value} without a round")
    return document.round
