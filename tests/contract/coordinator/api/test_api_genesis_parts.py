"""The operator's first checkpoint over HTTP, kept in parts."""

from collections.abc import AsyncIterator

import httpx
import numpy as np
import pytest

from epochal.coordinator.run.genesis import Genesis
from epochal.coordinator.store.checkpoint_blobs import digest_of_parts
from epochal.state.checkpoint_parts import CheckpointManifest
from epochal.state.model.replica import Replica, checkpoint_bytes, replica_digest
from epochal.state.wire import parse_document, sha256_hex
from tests.support.data.states import state_file
from tests.support.drive.served import ADMIN, Served, problem, served

SHAPE = (60, 50)
REPLICA = Replica(0, {"w": np.full(SHAPE, 0.5, np.float32)}, {"w": np.zeros(SHAPE, np.float32)})
FIRST = checkpoint_bytes(REPLICA)
OTHER = checkpoint_bytes(Replica(0, {"w": np.full(SHAPE, 0.25, np.float32)}, dict(REPLICA.momentum)))
PART_BYTES = 2048


@pytest.fixture
async def awaiting() -> AsyncIterator[Served]:
    """A run whose operator has yet to deliver its first checkpoint."""
    state = state_file(config__waiting_for_members_extra_time=0.001, blobs__part_bytes=PART_BYTES)
    async with served(state, Genesis(lambda spec: REPLICA.layout)) as running:
        yield running


async def deliver(run: Served, data: bytes, sha256: str | None = None) -> httpx.Response:
    url = f"{run.run_url}/genesis/{sha256 or sha256_hex(data)}"
    return await run.http.put(url, content=data, headers={"Authorization": f"Bearer {ADMIN}"})


async def test_delivered_checkpoint_is_kept_in_parts_with_a_manifest(awaiting: Served) -> None:
    answer = await deliver(awaiting, FIRST)
    assert answer.status_code == 201, answer.text
    told = answer.json()
    assert (told["replica_digest"], told["part_count"]) == (replica_digest(REPLICA), -(-len(FIRST) // PART_BYTES))
    body = (await awaiting.http.get(f"{awaiting.run_url}/manifests/{told['blob_sha256']}")).content
    assert sha256_hex(body) == told["blob_sha256"]
    manifest = parse_document(CheckpointManifest, body)
    assert sum(part.size_bytes for part in manifest.parts) == told["size_bytes"] == len(FIRST)
    run = awaiting.service.run
    assert await digest_of_parts(awaiting.service.blobs, run.models.blobs_of(run.models.checkpoints[0])) == sha256_hex(
        FIRST
    )
    shared = len(manifest.parts) - len({part.sha256 for part in manifest.parts})
    assert shared >= 1, "equal parts are one blob"


async def test_repeated_delivery_is_accepted_and_another_is_not(awaiting: Served) -> None:
    answer = await deliver(awaiting, FIRST)
    assert (await deliver(awaiting, FIRST)).json() == answer.json()
    assert problem(await deliver(awaiting, OTHER)) == "not-now"


async def test_checkpoint_with_another_digest_leaves_no_part(awaiting: Served) -> None:
    assert problem(await deliver(awaiting, FIRST, sha256="0" * 64)) == "blob-mismatch"
    assert awaiting.service.blobs.total_bytes == 0
    assert (await deliver(awaiting, FIRST)).status_code == 201
