"""A real coordinator in this process, over memory and ASGI, and a client that does by hand what a test tells it."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.api.app import create_app
from coordinator.auth.admin import AdminToken
from coordinator.auth.nonces import JoinNonces
from coordinator.auth.signing_key import SigningKey
from coordinator.auth.tokens import SessionTokens
from coordinator.handlers import Handlers
from coordinator.layout_cache import LayoutCache
from coordinator.machine.run import current_checkpointer
from coordinator.opening import ServiceOptions
from coordinator.service import CoordinatorService
from coordinator.store.memory import MemoryStore
from runtime.clock import SystemClock
from runtime.worker_thread import InlineWorker
from state.config.state_file import StateFile
from state.messages import Capabilities, JoinRequest, join_message
from state.phases import RunState
from state.refusals import PROBLEM_TYPE_PREFIX, Refusal
from state.replica import Replica, checkpoint_bytes, replica_digest
from state.results import ResultHeader, encode_result
from state.tensors import Tensors
from state.wire import ClientId, Sha256, canonical_json, client_id_of, sha256_hex

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


@contextlib.asynccontextmanager
async def served(state: StateFile) -> AsyncIterator[Served]:
    """Serve a run in this process until the context is left."""
    key = SigningKey(bytes(range(32)))
    nonces, tokens = JoinNonces(key, state.run_id), SessionTokens(key, state.run_id)
    parts = ServiceOptions(MemoryStore(state.blobs.max_total_bytes), SystemClock(), key.public_key_hex)
    service = await CoordinatorService.open(parts, state)
    admin = AdminToken(hashlib.sha256(ADMIN.encode()).digest())
    handlers = Handlers(service, nonces, tokens, admin, LayoutCache(), InlineWorker())
    transport = httpx.ASGITransport(create_app(handlers, "test"), raise_app_exceptions=False)
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://coordinator") as http,
        asyncio.TaskGroup() as tasks,
    ):
        serving = tasks.create_task(service.serve())
        await service.started.wait()
        yield Served(service, handlers, http, f"/v1/runs/{state.run_id}")
        serving.cancel()


@dataclass
class HandClient:
    """One client, by hand. `number` makes its key."""

    served: Served
    number: int
    token: str = ""
    ticket: str = ""
    key: Ed25519PrivateKey = field(init=False)

    def __post_init__(self) -> None:
        self.key = Ed25519PrivateKey.from_private_bytes(bytes([self.number]) * 32)

    @property
    def public_key(self) -> bytes:
        return self.key.public_key().public_bytes_raw()

    @property
    def client_id(self) -> ClientId:
        return client_id_of(self.public_key)

    async def challenge(self) -> str:
        answer = await self.send("POST", "/clients/challenge", {"public_key": self.public_key.hex()})
        assert answer.status_code == 200, answer.text
        nonce: str = answer.json()["nonce"]
        return nonce

    def join_request(self, nonce: str, **changes: Any) -> dict[str, Any]:
        message = join_message(self.served.service.run.state_file.run_id, nonce, self.public_key.hex())
        request = JoinRequest(self.public_key.hex(), nonce, self.key.sign(message).hex(), Capabilities())
        plain: dict[str, Any] = json.loads(canonical_json(request))
        return plain | changes

    async def join(self) -> None:
        answer = await self.send("POST", "/clients", self.join_request(await self.challenge()))
        assert answer.status_code == 200, answer.text
        self.token, self.ticket = answer.json()["session_token"], answer.json()["data_ticket"]

    async def send(self, method: str, place: str, body: Any = None, token: str | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token or self.token}"} if token or self.token else {}
        url = place if place.startswith("/v1") or place.startswith("/docs") else self.served.run_url + place
        content = body if isinstance(body, bytes | None) else canonical_json(body)
        return await self.served.http.request(method, url, content=content, headers=headers)

    async def publish_checkpoint(self, replica: Replica) -> None:
        data = checkpoint_bytes(replica)
        report = {
            "step": replica.step,
            "replica_digest": replica_digest(replica),
            "blob_sha256": sha256_hex(data),
            "size_bytes": len(data),
        }
        answer = await self.send("POST", "/checkpoints", report)
        assert answer.status_code == 200, answer.text
        answer = await self.send("PUT", f"/v1/blobs/{sha256_hex(data)}", data)
        assert answer.status_code == 201, answer.text

    async def ready(self, replica: Replica, fingerprint: str = "data") -> httpx.Response:
        report = {
            "step": replica.step,
            "replica_digest": replica_digest(replica),
            "data_fingerprint": fingerprint,
        }
        return await self.send("POST", "/ready", report)

    def result(self, replica: Replica, difference: Tensors, **header: Any) -> bytes:
        current = self.served.service.run.round
        assert current is not None
        fields: dict[str, Any] = {
            "run_id": self.served.service.run.state_file.run_id,
            "step": current.step,
            "attempt": current.attempt,
            "client_id": self.client_id,
            "work_sha256": current.work_sha256,
            "replica_digest": replica_digest(replica),
        }
        return encode_result(ResultHeader(**(fields | header)), difference)

    async def commit(self, data: bytes, sha256: Sha256 | None = None) -> httpx.Response:
        current = self.served.service.run.round
        assert current is not None
        report = {
            "step": current.step,
            "attempt": current.attempt,
            "result_sha256": sha256 or sha256_hex(data),
            "size_bytes": len(data),
            "metrics": {"loss": 1.0, "tokens": 1, "train_s": 0.1},
        }
        return await self.send("POST", "/results", report)


def problem(answer: httpx.Response) -> str:
    """The kind of a problem, once its form is checked."""
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    kind = str(body["type"]).removeprefix(PROBLEM_TYPE_PREFIX)
    assert (body["status"], answer.status_code) == (Refusal.of(kind).status,) * 2
    assert body["detail"]
    return kind


async def phase(coordinator: Served, wanted: RunState) -> None:
    async with asyncio.timeout(20):
        version = -1
        while coordinator.service.run.phase is not wanted:
            published = await coordinator.service.readers.wait_published(version, None, 1.0)
            version = version if published is None else published.version


async def training(coordinator: Served, count: int = 2) -> list[HandClient]:
    """That many clients in the first RoundTrain."""
    clients = [HandClient(coordinator, number) for number in range(1, count + 1)]
    for client in clients:
        await client.join()
    await phase(coordinator, RunState.WARMUP)
    writer = current_checkpointer(coordinator.service.run)
    await next(client for client in clients if client.client_id == writer).publish_checkpoint(REPLICA)
    for client in clients:
        assert (await client.ready(REPLICA)).status_code == 200
    await phase(coordinator, RunState.ROUND_TRAIN)
    return clients
