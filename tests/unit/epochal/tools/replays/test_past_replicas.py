"""Replicas of past rounds, rebuilt from what a played run keeps."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from epochal.coordinator.machine.parts.run_models import RunModels
from epochal.runtime.files.spool import Spool
from epochal.runtime.files.spool_part import ReceivedBytes
from epochal.runtime.merging.merger import Merger
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.checkpoint_parts import CheckpointManifest
from epochal.state.documents import CheckpointRef, Outcome, UpdateRef
from epochal.state.errors import InvalidDocument, Refused
from epochal.state.model.replica import replica_digest
from epochal.state.refusals import Refusal
from epochal.state.wire import Blake3, Sha256
from epochal.tools.replays.past_replicas import PastReplicas
from tests.support.data.spooled import SPOOL_PARENT
from tests.support.data.stored_blobs import blob_bytes
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_run import SimulatedRun, simulated_run, small_state

MOST = 3
T = TypeVar("T")


@dataclass
class KeptRun:
    """What a finished run keeps, as a coordinator gives it out. `fetched` are the blobs that were asked for."""

    run: SimulatedRun
    fetched: list[Sha256] = field(default_factory=list)
    lacks: Sha256 | None = None

    @property
    def models(self) -> RunModels:
        return self.run.coordinator.run.models

    async def checkpoints(self) -> tuple[CheckpointRef, ...]:
        return tuple(self.models.checkpoints)

    async def outcome(self, step: int) -> Outcome:
        return _kept(self.models.outcomes.get(step))

    async def update(self, step: int) -> UpdateRef:
        return _kept(self.models.updates.get(step))

    async def manifest(self, sha256: Sha256) -> CheckpointManifest:
        return _kept(self.models.manifests.get(sha256))

    async def get_blob(self, sha256: Sha256, file: ReceivedBytes) -> None:
        if sha256 == self.lacks:
            raise Refused(Refusal.NOT_FOUND, "it was deleted")
        self.fetched.append(sha256)
        file.append((await blob_bytes(self.run.coordinator.store.blobs, sha256))[file.size_bytes :])

    def digest(self, step: int) -> Blake3:
        """The digest of a replica, on which the run agreed."""
        return Blake3(self.models.outcomes[step + 1].replica_digest)

    @property
    def first(self) -> int:
        """The older kept checkpoint's step."""
        return int(self.models.checkpoints[0].step)

    @property
    def last(self) -> int:
        """The last replica from which a round began."""
        return int(max(self.models.outcomes)) - 1


def _kept(found: T | None) -> T:
    if found is None:
        raise Refused(Refusal.NOT_FOUND, "it is not kept")
    return found


@asynccontextmanager
async def kept_run() -> AsyncIterator[tuple[KeptRun, PastReplicas]]:
    state = small_state(12, config__epoch_time=1_000, merge__inner_state="reset")
    async with simulated_run(state, seed=3) as run:
        await run.play(ClientSpec("numpy"), ClientSpec("numpy"), ClientSpec("numpy"))
        kept, spool = KeptRun(run), Spool(SPOOL_PARENT)
        merger = Merger(state.merge, spool, InlineWorker())
        yield kept, PastReplicas(kept, kept.checkpoints, merger, spool, InlineWorker(), MOST)  # type: ignore[arg-type]


async def test_every_replica_since_the_older_checkpoint_is_rebuilt_in_any_order() -> None:
    async with kept_run() as (kept, replicas):
        assert kept.last - kept.first > MOST, "so many that not all are held"
        for step in (kept.last, kept.first, kept.first + 2, kept.first + 1, kept.last):
            held = await replicas.at(step, kept.digest(step))
            assert (held.step, replica_digest(held.replica)) == (step, kept.digest(step))


@pytest.mark.nightly
async def test_replica_that_is_held_is_not_fetched_again() -> None:
    async with kept_run() as (kept, replicas):
        await replicas.at(kept.first + 1, kept.digest(kept.first + 1))
        before = len(kept.fetched)
        await replicas.at(kept.first + 1, kept.digest(kept.first + 1))
        assert len(kept.fetched) == before
        await replicas.at(kept.first + 2, kept.digest(kept.first + 2))
        assert len(kept.fetched) == before + 1


@pytest.mark.nightly
async def test_replica_with_another_digest_is_refused_and_nothing_of_it_stays() -> None:
    async with kept_run() as (kept, replicas):
        with pytest.raises(InvalidDocument, match=f"replica {kept.first} is rebuilt with digest"):
            await replicas.at(kept.first, kept.digest(kept.first + 1))
        before = len(kept.fetched)
        await replicas.at(kept.first, kept.digest(kept.first))
        assert len(kept.fetched) > before


@pytest.mark.nightly
async def test_what_the_coordinator_lacks_is_refused_and_found_once_it_is_there() -> None:
    async with kept_run() as (kept, replicas):
        step = kept.first + 1
        kept.lacks = kept.models.updates[step].blob_sha256
        with pytest.raises(Refused) as refused:
            await replicas.at(step, kept.digest(step))
        assert refused.value.kind is Refusal.NOT_FOUND
        kept.lacks = None
        assert (await replicas.at(step, kept.digest(step))).step == step
        if kept.first:
            with pytest.raises(InvalidDocument, match="no checkpoint of a step up to"):
                await replicas.at(kept.first - 1, kept.digest(step))
