"""The read side of one coordinator's run: what its views are made of."""

import asyncio
import contextlib

from epochal.coordinator.insight.event_log import log_event
from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.insight.run_history import RunHistory
from epochal.coordinator.insight.status import Coordinating, status_of
from epochal.coordinator.machine.run import Run
from epochal.coordinator.run.publication import Published, Readers
from epochal.coordinator.run.service import CoordinatorService
from epochal.coordinator.run.store_health import StoreHealth
from epochal.state.messages.audit_reports import AuditHistory
from epochal.state.messages.evaluation_reports import EvaluationHistory
from epochal.state.messages.history_rows import speed_of
from epochal.state.messages.requests import RunStatus
from epochal.state.shown.operator_actions import ActionsPage
from epochal.state.wire import ClientId

READ_WAIT_S = 20.0
"""Maximum time for which a reader waits for a projection that is being read."""


class ReadSide:
    """The run as it is kept, the document that it publishes, its projection, and the coordinator's clock.

    Args:
        service: owns the run. Its events are logged from now on.
        history: follows its journal.

    Attributes:
        history: keeps the run's projection.
        readers: wake those who wait for news.
        since_s: since when the coordinator is there, on its clock.
    """

    def __init__(self, service: CoordinatorService, history: RunHistory) -> None:
        self._service = service
        self.history = history
        self.readers: Readers = service.readers
        self.since_s = service.now_s()
        service.watch(lambda event: log_event(event, service.run))

    @property
    def run(self) -> Run:
        """The run as it is kept."""
        return self._service.run

    @property
    def published(self) -> Published:
        """The document that the run publishes."""
        return self._service.published

    @property
    def health(self) -> StoreHealth:
        """Whether the coordinator can keep anything."""
        return self._service.health

    @property
    def projection(self) -> Projection:
        """The run's projection. Raise `Refused` as `RunHistory.history` while it is not read."""
        return self.history.history

    @property
    def known(self) -> Projection | None:
        """The run's projection; None while it is not read."""
        return self.history.history if self.history.is_read.is_set() else None

    def now_s(self) -> float:
        """Return seconds on the run's clock."""
        return self._service.now_s()

    def silent_s(self, client_id: ClientId, now_s: float) -> float:
        """Return the seconds since a member was last heard."""
        return self._service.liveness.silent_s(client_id, now_s)

    def status(self) -> RunStatus:
        """Return the run as an operator sees it; figures of the projection are missing while it is being read."""
        service, projection = self._service, self.known or Projection()
        coordinator = Coordinating(
            now_s=service.now_s(),
            liveness=service.liveness,
            tokens_per_s=speed_of(projection.rows),
            blob_bytes=service.blobs.total_bytes,
            journal_bytes=service.journal_bytes,
            problem=service.health.problem,
        )
        version = service.published.version
        why = self.history.explanations.sentence(self.known, service.run, service.health.problem)
        return status_of(service.run, version, projection, coordinator, why)

    async def ready(self, within_s: float = READ_WAIT_S) -> None:
        """Return once the projection is read, or cannot be, or after some time."""
        if not self.history.has_problem:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self.history.is_read.wait()

    async def evaluations(self) -> EvaluationHistory:
        """Return the run's evaluations, once the projection is read. Raise as `projection`."""
        await self.ready()
        return EvaluationHistory(self.projection.evaluations)

    async def audits(self) -> AuditHistory:
        """Return the audits that were reported last, once the projection is read. Raise as `projection`."""
        await self.ready()
        return AuditHistory(self.projection.audits)

    def actions(self) -> ActionsPage:
        """Return the last actions of the run's operators. Raise as `projection`."""
        run, projection = self.run, self.projection
        actions = tuple(projection.actions)
        return ActionsPage(run.state_file.run_id, run.identity.lineage, projection.next_action, actions)
