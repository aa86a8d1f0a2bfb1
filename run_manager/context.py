"""What the steps of a running client share, and what they know of a round."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from batching.packing.packed_batches import Packing
from coordinator_client.api import CoordinatorApi
from coordinator_client.session import Member
from data_providers.fetcher import DataFetcher
from run_manager.events import Observer
from run_manager.exchange.star import Exchange
from run_manager.readiness import Readiness
from run_manager.replica.keeper import ReplicaKeeper
from runtime.clock import Clock
from runtime.worker_thread import Worker
from state.assignment import DataAssignments, assign_data_for_state
from state.config.state_file import StateFile
from state.documents import Outcome, Roster, RoundHead, RunDocument, WorkList
from state.election import elect_witnesses
from state.errors import InvalidDocument
from state.wire import ClientId, Sha256
from trainers.protocol import Trainer

MAX_CACHED_DOCUMENTS = 8

T = TypeVar("T")


class Step(Protocol):
    """One step of the machine. It runs until it is done or overtaken, and then it is cancelled."""

    async def run(self) -> None:
        """Does what the step has to do for the document that it was made for."""
        ...


@dataclass(frozen=True, slots=True)
class RoundView:
    """What follows from a round's documents without asking anyone.

    Attributes:
        assignments: everyone's data assignment.
        positions: the roster position of each client.
        witnesses: the elected witnesses.
    """

    head: RoundHead
    assignments: DataAssignments
    positions: dict[ClientId, int]
    witnesses: frozenset[ClientId]

    @classmethod
    def of(cls, head: RoundHead, roster: Roster, work: WorkList) -> "RoundView":
        """The view of this round."""
        return cls(
            head,
            assign_data_for_state(roster, work, head.seed),
            {entry.client_id: position for position, entry in enumerate(roster.clients)},
            frozenset(elect_witnesses(roster, head.seed, head.witness_count)),
        )


class RoundViews:
    """Round views by round. Rosters and work lists are fetched once per digest; a roster often outlives its round."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._rosters: OrderedDict[Sha256, Roster] = OrderedDict()
        self._work: OrderedDict[Sha256, WorkList] = OrderedDict()
        self._view: RoundView | None = None
        self._fetching = asyncio.Lock()

    async def of(self, head: RoundHead) -> RoundView:
        """The view of the round that the run document names."""
        async with self._fetching:
            if self._view is None or self._view.head != head:
                roster = await self._cached(
                    self._rosters, head.roster_sha256, lambda api: api.roster(head.roster_sha256)
                )
                work = await self._cached(self._work, head.work_sha256, lambda api: api.work(head.work_sha256))
                self._view = RoundView.of(head, roster, work)
            return self._view

    async def _cached(
        self, cache: OrderedDict[Sha256, T], sha256: Sha256, fetch: Callable[[CoordinatorApi], Awaitable[T]]
    ) -> T:
        found = cache.get(sha256)
        if found is None:
            cache[sha256] = found = await self._member.call(fetch)
            while len(cache) > MAX_CACHED_DOCUMENTS:
                cache.popitem(last=False)
        return found


class TentativeState:
    """Binds the trainer's inner state to the fate of the result that it came with (DESIGN §6, "Merging")."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._result_sha256: Sha256 | None = None

    def published(self, result_sha256: Sha256) -> None:
        """The last `train` led to this result."""
        self._result_sha256 = result_sha256

    def settle(self, outcome: Outcome) -> None:
        """Keeps the inner state if the outcome contains the result, else forgets it."""
        mine = self._result_sha256
        if mine is not None and any(entry.result_sha256 == mine for entry in outcome.entries):
            self._trainer.commit_inner_state()
            self._result_sha256 = None
        else:
            self.forget()

    def forget(self) -> None:
        """The result came to nothing."""
        self._trainer.roll_back_inner_state()
        self._result_sha256 = None


@dataclass(slots=True)
class StepContext:
    """What the steps work with. `state` and `fetcher` are replaced when the run's configuration changes.

    Attributes:
        worker: where blocking work other than training and merging runs.
        packing: how samples become rows; None where they are trained on as they come.
    """

    member: Member
    state: StateFile
    exchange: Exchange
    keeper: ReplicaKeeper
    readiness: Readiness
    rounds: RoundViews
    trainer: Trainer
    tentative: TentativeState
    fetcher: DataFetcher
    worker: Worker
    clock: Clock
    observer: Observer
    packing: Packing | None = None


def round_of(document: RunDocument) -> RoundHead:
    """The round of a document in a round's phase.

    Raises:
        InvalidDocument: it has none; the coordinator's fault.
    """
    if document.round is None:
        raise InvalidDocument(f"a run document in {document.run_state.value} without a round")
    return document.round
