"""Verifiers for tests: real ones in virtual time, which reach the coordinator without HTTP."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.files.spool import Spool
from epochal.runtime.files.spool_part import ReceivedBytes
from epochal.runtime.merging.merger import Merger
from epochal.runtime.permissions import Permissions
from epochal.runtime.retry import RetryPolicy
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.state_file import StateFile
from epochal.state.documents import CheckpointRef
from epochal.state.messages.replay_messages import (
    CalibrationReport,
    DataTicket,
    LeasedReplay,
    ReplayFailure,
    ReplayReport,
)
from epochal.state.wire import Sha256
from epochal.tools.evaluate.losses import EvaluationOptions
from epochal.tools.replays.opened_trainers import OpenedTrainers, Opening
from epochal.tools.replays.past_replicas import PastReplicas
from epochal.tools.replays.replay_worker import REPLICAS_BEYOND, Machinery, ReplayWorker, VerifierOptions
from epochal.tools.replays.session import FollowedRun, RepeatedRequests
from tests.support.data.spooled import SPOOL_PARENT
from tests.support.data.stored_blobs import blob_bytes
from tests.support.simulate.simulated_network import Link, SimulatedApi
from tests.support.simulate.simulated_run import SimulatedRun

POLLS_S = 2.0, 20.0
"""Virtual seconds between a verifier's requests for work, so that any of several may get it."""
TICKET_S = 1e7

T = TypeVar("T")


class VerifierApi(SimulatedApi):
    """The requests of a verifier, in place of HTTP.

    Attributes:
        received_bytes: of replicas, updates and results.
    """

    def __init__(self, name: str, run: SimulatedRun) -> None:
        super().__init__(run.coordinator, Link(), run.tasks, run.witness.saw)
        self._name = name
        self._run = run
        self.received_bytes = 0
        self._reports = 0

    async def checkpoints(self) -> tuple[CheckpointRef, ...]:
        return tuple(self._run.coordinator.run.models.checkpoints)

    async def get_blob(self, sha256: Sha256, file: ReceivedBytes) -> None:
        data = await blob_bytes(self._run.coordinator.store.blobs, sha256)
        self.received_bytes += len(data) - file.size_bytes
        file.append(data[file.size_bytes :])

    async def data_ticket(self) -> DataTicket:
        return DataTicket("", TICKET_S)  # the data are in this process

    async def lease_replay(self, wait_s: float) -> LeasedReplay | None:
        await asyncio.sleep(self._run.chance.uniform(*POLLS_S) if wait_s else 0.0)
        return await self._asked(lambda one: one.replays.lease(self._name, 0.0))

    async def renew_replay(self, lease: str) -> LeasedReplay:
        return self._run.coordinator.handlers().replays.renew(self._name, lease)

    async def give_back_replay(self, lease: str) -> None:
        self._run.coordinator.handlers().replays.give_back(self._name, lease)

    async def report_replay(self, report: ReplayReport) -> None:
        self._reports += 1  # every replay takes 0 ms here, and a report like an earlier one counts as its repetition
        numbered = replace(report, took_ms=self._reports)
        await self._asked(lambda one: one.report_of_verifier(self._name, numbered))

    async def report_failed_replay(self, failure: ReplayFailure) -> None:
        await self._asked(lambda one: one.report_of_verifier(self._name, failure))

    async def report_calibration(self, report: CalibrationReport) -> None:
        await self._asked(lambda one: one.report_of_verifier(self._name, report))

    async def _asked(self, request: Callable[[Any], Awaitable[T]]) -> T:
        coordinator = self._run.coordinator
        return await coordinator.ask("verifier", lambda: request(coordinator.handlers()))


async def verifier_of(
    api: VerifierApi, state: StateFile, opening: Opening, policy: RetryPolicy, *, varies: bool = True
) -> ReplayWorker:
    """Return a verifier that has begun to follow the run."""
    client: CoordinatorClient = api  # type: ignore[assignment]
    requests = RepeatedRequests(client, policy)
    run = FollowedRun(requests)
    await run.next()
    assert state.verify is not None
    spool, worker = Spool(SPOOL_PARENT), InlineWorker()
    merger = Merger.with_threads(state.merge, spool, lambda _: InlineWorker())
    replicas = PastReplicas(requests, api.checkpoints, merger, spool, worker, state.verify.within + REPLICAS_BEYOND)
    options = VerifierOptions(
        policy, SPOOL_PARENT, opening, EvaluationOptions(Permissions.of_own_run()), lambda _: None, varies=varies
    )
    parts = Machinery(run, replicas, OpenedTrainers(run, opening), spool, worker)
    return ReplayWorker(client, requests, options, parts)
