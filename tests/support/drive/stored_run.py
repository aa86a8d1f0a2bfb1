"""A run whose blobs are in a bucket behind a door, served in this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from epochal.coordinator.run.genesis import Genesis
from epochal.coordinator.store.object_store.blobs import ObjectBlobs
from epochal.coordinator.store.object_store.objects import Objects
from epochal.coordinator.store.run_blobs import RunBlobs
from tests.support.data.object_blobs import RUN_ID, s3_lines, s3_place
from tests.support.data.states import state_file
from tests.support.drive.served import GENESIS, Served, served
from tests.support.servers.s3_door import S3Door
from tests.support.simulate.memory_store import MemoryStore

LIMIT = 10_000_000


@asynccontextmanager
async def stored_run(door: S3Door, genesis: Genesis = GENESIS, **overrides: Any) -> AsyncIterator[Served]:
    """Serve a run whose blobs are in the bucket behind the door."""
    soon = {"config__waiting_for_members_extra_time": 0.001}
    state = state_file(blobs__store=s3_lines(door.url), **soon, **overrides)
    store = MemoryStore(0, private_key=bytes(range(32)))
    objects = await ObjectBlobs.open(Objects(s3_place(door.url), RUN_ID), LIMIT)
    store.blobs = RunBlobs(store.recorded_blobs, None, objects)
    async with served(state, genesis, store) as running:
        yield running
        await running.handlers.arrivals.aclose()
