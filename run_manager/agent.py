"""A whole client: it joins, follows the run document, and passes each document to `RunManager`, until the run ends.

The rules kept here: the client follows the run document all the time, because that is its heartbeat; and a client that
is asked to leave finishes the present round first.
"""

import asyncio
import logging
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum

from epochal.coordinator_client.api import CoordinatorApi
from epochal.coordinator_client.follow import DocumentFeed
from epochal.coordinator_client.session import ClientProfile, CoordinatorSession
from epochal.run_manager.client_round_times import RoundTimes
from epochal.run_manager.context import ClientDependencies, FollowedConfig
from epochal.run_manager.events import DocumentArrived
from epochal.run_manager.run_manager import RunManager
from epochal.runtime.task_errors import first_error
from epochal.state.documents import RunDocument
from epochal.state.errors import CoordinatorUnreachable, Refused
from epochal.state.messages.requests import LeavingReport
from epochal.state.messages.round_times import LaterTimes, TimesReport
from epochal.state.phase_names import RunState
from epochal.state.shown.waiting_words import WAITS_FOR_PEOPLE, awaited_by
from epochal.state.wire import Blake3

log = logging.getLogger(__name__)

WAIT_WARNING_S = 60.0
"""Time after which a client warns that it still waits for the same thing."""
LEAVE_BOUND_S = 60.0
"""Maximum time for which a client that is asked to leave finishes its round."""
LEAVE_REFUSED_S = 5.0
"""Such a client leaves earlier if the coordinator does not answer, or refuses its requests for now, for this long."""
LEAVE_CHECK_S = 0.25
LAST_REPLICA_TIMEOUT_S = 30.0
"""Maximum time that a client waits for its last replica after the run is finished."""


class WaitingNotice:
    """Logs what a client waits for: at once if only people can end the wait, and with a warning once it takes long.

    A wait is named once at each level. `run_manager/replica/keeper.py` names missing blobs. Call `close` at the end.
    """

    def __init__(self) -> None:
        self._phase: RunState | None = None
        self._awaited: str | None = None
        self._warning: asyncio.TimerHandle | None = None

    def saw(self, document: RunDocument) -> None:
        """Take a newer run document. If it waits for something else than before, the time starts again."""
        now_awaited, before = awaited_by(document), self._phase
        self._phase = document.run_state
        if self._phase in WAITS_FOR_PEOPLE and self._phase is not before:
            log.info("waits", extra={"for": now_awaited})
        if now_awaited != self._awaited:
            self.close()
            self._awaited = now_awaited
            if now_awaited is not None:
                self._warning = asyncio.get_running_loop().call_later(WAIT_WARNING_S, self._warn)

    def close(self) -> None:
        """Give no further warning."""
        if self._warning is not None:
            self._warning.cancel()
            self._warning = None

    def _warn(self) -> None:
        log.warning("still_waits", extra={"for": self._awaited, "waited_s": WAIT_WARNING_S})


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
    replica_digest: Blake3 | None


class Agent:
    """One client of one run.

    Args:
        api: the coordinator.
        profile: who the client is.
        dependencies: retries, workers, data, trainer, observer.
        leave_bound_s: maximum time to finish the round when the client is asked to leave.
    """

    def __init__(
        self,
        api: CoordinatorApi,
        profile: ClientProfile,
        dependencies: ClientDependencies,
        leave_bound_s: float = LEAVE_BOUND_S,
    ) -> None:
        self._times = RoundTimes(dependencies.retry_policy.clock.monotonic_s, dependencies.observer)
        self._dependencies = replace(dependencies, observer=self._times.observe)
        self._leave_bound_s = leave_bound_s
        self._session = CoordinatorSession(api, profile, dependencies.retry_policy, self._times.observe)
        self._leaving = asyncio.Event()
        self._ended = asyncio.Event()
        self._reason = EndReason.FINISHED
        self._document: RunDocument | None = None

    def finish_and_withdraw(self) -> None:
        """Leave the run after the present round, before the next roster includes this client.

        Where inner states are revealed, it stays until the outcome is known, to reveal those of the round. It takes no
        longer than the bound, even while the client waits. Cancelling `run` leaves at once.
        """
        self._leaving.set()

    async def run(self) -> ClientEnd:
        """Take part until the run is finished, or this client has withdrawn.

        Raises:
            Refused: the run does not admit this client (`access-denied`, `ejected`, `fingerprint-differs`, …).
            CoordinatorUnreachable: no answer for as long as the retry policy allows.
            EpochalError: another error ends the client; the first one, if several came at once.
        """
        try:
            return await self._run()
        except BaseExceptionGroup as group:
            raise first_error(group) from None

    async def _run(self) -> ClientEnd:
        async with asyncio.TaskGroup() as group:
            manager = RunManager(self._session, self._dependencies, self._times, group)
            tasks: list[asyncio.Task[None]] = []
            try:
                tasks = [
                    group.create_task(self._take_part(manager), name="take part"),
                    group.create_task(self._leave_when_asked(manager), name="leave"),
                ]
                await self._ended.wait()
                held = manager.held
            finally:
                for task in tasks:
                    task.cancel()
                await manager.aclose()
                await self._session.known.save()
                await self._withdraw(self._times.last())
        step, digest = (None, None) if held is None else (held.step, held.digest)
        log.info("client_ended", extra={"reason": self._reason.value, "step": step})
        return ClientEnd(self._reason, step, digest)

    async def _take_part(self, manager: RunManager) -> None:
        await self._session.check_admission()
        await self._check_trainer()
        await self._session.join()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(manager), name="follow")
            group.create_task(self._session.keep_session(), name="session")

    async def _check_trainer(self) -> None:
        """Read the run as anybody may, and check whether this client can train it: before others count on it."""
        check = self._dependencies.check_trainer
        if check is not None:
            document = await self._session.run_document(None, 0.0)
            assert document is not None, "a request that names no version is answered at once"
            await (await FollowedConfig.read(self._session, document, check)).check()

    async def _follow(self, manager: RunManager) -> None:
        with closing(WaitingNotice()) as notice:
            await self._follow_documents(manager, notice)

    async def _follow_documents(self, manager: RunManager, notice: WaitingNotice) -> None:
        clock = self._dependencies.retry_policy.clock
        feed = DocumentFeed(self._session, self._session.known.mark)
        while True:
            document = await feed.next(self._session.wait_s)
            notice.saw(document)
            before, self._document = self._document, document
            await self._session.known.saw(document, clock.monotonic_s())
            self._dependencies.observer(DocumentArrived(document))
            if self._leaving.is_set() and (before is None or before.round != document.round):
                if manager.may_be_challenged:
                    await self._reveal_last(manager, document.step - 1)
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
        clock = self._dependencies.retry_policy.clock
        at_latest_s = clock.monotonic_s() + self._leave_bound_s
        async with asyncio.TaskGroup() as group:
            group.create_task(self._session.report_once(LeavingReport()))
            round_done = group.create_task(self._nothing_owed(manager))
            while not round_done.done():
                refused_s = self._session.repeating_s
                if clock.monotonic_s() >= at_latest_s or refused_s >= LEAVE_REFUSED_S:
                    log.warning("left_before_the_round_was_done", extra={"requests_repeated_for_s": round(refused_s)})
                    round_done.cancel()
                await asyncio.wait({round_done}, timeout=LEAVE_CHECK_S)
        self._end(EndReason.WITHDREW)

    async def _nothing_owed(self, manager: RunManager) -> None:
        """Return when this client owes nothing more: its result, and what the outcome of that may ask for."""
        await manager.round_done()
        if manager.may_be_challenged:
            await self._ended.wait()  # `_reveal_last` comes before it
        await manager.revealed()

    async def _reveal_last(self, manager: RunManager, step: int) -> None:
        """Reveal the inner states for which the outcome of this step asks; `_leave_when_asked` bounds it."""
        try:
            await manager.reveal(step)
        except (Refused, CoordinatorUnreachable) as error:
            log.info("inner_state_not_revealed", extra={"reason": error.message})

    def _end(self, reason: EndReason) -> None:
        if not self._ended.is_set():
            self._reason = reason
            self._ended.set()

    async def _withdraw(self, times: LaterTimes | None) -> None:
        """Report the times of the last round and withdraw, also when cancelled, because both requests are bounded."""
        if times is not None:
            await self._session.report_once(TimesReport(times))
        if self._reason is EndReason.WITHDREW or not self._ended.is_set():
            await self._session.withdraw()
