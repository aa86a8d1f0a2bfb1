"""The run's first checkpoint over HTTP: from the operator, and from elected members where the run trusts them."""

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest

from epochal.coordinator.machine.parts.checkpointers import current_checkpointer
from epochal.coordinator.run.genesis import Genesis
from epochal.coordinator_client.http import CoordinatorClient
from epochal.state.config.model_table import Architecture, ModelSpec
from epochal.state.errors import InvalidDocument
from epochal.state.model.first_model import FirstModel, first_checkpoint, model_digest, model_document
from epochal.state.model.replica import Replica, checkpoint_bytes, replica_digest
from epochal.state.model.tensors import TensorLayout
from epochal.state.phase_names import RunState
from epochal.state.wire import sha256_hex
from tests.support.data.states import state_file
from tests.support.drive.served import (
    ADMIN,
    GENESIS,
    REPLICA,
    SPEC,
    Served,
    WireClient,
    layout_of,
    phase,
    problem,
    served,
)

FIRST = checkpoint_bytes(REPLICA)


def replica_of(value: float, shape: tuple[int, ...] = (2, 3), momentum: float = 0.0, name: str = "w") -> Replica:
    values, zeros = np.full(shape, value, np.float32), np.full(shape, momentum, np.float32)
    return Replica(0, {name: values}, {name: zeros})


SPOILED = {
    "header": b"no checkpoint",
    "step": checkpoint_bytes(dataclasses.replace(REPLICA, step=5)),
    "finite": checkpoint_bytes(replica_of(np.nan)),
    "max_abs": checkpoint_bytes(replica_of(3e38)),
    "momentum": checkpoint_bytes(replica_of(1.0, momentum=1.0)),
    "momentum missing": checkpoint_bytes(dataclasses.replace(REPLICA, momentum={})),
    "layout": checkpoint_bytes(replica_of(1.0, (3, 2))),
    "layout by name": checkpoint_bytes(replica_of(1.0, name="evil")),
}


@pytest.fixture
async def awaiting() -> AsyncIterator[Served]:
    """A run whose operator has yet to deliver its first checkpoint."""
    state = state_file(config__waiting_for_members_extra_time=0.001)
    async with served(state, Genesis(layout_of)) as running:
        yield running


@pytest.fixture
async def electing() -> AsyncIterator[Served]:
    """A run whose members make the first checkpoint."""
    state = state_file(config__waiting_for_members_extra_time=0.001, access__genesis="members")
    async with served(state, Genesis(layout_of)) as running:
        yield running


async def deliver(run: Served, data: bytes, token: str = ADMIN, sha256: str | None = None) -> httpx.Response:
    url = f"{run.run_url}/genesis/{sha256 or sha256_hex(data)}"
    return await run.http.put(url, content=data, headers={"Authorization": f"Bearer {token}"})


async def test_run_whose_model_is_made_at_its_start_waits_for_none() -> None:
    async with served(state_file()) as run:
        status = (await run.http.get(f"{run.run_url}/status")).json()
    assert status["reason"] == "the coordinator serves the run"


async def test_first_checkpoint_of_a_run_without_momentum_has_none() -> None:
    state = state_file(config__waiting_for_members_extra_time=0.001, merge__outer_momentum=0.0)
    plain = dataclasses.replace(REPLICA, momentum={})
    async with served(state, Genesis(layout_of)) as run:
        refused = await deliver(run, FIRST)
        assert (refused.status_code, refused.json()["rule"]) == (422, "momentum")
        answer = await deliver(run, checkpoint_bytes(plain))
        assert (answer.status_code, answer.json()["replica_digest"]) == (201, replica_digest(plain))


async def test_delivered_first_checkpoint_starts_the_run_and_is_shown(awaiting: Served) -> None:
    clients = [WireClient(awaiting, number) for number in (1, 2)]
    for client in clients:
        await client.join()
    assert problem(await awaiting.http.get(f"{awaiting.run_url}/checkpoints/latest")) == "not-found"
    answer = await deliver(awaiting, FIRST)
    assert answer.status_code == 201
    assert answer.json()["replica_digest"] == replica_digest(REPLICA)
    assert (await deliver(awaiting, FIRST)).json() == answer.json()
    await phase(awaiting, RunState.WARMUP)
    assert (await clients[0].ready(REPLICA)).status_code == 200


@pytest.mark.parametrize("spoiled", SPOILED)
async def test_first_checkpoint_that_breaks_a_rule_is_refused_by_name(awaiting: Served, spoiled: str) -> None:
    answer = await deliver(awaiting, SPOILED[spoiled])
    assert (problem(answer), answer.json()["rule"]) == ("result-invalid", spoiled.split()[0])
    assert awaiting.service.run.models.checkpoint is None
    assert await awaiting.service.blobs.size(sha256_hex(SPOILED[spoiled])) is None
    assert (await deliver(awaiting, FIRST)).status_code == 201


async def test_first_checkpoint_needs_the_right_digest_and_size(awaiting: Served) -> None:
    assert problem(await deliver(awaiting, FIRST, sha256="0" * 64)) == "blob-mismatch"
    assert problem(await deliver(awaiting, FIRST + bytes(100_000))) == "blob-too-large"
    assert awaiting.service.run.models.checkpoint is None
    assert awaiting.service.blobs.total_bytes == 0


async def test_first_checkpoint_of_unknown_length_is_refused(awaiting: Served) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield FIRST

    url = f"{awaiting.run_url}/genesis/{sha256_hex(FIRST)}"
    answer = await awaiting.http.put(url, content=pieces(), headers={"Authorization": f"Bearer {ADMIN}"})
    assert problem(answer) == "invalid-parameter"


async def test_run_that_has_begun_takes_no_other_first_checkpoint(coordinator: Served) -> None:
    assert problem(await deliver(coordinator, checkpoint_bytes(replica_of(2.0)))) == "not-now"
    assert coordinator.service.run.models.checkpoint is not None
    assert coordinator.service.run.models.checkpoint.replica_digest == replica_digest(REPLICA)


async def test_no_member_can_offer_the_operators_first_checkpoint(awaiting: Served) -> None:
    client = WireClient(awaiting, 1)
    await client.join()
    report = {"step": 0, "replica_digest": "ab" * 32, "blob_sha256": sha256_hex(FIRST), "size_bytes": len(FIRST)}
    assert problem(await client.send("POST", "/checkpoints", report)) == "not-now"
    assert problem(await client.put_blob(FIRST)) == "not-committed"


@pytest.mark.parametrize("spoiled", SPOILED)
async def test_member_that_spoils_the_first_checkpoint_is_followed_by_the_next(electing: Served, spoiled: str) -> None:
    clients = [WireClient(electing, number) for number in (1, 2)]
    for client in clients:
        await client.join()
    await phase(electing, RunState.WARMUP)
    wanted = current_checkpointer(electing.service.run.models, electing.service.run.members)
    writer, other = sorted(clients, key=lambda client: client.client_id != wanted)
    data = SPOILED[spoiled]
    report = {"step": 0, "replica_digest": "ab" * 32, "blob_sha256": sha256_hex(data), "size_bytes": len(data)}
    assert (await writer.send("POST", "/checkpoints", report)).status_code == 200
    answer = await writer.put_blob(data)
    assert (problem(answer), answer.json()["rule"]) == ("result-invalid", spoiled.split()[0])
    assert await electing.service.blobs.size(sha256_hex(data)) is None
    assert current_checkpointer(electing.service.run.models, electing.service.run.members) == other.client_id
    await other.publish_checkpoint(REPLICA)
    assert electing.service.run.models.checkpoint is not None


async def test_restart_of_a_run_with_a_checkpoint_makes_none() -> None:
    made = []

    async def make(step: int) -> FirstModel:
        made.append(step)
        return FirstModel.of(SPEC, REPLICA)

    async with served(state_file(), dataclasses.replace(GENESIS, make=make)) as first:
        store = first.store
    assert made == [0]
    async with served(state_file(), dataclasses.replace(GENESIS, make=make), store) as again:
        assert again.service.run.models.checkpoint is not None
    assert made == [0]


HUB = {"model__LLM__architecture": "HfLlama", "model__LLM__checkpoint": {"Hub": {"repo_id": "a/b"}}}
OPEN_SPEC = state_file(**HUB).model.LLM.spec
"""The spec as far as the state file of a run says it whose config is in a repository."""
LLAMA = OPEN_SPEC.model_copy(
    update={"hf": {"model_type": "llama", "rope_theta": 10000.0, "names": ["ü", '"'], "x": None}}
)


def delivered(spec: ModelSpec) -> bytes:
    return first_checkpoint(FirstModel.of(spec, REPLICA)).to_bytes()


async def model_in(run: Served) -> ModelSpec:
    """The run's model, as a client gets it."""
    client = CoordinatorClient(run.http, run.service.run.state_file.run_id)
    document = await client.run_document(None, 0.0)
    assert document is not None
    assert document.model_sha256 is not None
    return await client.model(document.model_sha256)


async def test_model_document_of_the_first_checkpoint_survives_a_restart() -> None:
    async with served(state_file(**HUB), Genesis(layout_of)) as awaiting:
        assert awaiting.service.published.document.model_sha256 is None
        assert (await deliver(awaiting, delivered(LLAMA))).status_code == 201
        assert await model_in(awaiting) == LLAMA
        answer = await awaiting.http.get(f"{awaiting.run_url}/model/{model_digest(LLAMA)}")
        assert answer.content == model_document(LLAMA)
        assert "immutable" in answer.headers["cache-control"]
        store = awaiting.store
    async with served(state_file(**HUB), Genesis(layout_of), store) as again:
        assert await model_in(again) == LLAMA


async def test_run_of_the_embedded_model_has_a_model_document_too(coordinator: Served) -> None:
    assert await model_in(coordinator) == SPEC


async def test_unknown_model_document_is_not_found(coordinator: Served) -> None:
    assert problem(await coordinator.http.get(f"{coordinator.run_url}/model/{'0' * 64}")) == "not-found"


@pytest.mark.parametrize(
    ("state", "data"),
    [
        (HUB, FIRST),
        (HUB, delivered(OPEN_SPEC)),
        (HUB, delivered(SPEC)),
        (HUB, delivered(LLAMA.model_copy(update={"architecture": Architecture.HF_AUTO}))),
        ({}, delivered(LLAMA)),
        ({}, checkpoint_bytes(REPLICA, "{}")),
        ({**HUB, "model__LLM__hf": {"model_type": "llama"}}, delivered(LLAMA)),
    ],
)
async def test_first_checkpoint_of_a_model_that_the_run_does_not_have_is_refused(
    state: dict[str, Any], data: bytes
) -> None:
    async with served(state_file(**state), Genesis(layout_of)) as awaiting:
        answer = await deliver(awaiting, data)
        assert (problem(answer), answer.json()["rule"]) == ("result-invalid", "model")
        assert awaiting.service.run.models.checkpoint is None


async def test_member_cannot_bring_another_model(electing: Served) -> None:
    clients = [WireClient(electing, number) for number in (1, 2)]
    for client in clients:
        await client.join()
    await phase(electing, RunState.WARMUP)
    wanted = current_checkpointer(electing.service.run.models, electing.service.run.members)
    writer = next(client for client in clients if client.client_id == wanted)
    data = delivered(LLAMA)
    report = {"step": 0, "replica_digest": "ab" * 32, "blob_sha256": sha256_hex(data), "size_bytes": len(data)}
    assert (await writer.send("POST", "/checkpoints", report)).status_code == 200
    answer = await writer.put_blob(data)
    assert (problem(answer), answer.json()["rule"]) == ("result-invalid", "model")


async def test_spec_of_no_model_is_refused_by_name() -> None:
    def no_layout(spec: ModelSpec) -> TensorLayout:
        raise InvalidDocument("a first checkpoint of no model: 3 heads of 32 numbers", rule="model")

    async with served(state_file(**HUB), Genesis(no_layout)) as awaiting:
        answer = await deliver(awaiting, delivered(LLAMA))
        assert (problem(answer), answer.json()["rule"]) == ("result-invalid", "model")
        assert "3 heads" in answer.json()["detail"]
    async with served(state_file(**HUB, model__LLM__hf={"model_type": "llama"}), Genesis(no_layout)) as awaiting:
        answer = await deliver(awaiting, FIRST)
        assert (problem(answer), answer.json()["rule"]) == ("result-invalid", "model"), "it has no bound for its size"
