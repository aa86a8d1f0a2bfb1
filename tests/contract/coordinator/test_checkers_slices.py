"""Workers that make updates in slices: a real run in an object store; who dies, is wrong, or finds no room."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.coordinator.blobs import leased_slices
from epochal.coordinator.blobs import leases as given
from epochal.coordinator.machine.records import RecordBody
from epochal.coordinator.machine.stimuli import STIMULI, UpdateMade
from epochal.coordinator.run.genesis import Genesis
from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.broadcast import Broadcast
from epochal.runtime.files.spool import Spool
from epochal.runtime.merging import room_for_sums
from epochal.runtime.retry import RetryPolicy
from epochal.runtime.worker_thread import WorkerThread
from epochal.state import slices
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.config.model_table import ModelSpec
from epochal.state.messages.requests import Attestation
from epochal.state.messages.slice_messages import LeasedSlice
from epochal.state.model.first_model import FirstModel
from epochal.state.model.replica import Replica, replica_digest
from epochal.state.model.tensors import TensorLayout, Tensors
from epochal.state.wire import parse_document, sha256_hex
from epochal.tools.check_results import leases, stored_reads
from epochal.tools.check_results.slice_maker import SliceMaker
from tests.support.bounds import BOUND_S
from tests.support.data.spooled import spooled
from tests.support.drive.made_updates import check_update, update_of
from tests.support.drive.served import ADMIN, SPEC, Served, WireClient, problem, training
from tests.support.drive.stored_run import stored_run
from tests.support.servers.s3_door import DoorRequest, S3Door, s3_error

SHAPES: dict[str, tuple[int, ...]] = {"a": (30, 10), "b": (7,), "c": (260,), "d": (2, 2)}
PATIENCE_S, SOON_S = 600.0, 0.4


def tensors(seed: int) -> Tensors:
    chance = np.random.default_rng(seed)
    return {name: chance.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


REPLICA = Replica(0, tensors(0), {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()})


def layout_of(spec: ModelSpec) -> TensorLayout:
    return REPLICA.layout


async def make(step: int) -> FirstModel:
    return FirstModel.of(SPEC, replace(REPLICA, step=step))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of a few values, which nobody loses because the machine is slow."""
    monkeypatch.setattr(slices, "SLICE_VALUES", 1)
    monkeypatch.setattr(given, "LEASE_S", PATIENCE_S)
    monkeypatch.setattr(leased_slices, "FREE_FOR_S", PATIENCE_S)
    monkeypatch.setattr(leases, "REST_S", 0.01)
    monkeypatch.setattr(stored_reads, "RETRY_S", 0.01)


@pytest.fixture
async def run(door: S3Door) -> AsyncIterator[Served]:
    """A coordinator whose blobs are in a bucket, of a model of several tensors."""
    async with stored_run(door, Genesis(layout_of, make), merge__norm_limit=0.0) as running:
        yield running


@pytest.fixture
async def clients(run: Served) -> list[WireClient]:
    return await training(run, 3, REPLICA)


async def api_of(run: Served) -> CoordinatorClient:
    made = await run.http.post(f"{run.run_url}/tokens/checker", headers={"Authorization": f"Bearer {ADMIN}"})
    api = CoordinatorClient(run.http, run.service.run.state_file.run_id)
    api.use_token(str(made.json()["token"]))
    return api


async def present(run: Served, count: int) -> None:
    """Wait until so many workers are present."""
    async with asyncio.timeout(BOUND_S):
        while (slices := run.handlers.intake.slices).worker_count < count:
            await slices.came.wait()


class Said:
    """What workers say about the slices that they made."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._news = Broadcast()

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        self._news.notify()

    async def all(self, count: int) -> list[str]:
        """Return the lines, sorted, once there are so many."""
        async with asyncio.timeout(BOUND_S):
            while len(self.lines) < count:
                await self._news.wait()
        return sorted(self.lines)


@asynccontextmanager
async def workers(run: Served, said: Said, count: int = 1, spool: Spool | None = None) -> AsyncIterator[None]:
    """Workers that make slices meanwhile."""
    before = run.handlers.intake.slices.worker_count
    spool = spool or Spool(Path("/var/tmp"))
    async with asyncio.TaskGroup() as tasks:
        made = [
            SliceMaker(await api_of(run), RetryPolicy(), said, spool, WorkerThread(f"test-slice-{number}"))
            for number in range(count)
        ]
        working = [tasks.create_task(maker.run()) for maker in made]
        await present(run, before + count)
        yield
        for task in working:
            task.cancel()


async def deliver(clients: Sequence[WireClient]) -> None:
    """Let each client put a result into the store."""
    for number, client in enumerate(clients, 1):
        data = client.result(REPLICA, tensors(number))
        assert (await client.commit(data)).status_code == 200
        await client.api.put_blob(sha256_hex(data), spooled(data))


async def attest(run: Served, clients: Sequence[WireClient], *, without_first: bool = False) -> None:
    """Let the clients attest all results, or all but the first one."""
    current = run.service.run.round
    assert current is not None
    first = 1 << current.tasks.plan.positions[next(iter(current.results.verified))]
    received = (current.results.verified_bits or 0) & ~(first if without_first else 0)
    for client in clients:
        report = Attestation(1, 0, replica_digest(REPLICA), f"{received:x}")
        await client.send("POST", "/attestations", report)


async def play(run: Served, clients: Sequence[WireClient]) -> None:
    """Play the first round, and check that its update was made, once, of its results."""
    await deliver(clients)
    await attest(run, clients)
    await check_update(run.service, 1, REPLICA.layout)
    assert len(updates(run)) == 1


def updates(run: Served) -> list[UpdateMade]:
    """The journal's updates."""
    assert run.store is not None
    records = [record for segment in run.store.journal.segments for record in segment.records]
    found = [
        stamped.stimulus
        for record in records
        for stamped in STIMULI.validate_json(parse_document(RecordBody, record.body).stimuli)
    ]
    return [stimulus for stimulus in found if isinstance(stimulus, UpdateMade)]


async def leased(run: Served, api: CoordinatorClient, worker: str = "0" * 32) -> LeasedSlice:
    """Leases a slice by hand."""
    async with asyncio.timeout(BOUND_S):
        found = await api.lease_slice(worker, 20.0)
    assert found is not None
    return found


async def answered(run: Served, api: CoordinatorClient, method: str, place: str, body: bytes | None = None) -> Any:
    return await run.http.request(method, f"{run.run_url}/slices{place}", content=body, headers=api._headers)


async def test_workers_make_the_update_in_slices(run: Served, clients: list[WireClient], door: S3Door) -> None:
    said = Said()
    async with workers(run, said, 3):
        await play(run, clients)
        assert await said.all(3) == [
            f"update of step 1, tensors {place} of 4: the mean of 3 results" for place in ("0 to 0", "1 to 1", "2 to 3")
        ]
    reads = [request for request in door.requests if request.is_signed_url and request.method == "GET"]
    assert len(reads) == 2 * 3 * 3  # of each result each worker reads the header, and its slice


async def test_slice_of_a_worker_that_dies_is_made_by_another(
    run: Served, clients: list[WireClient], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It knows all results, and never delivers."""
    monkeypatch.setattr(given, "LEASE_S", SOON_S)
    api, said = await api_of(run), Said()
    async with asyncio.TaskGroup() as tasks:
        dying = tasks.create_task(leased(run, api))
        await present(run, 1)
        await deliver(clients)
        await dying
        monkeypatch.setattr(given, "LEASE_S", PATIENCE_S)
        async with workers(run, said):
            await attest(run, clients)
            await check_update(run.service, 1, REPLICA.layout)
            await said.all(1)
    assert "lease_ended" in caplog.messages
    assert "lease_taken_over" not in caplog.messages


@pytest.mark.parametrize("size_bytes", [None, 10], ids=["of-its-size", "short"])
async def test_worker_whose_bytes_are_wrong_gets_no_other_slice(
    run: Served, clients: list[WireClient], caplog: pytest.LogCaptureFixture, size_bytes: int | None
) -> None:
    api, said = await api_of(run), Said()
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(leased(run, api))
        await present(run, 1)
        await deliver(clients)
        found = await asked
        await attest(run, clients)
        while not found.is_whole:
            found = await api.renew_slice(found.lease, 3, 1.0)
        wanted_bytes = sum(4 * ((size + 255) // 256) + (size + 1) // 2 for _, size in REPLICA.layout.counts())
        body = bytes(wanted_bytes if size_bytes is None else size_bytes)
        assert problem(await answered(run, api, "PUT", f"/{found.lease}", body)) == "result-invalid"
        assert problem(await answered(run, api, "POST", f"?wait_s=0&worker={'0' * 32}")) == "forbidden"
        async with workers(run, said):
            await check_update(run.service, 1, REPLICA.layout)
    assert "slice_refused" in caplog.messages
    assert len(updates(run)) == 1


async def test_wrong_mean_that_keeps_all_rules_is_found(
    run: Served, clients: list[WireClient], caplog: pytest.LogCaptureFixture
) -> None:
    """The model is one slice, so that the probe is in it."""
    api = await api_of(run)
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(leased(run, api))
        await present(run, 1)
        await deliver(clients)
        found = await asked
        await attest(run, clients)
        while not found.is_whole:
            found = await api.renew_slice(found.lease, 3, 1.0)
        means = [codec_named("int4").encode(np.ones(size, np.float32)) for _, size in REPLICA.layout.counts()]
        body = b"".join(bytes(mean) for mean in means)
        assert (await answered(run, api, "PUT", f"/{found.lease}", body)).status_code == 204
        await check_update(run.service, 1, REPLICA.layout)
    assert "slice_refused" in caplog.messages
    assert problem(await answered(run, api, "POST", f"?wait_s=0&worker={'0' * 32}")) == "forbidden"


@pytest.mark.nightly
async def test_result_that_is_not_attested_is_taken_out_of_every_slice(
    run: Served, clients: list[WireClient], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    said = Said()
    async with workers(run, said, 2):
        await deliver(clients)
        await attest(run, clients, without_first=True)
        for client in clients:  # or the round would wait for other attestations
            assert (await client.send("DELETE", "/clients/me")).status_code == 204
        await update_of(run.service, 1)
        assert len(run.service.run.models.outcomes[1].entries) == 2
        assert "update_summed_anew" in caplog.messages
        await check_update(run.service, 1, REPLICA.layout)
        assert all("the mean of 2 results" in line for line in await said.all(2))


@pytest.mark.nightly
async def test_worker_without_room_gives_its_slice_back(
    run: Served, clients: list[WireClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(room_for_sums, "SUMMED_IN_MEMORY_BYTES", 0)
    said = Said()
    async with workers(run, said, spool=Spool(tmp_path, max_bytes=10)):
        await play(run, clients)
    assert said.lines == []
    assert "lease_given_back" in caplog.messages
    assert "lease_taken_over" in caplog.messages


@pytest.mark.nightly
async def test_worker_that_cannot_read_gives_its_slice_back(
    run: Served, clients: list[WireClient], door: S3Door, caplog: pytest.LogCaptureFixture
) -> None:
    said = Said()

    def fault(request: DoorRequest) -> Any:
        return s3_error(503, "Injected") if request.is_signed_url and request.method == "GET" else None

    door.fault = fault
    async with workers(run, said):
        await play(run, clients)
    assert said.lines == []
    assert "lease_taken_over" in caplog.messages


async def test_only_a_checkers_token_leases_slices(run: Served, clients: list[WireClient], coordinator: Served) -> None:
    place = f"{run.run_url}/slices?worker={'0' * 32}"
    refused = await run.http.post(place, headers={"Authorization": f"Bearer {clients[0].token}"})
    assert problem(refused) == "unauthorized"
    assert problem(await answered(run, await api_of(run), "POST", "?worker=me")) == "invalid-parameter"
    api = await api_of(coordinator)
    assert problem(await answered(coordinator, api, "POST", f"?worker={'0' * 32}")) == "not-now"
