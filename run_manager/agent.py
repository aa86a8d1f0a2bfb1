"""A client, whole: joins, follows the run document, and lets `RunManager` do what it asks, until the run ends.

The rules kept here: a document is never exchanged for an older one of the same lineage, nor for one of a lineage that
was left; following goes on while everything else works, because it is the client's sign of life; and a client that is
asked to leave finishes the round under way.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from coordinator_client.api import CoordinatorApi, DocumentMark
from coordinator_client.client_key import ClientKey
from coordinator_client.session import Admission, Member
from run_manager.events import DocumentArrived
from run_manager.run_manager import Equipment, RunManager
from runtime.retry import DEFAULT_BOUND_S, RetryPolicy
from state.documents import RunDocument
from state.phases import RunState
from state.wire import Sha256

log = logging.getLogger(__name__)

MAX_LEFT_LINEAGES = 64
LAST_REPLICA_TIMEOUT_S = 30.0
"""How long a client stays after the run is finished to hold its last replica."""
RESTORED_POLL_S = 1.0
"""How long to wait before asking again when an answer is older than what is known."""


class EndReason(StrEnum):
    """Why a client ended without an error."""

    FINISHED = "finished"
    WITHDREW = "withdrew"


@dataclass(frozen=True, slots=True)
class ClientEnd:
    """How a client's part of the run ended.

    Attributes:
        step: of the replica that it held; None without one.
        replica_digest: of that replica.
    """

    reason: EndReason
    step: int | None
    replica_digest: Sha256 | None


class DocumentFeed:
    """Run documents, each newer than the one before."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._mark: DocumentMark | None = None
        self._left: deque[str] = deque(maxlen=MAX_LEFT_LINEAGES)

    async def next(self) -> RunDocument:
        """The next document, as soon as there is one. Raises what `Member.call` does."""
        while True:
            document = await self._member.call(partial(_newer_document, after=self._mark, wait_s=self._member.wait_s))
            if document is None:
                continue
            if self._is_news(document):
                if self._mark is not None and self._mark.lineage != document.lineage:
                    self._left.append(self._mark.lineage)
                self._mark = DocumentMark(document.lineage, document.version)
                return document
            log.warning("older_document_ignored", extra={"lineage": document.lineage, "version": document.version})
            await asyncio.sleep(RESTORED_POLL_S)

    def _is_news(self, document: RunDocument) -> bool:
        if document.lineage in self._left:
            return False
        mark = self._mark
        return mark is None or mark.lineage != document.lineage or document.version > mark.version


class Agent:
    """One client of one run.

    Args:
        api: the coordinator.
        key: who the client is.
        admission: what it says when it joins.
        equipment: clock, workers, data, trainer, observer.
        reconnect_bound_s: for how long a coordinator that does not answer is tried again.
    """

    def __init__(
        self,
        api: CoordinatorApi,
        key: ClientKey,
        admission: Admission,
        equipment: Equipment,
        reconnect_bound_s: float = DEFAULT_BOUND_S,
    ) -> None:
        self._equipment = equipment
        retry_policy = RetryPolicy(equipment.clock, equipment.jitter, reconnect_bound_s)
        self._member = Member(api, key, admission, retry_policy, equipment.observer)
        self._leaving = asyncio.Event()
        self._ended = asyncio.Event()
        self._reason = EndReason.FINISHED
        self._document: RunDocument | None = None

    def finish_and_withdraw(self) -> None:
        """Leaves the run once nothing is owed to the round under way, before the next one counts on this client.

        Cancelling `run` leaves at once.
        """
        self._leaving.set()

    async def run(self) -> ClientEnd:
        """Takes part until the run is finished, or this client has withdrawn.

        Raises:
            Refused: the run does not want this client (`access-denied`, `ejected`, `fingerprint-differs`, …).
            CoordinatorUnreachable: no answer within `reconnect_bound_s`.
            EpochalError: whatever else ends the client; one error, however many came at once.
        """
        try:
            return await self._run()
        except BaseExceptionGroup as group:
            raise _first_cause(group) from None

    async def _run(self) -> ClientEnd:
        async with asyncio.TaskGroup() as group:
            manager = RunManager(self._member, self._equipment, group)
            tasks: list[asyncio.Task[None]] = []
            try:
                await self._member.join()
                tasks = [
                    group.create_task(self._follow(manager), name="follow"),
                    group.create_task(self._member.keep_session(), name="session"),
                    group.create_task(self._leave_when_asked(manager), name="leave"),
                ]
                await self._ended.wait()
                held = manager.held
            finally:
                for task in tasks:
                    task.cancel()
                await manager.aclose()
                await self._withdraw()
        step, digest = (None, None) if held is None else (held.step, held.digest)
        log.info("client_ended", extra={"reason": self._reason.value, "step": step})
        return ClientEnd(self._reason, step, digest)

    async def _follow(self, manager: RunManager) -> None:
        feed = DocumentFeed(self._member)
        while True:
            document = await feed.next()
            before, self._document = self._document, document
            self._equipment.observer(DocumentArrived(document))
            if self._leaving.is_set() and (before is None or before.round != document.round):
                self._end(EndReason.WITHDREW)
                return
            await manager.apply_state(document)
            if document.run_state is RunState.FINISHED:
                try:
                    async with asyncio.timeout(LAST_REPLICA_TIMEOUT_S):
                        await manager.replica_at(document.step - 1)
                except TimeoutError:
                    log.warning("last_replica_not_reached", extra={"step": document.step - 1})
                self._end(EndReason.FINISHED)
                return

    async def _leave_when_asked(self, manager: RunManager) -> None:
        await self._leaving.wait()
        await manager.round_done()
        self._end(EndReason.WITHDREW)

    def _end(self, reason: EndReason) -> None:
        if not self._ended.is_set():
            self._reason = reason
            self._ended.set()

    async def _withdraw(self) -> None:
        """Says goodbye; a client that was cancelled does so too, since the request is bounded."""
        if self._reason is EndReason.WITHDREW or not self._ended.is_set():
            await self._member.withdraw()


async def _newer_document(api: CoordinatorApi, after: DocumentMark | None, wait_s: float) -> RunDocument | None:
    return await api.run_document(after, wait_s)


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that the others followed from: the first one, looked for depth first."""
    first = group.exceptions[0]
    return _first_cause(first) if isinstance(first, BaseExceptionGroup) else first
