"""A real coordinator in this process, over memory and ASGI, and a client by hand that sees the HTTP."""

import asyncio
import contextlib
import hashlib
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from prometheus_client import CollectorRegistry

from epochal.coordinator.api.app import create_app
from epochal.coordinator.api.coordinator_metrics import CoordinatorMetrics
from epochal.coordinator.auth.admin import AdminToken
from epochal.coordinator.auth.nonces import JoinNonces
from epochal.coordinator.auth.signing_key import SigningKey
from epochal.coordinator.auth.tokens import SessionTokens
from epochal.coordinator.blobs.downloads import Downloads
from epochal.coordinator.blobs.from_object_store import Arrivals
from epochal.coordinator.blobs.intake import Intake
from epochal.coordinator.blobs.leased_replays import LeasedReplays
from epochal.coordinator.blobs.update_maker import UpdateMaker
from epochal.coordinator.blobs.uploads import Uploads
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.insight.history_views import HistoryViews
from epochal.coordinator.insight.read_side import ReadSide
from epochal.coordinator.insight.run_history import RunHistory
from epochal.coordinator.insight.viewers import Viewers
from epochal.coordinator.run.genesis import Genesis, LayoutOf, unknown_layout
from epochal.coordinator.run.long_polls import LongPolls
from epochal.coordinator.run.opening import ServiceOptions
from epochal.coordinator.run.service import CoordinatorService
from epochal.coordinator.serve import serving
from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.clock import SystemClock
from epochal.runtime.files.spool import Spool
from epochal.runtime.merging.merger import Merger
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.model_table import ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.messages.deliveries import MEDIA_TYPE, encoded_delivery
from epochal.state.messages.requests import ReadyReport, ResultCommitment, ResultMetrics
from epochal.state.messages.round_times import GpuUse
from epochal.state.model.first_model import FirstModel
from epochal.state.model.replica import Replica, replica_digest
from epochal.state.model.tensors import TensorLayout, Tensors
from epochal.state.phase_names import RunState
from epochal.state.refusals import PROBLEM_TYPE_PREFIX, Refusal
from epochal.state.wire import Sha256, canonical_json, sha256_hex
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.drive.hand_client import HandClient, NamedRound
from tests.support.drive.run_place import RunPlace
from tests.support.servers.plain_http import PLAIN
from tests.support.simulate.memory_store import MemoryStore

ADMIN = "the admin token"
REPLICA = Replica(0, {"w": np.ones((2, 3), np.float32)}, {"w": np.zeros((2, 3), np.float32)})
DIFFERENCE = {"w": np.full((2, 3), 0.5, np.float32)}


@dataclass
class Served:
    """A coordinator that is served."""

    service: CoordinatorService
    handlers: Handlers
    http: httpx.AsyncClient
    run_url: str
    store: MemoryStore | None = None
    admin_token: str = ADMIN
    clients: list["WireClient"] = field(default_factory=list)
    """Those made for it, whose connections to an object store end with it."""

    async def close_clients(self) -> None:
        """Close the connections of its clients."""
        for client in self.clients:
            await client.api.aclose()

    @property
    def insight(self) -> ReadSide:
        """The coordinator's read side."""
        return self.handlers.insight


SPEC = state_file().model.LLM.spec


def layout_of(spec: ModelSpec) -> TensorLayout:
    """The layout of `REPLICA`, whatever the model."""
    return REPLICA.layout


async def make_genesis(step: int) -> FirstModel:
    """`REPLICA`, with which every run here starts, as the operator's command makes the first model."""
    return FirstModel.of(SPEC, replace(REPLICA, step=step))


GENESIS = Genesis(layout_of, make_genesis)


def handlers_of(
    service: CoordinatorService, history: RunHistory, key: SigningKey, layout_of: LayoutOf = unknown_layout
) -> Handlers:
    """Return a service's handlers, which use no threads."""
    run_id = service.run.state_file.run_id
    admin = AdminToken(hashlib.sha256(ADMIN.encode()).digest())
    nonces, tokens = JoinNonces(key, run_id), SessionTokens(key, run_id)
    intake = Intake(service, InlineWorker(), layout_of)
    uploads, arrivals = Uploads(intake), Arrivals(intake)
    insight = ReadSide(service, history)
    downloads, replays = Downloads(service), LeasedReplays.of(service)
    return Handlers(service, nonces, tokens, admin, intake, uploads, downloads, arrivals, replays, insight)


def update_maker_of(handlers: Handlers, spool: Spool | None = None) -> UpdateMaker:
    """Return what makes the updates of a service's run, without threads."""
    spool = spool or Spool(Path(tempfile.gettempdir()))
    return UpdateMaker(handlers.intake, Merger(handlers.service.merge_at, spool, InlineWorker()), spool)


@contextlib.asynccontextmanager
async def served(
    state: StateFile,
    genesis: Genesis = GENESIS,
    store: MemoryStore | None = None,
    spool: Spool | None = None,
    new_maker: Callable[[Handlers, Spool | None], UpdateMaker] = update_maker_of,
) -> AsyncIterator[Served]:
    """Serve a run in this process, a new one unless a store is given, until the context is left."""
    private_key = bytes(range(32))
    key = SigningKey(private_key)
    store = store or MemoryStore(state.blobs.max_total_bytes, private_key=private_key)
    history = RunHistory(store.journal, InlineWorker())
    parts = ServiceOptions(store, SystemClock(), key.public_key_hex, history, genesis=genesis)
    service = await CoordinatorService.open(parts, state)
    handlers = handlers_of(service, history, key, genesis.layout_of)
    transport = httpx.ASGITransport(create_app(handlers, "test"), raise_app_exceptions=False)
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://coordinator") as http,
        asyncio.TaskGroup() as tasks,
    ):
        serving = tasks.create_task(service.serve())
        await service.started.wait()
        updating = tasks.create_task(new_maker(handlers, spool).run())
        run = Served(service, handlers, http, f"/v1/runs/{state.run_id}", store)
        yield run
        await run.close_clients()
        await handlers.uploads.aclose()
        updating.cancel()
        serving.cancel()


@contextlib.asynccontextmanager
async def served_over_sockets(
    place: Path | RunPlace, genesis: Genesis = GENESIS, /, **overrides: Any
) -> AsyncIterator[Served]:
    """Serve a run over real sockets, kept in a folder or another place; `overrides` replace fields of its state."""
    state = state_file(config__waiting_for_members_extra_time=0.001, **overrides)
    async with (
        serving(state, RunPlace.at(place).serve_options(genesis=genesis)) as running,
        httpx.AsyncClient(base_url=running.url, timeout=BOUND_S, verify=PLAIN) as http,
    ):
        run_url, token = f"/v1/runs/{state.run_id}", running.admin_token or ADMIN
        yield Served(running.handlers.service, running.handlers, http, run_url, admin_token=token)


def measured(coordinator: Served) -> CoordinatorMetrics:
    """Return new metrics of a coordinator."""
    metrics = CoordinatorMetrics(CollectorRegistry())
    insight = coordinator.insight
    viewers = Viewers(insight, HistoryViews(insight, InlineWorker()))
    handlers = coordinator.handlers
    metrics.watch(coordinator.service, insight, LongPolls(), handlers.arrivals, viewers, handlers.replays)
    return metrics


class WireClient(HandClient):
    """A client by hand that shows what HTTP answers."""

    def __init__(self, served: Served, number: int) -> None:
        super().__init__(CoordinatorClient(served.http, served.service.run.state_file.run_id), number)
        self.served = served
        served.clients.append(self)

    async def send(self, method: str, place: str, body: Any = None, token: str | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token or self.token}"} if token or self.token else {}
        url = place if place.startswith("/v1") or place.startswith("/docs") else self.served.run_url + place
        content = body if isinstance(body, bytes | None) else canonical_json(body)
        return await self.served.http.request(method, url, content=content, headers=headers)

    async def deliver(self, data: bytes) -> httpx.Response:
        """Deliver a result with its commitment."""
        body = encoded_delivery(self.commitment(data), data)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": MEDIA_TYPE}
        return await self.served.http.post(f"{self.served.run_url}/deliveries", content=body, headers=headers)

    async def put_blob(self, data: bytes) -> httpx.Response:
        return await self.send("PUT", f"/v1/blobs/{sha256_hex(data)}", data)

    async def ready(self, replica: Replica, fingerprint: str = "data") -> httpx.Response:
        report = ReadyReport(replica.step, replica_digest(replica), fingerprint)
        return await self.send("POST", "/ready", report)

    def result(self, replica: Replica, difference: Tensors, **header: Any) -> bytes:
        current = self.served.service.run.round
        assert current is not None
        head = NamedRound(current.number.step, current.number.attempt, current.tasks.work_sha256)
        return self.encoded_result(head, replica, difference, **header)

    async def commit(self, data: bytes, sha256: Sha256 | None = None) -> httpx.Response:
        return await self.send("POST", "/results", self.commitment(data, sha256))

    def commitment(self, data: bytes, sha256: Sha256 | None = None) -> ResultCommitment:
        """Return the commitment to a result of the round under way."""
        current = self.served.service.run.round
        assert current is not None
        metrics = ResultMetrics(loss=1.0, tokens=1, train_s=0.1, gradient_norm=0.5, gpu=GpuUse(3, 4, 0.75))
        return ResultCommitment(
            current.number.step, current.number.attempt, sha256 or sha256_hex(data), len(data), metrics
        )


def problem(answer: httpx.Response) -> str:
    """The kind of a problem, once its form is checked."""
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    kind = str(body["type"]).removeprefix(PROBLEM_TYPE_PREFIX)
    assert (body["status"], answer.status_code) == (Refusal.of(kind).status,) * 2
    assert body["detail"]
    return kind


async def phase(coordinator: Served, wanted: RunState) -> None:
    async with asyncio.timeout(BOUND_S):
        version = -1
        while coordinator.service.run.clock.phase is not wanted:
            published = await coordinator.service.readers.wait_published(version, None, 1.0)
            version = version if published is None else published.version


async def training(coordinator: Served, count: int = 2, replica: Replica = REPLICA) -> list[WireClient]:
    """That many clients in the first RoundTrain, with the run's first replica."""
    clients = [WireClient(coordinator, number) for number in range(1, count + 1)]
    for client in clients:
        await client.join()
    await phase(coordinator, RunState.WARMUP)
    for client in clients:
        assert (await client.ready(replica)).status_code == 200
    await phase(coordinator, RunState.ROUND_TRAIN)
    return clients
