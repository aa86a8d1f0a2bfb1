"""A checkpoint in parts from a member: over HTTP, and by way of an object store."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from epochal.coordinator.machine.parts.checkpointers import current_checkpointer
from epochal.coordinator.run.genesis import Genesis
from epochal.coordinator.store.object_store.blobs import ObjectBlobs
from epochal.coordinator.store.object_store.objects import Objects
from epochal.coordinator.store.run_blobs import RunBlobs
from epochal.state.checkpoint_parts import CheckpointPart, part_ranges, parts_digest
from epochal.state.errors import Refused
from epochal.state.messages.requests import CheckpointReport
from epochal.state.model.replica import Replica, checkpoint_bytes, replica_digest
from epochal.state.phase_names import RunState
from epochal.state.wire import Sha256, sha256_hex
from tests.support.data.object_blobs import RUN_ID, s3_lines, s3_place
from tests.support.data.spooled import spooled
from tests.support.data.states import state_file
from tests.support.drive.served import Served, WireClient, phase, served
from tests.support.drive.stored_run import LIMIT
from tests.support.servers.s3_door import S3Door
from tests.support.simulate.memory_store import MemoryStore

PART_BYTES = 1024
REPLICA = Replica(
    0, {"w": np.arange(600, dtype=np.float32).reshape(30, 20) / np.float32(600)}, {"w": np.zeros((30, 20), np.float32)}
)
DATA = checkpoint_bytes(REPLICA)


@pytest.fixture(params=["coordinator", "bucket"])
async def electing(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    """A run whose members make the first checkpoint; its blobs are the coordinator's, or in a bucket."""
    fields: dict[str, Any] = {"access__genesis": "members", "blobs__part_bytes": PART_BYTES}
    store = None
    if request.param == "bucket":
        door: S3Door = request.getfixturevalue("door")
        fields["blobs__store"] = s3_lines(door.url)
        store = MemoryStore(0, private_key=bytes(range(32)))
        objects = await ObjectBlobs.open(Objects(s3_place(door.url), RUN_ID), LIMIT)
        store.blobs = RunBlobs(store.recorded_blobs, None, objects)
    state = state_file(config__waiting_for_members_extra_time=0.001, **fields)
    async with served(state, Genesis(lambda spec: REPLICA.layout), store) as running:
        yield running
        await running.handlers.arrivals.aclose()


async def writer_of(run: Served) -> tuple[WireClient, WireClient]:
    """Return the member that is asked for the first checkpoint, and another one."""
    clients = [WireClient(run, number) for number in (1, 2)]
    for client in clients:
        await client.join()
    await phase(run, RunState.WARMUP)
    wanted = current_checkpointer(run.service.run.models, run.service.run.members)
    one, other = sorted(clients, key=lambda client: client.client_id != wanted)
    return one, other


def cut(data: bytes) -> dict[Sha256, bytes]:
    return {sha256_hex(part): part for start, stop in part_ranges(len(data), PART_BYTES) for part in [data[start:stop]]}


def report_of(data: bytes) -> CheckpointReport:
    parts = tuple(
        CheckpointPart(sha256_hex(data[start:stop]), stop - start) for start, stop in part_ranges(len(data), PART_BYTES)
    )
    return CheckpointReport(0, replica_digest(REPLICA), parts_digest(parts), len(data), parts)


async def deliver(client: WireClient, data: bytes) -> None:
    for sha256, part in cut(data).items():
        await client.api.put_blob(sha256, spooled(part))


async def test_checkpoint_counts_once_its_last_part_has_come(electing: Served) -> None:
    writer, other = await writer_of(electing)
    await writer.api.report(report_of(DATA))
    *first, last = reversed(cut(DATA).items())
    for sha256, part in first:
        await writer.api.put_blob(sha256, spooled(part))
        await writer.api.put_blob(sha256, spooled(part))
    with pytest.raises(Refused) as refused:
        await other.api.put_blob(last[0], spooled(last[1]))
    assert refused.value.kind == "not-committed"
    assert electing.service.run.models.checkpoint is None
    await writer.api.put_blob(last[0], spooled(last[1]))
    checkpoint = electing.service.run.models.checkpoint
    assert checkpoint is not None
    assert (checkpoint.part_count, checkpoint.replica_digest) == (-(-len(DATA) // PART_BYTES), replica_digest(REPLICA))
    assert (await other.api.manifest(checkpoint.blob_sha256)).parts == report_of(DATA).parts


@pytest.mark.nightly
async def test_part_with_other_bytes_is_refused_and_may_come_again(electing: Served) -> None:
    writer, _ = await writer_of(electing)
    await writer.api.report(report_of(DATA))
    sha256, part = next(iter(cut(DATA).items()))
    for wrong in (part[::-1], part[:-1], part + b"!"):
        with pytest.raises(Refused):
            await writer.api.put_blob(sha256, spooled(wrong))
        assert await electing.service.blobs.size(sha256) is None
    await deliver(writer, DATA)
    assert electing.service.run.models.checkpoint is not None


@pytest.mark.nightly
async def test_whole_that_breaks_a_rule_leaves_no_part_and_asks_the_next(electing: Served) -> None:
    writer, other = await writer_of(electing)
    spoiled = checkpoint_bytes(replace(REPLICA, parameters={"w": REPLICA.parameters["w"] * np.float32(1e30)}))
    await writer.api.report(report_of(spoiled))
    with pytest.raises(Refused) as refused:
        await deliver(writer, spoiled)
    assert (refused.value.kind, refused.value.context["rule"]) == ("result-invalid", "max_abs")
    assert electing.service.blobs.total_bytes == 0
    assert current_checkpointer(electing.service.run.models, electing.service.run.members) == other.client_id
    await other.api.report(report_of(DATA))
    await deliver(other, DATA)
    assert electing.service.run.models.checkpoint is not None
