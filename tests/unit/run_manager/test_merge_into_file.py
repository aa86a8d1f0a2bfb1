"""A replica that is merged into a file, and hashed while it is written."""

import sys
from pathlib import Path

import numpy as np
import pytest

from epochal.run_manager.replica.merger import MergeProgress, Merger, following_digest
from epochal.runtime.files.spool import Spool
from epochal.runtime.worker_thread import InlineWorker, Worker, WorkerThread
from epochal.state.merging import CHUNK_ELEMENTS, Contribution, Diverged, MergeOutput, OuterStep, merge
from epochal.state.model.replica import CheckpointForm, Replica, checkpoint_bytes, replica_digest
from epochal.state.model.tensors import Tensors

OUTER = OuterStep(0.7, 0.9)
SHAPES = {"a": (3, 5), "b": (CHUNK_ELEMENTS + 11,), "w": (2, CHUNK_ELEMENTS), "z": ()}

pytestmark = pytest.mark.skipif(sys.byteorder != "little", reason="files hold little-endian values")


def tensors(seed: int) -> Tensors:
    drawn = np.random.default_rng(seed).standard_normal
    return {name: np.asarray(drawn(shape), np.float32) for name, shape in SHAPES.items()}


def start(*, has_momentum: bool = True) -> Replica:
    return Replica(4, tensors(1), tensors(2) if has_momentum else {})


def workers(kind: str) -> tuple[Worker, Worker | None]:
    if kind == "inline":
        return InlineWorker(), InlineWorker()
    return WorkerThread("test-merge"), WorkerThread("test-digest") if kind == "threads" else None


@pytest.mark.parametrize("has_momentum", [True, False])
@pytest.mark.parametrize("kind", ["inline", "thread", "threads"])
async def test_replica_in_a_file_has_bytes_and_digest_of_the_rule(
    tmp_path: Path, kind: str, has_momentum: bool
) -> None:
    outer = OUTER if has_momentum else OuterStep(0.7, 0.0)
    before, given = start(has_momentum=has_momentum), [Contribution(2, tensors(3)), Contribution(1, tensors(4))]
    worker, hasher = workers(kind)
    merger, file = Merger(outer, worker, hasher=hasher), Spool(tmp_path).file()
    after, digest = await merger.merge_into(file, before, given)
    wanted = merge(before, given, outer)
    assert digest == replica_digest(wanted) == await merger.digest(after)
    assert file.to_bytes() == checkpoint_bytes(wanted)
    await merger.aclose()


@pytest.mark.parametrize("kind", ["inline", "thread", "threads"])
async def test_merge_that_diverges_says_so_and_ends_its_digest(tmp_path: Path, kind: str) -> None:
    worker, hasher = workers(kind)
    merger, infinite = Merger(OUTER, worker, hasher=hasher), tensors(3)
    infinite["w"][1, 7] = np.inf
    with pytest.raises(Diverged):
        await merger.merge_into(Spool(tmp_path).file(), start(), [Contribution(1, infinite)])
    _, digest = await merger.merge_into(Spool(tmp_path).file(), start(), [Contribution(1, tensors(3))])
    assert digest == replica_digest(merge(start(), [Contribution(1, tensors(3))], OUTER))
    await merger.aclose()


def test_digest_of_a_merge_that_ended_early_is_none() -> None:
    replica, progress = start(), MergeProgress()
    output = MergeOutput(replica.parameters, replica.momentum, progress.advance)
    form = CheckpointForm(replica.step, replica.layout, has_momentum=True)
    total = sum(count for _, count in replica.layout.counts())
    progress.advance(total - 1)
    progress.end()
    assert following_digest(form, output, progress, lambda: None) is None
    progress.advance(1)
    assert following_digest(form, output, progress, lambda: None) == replica_digest(replica)
