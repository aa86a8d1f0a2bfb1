"""A replica that is merged into a file, and hashed while it is written."""

import sys
from pathlib import Path

import numpy as np
import pytest

from epochal.runtime.files.spool import Spool
from epochal.runtime.merging import merger as merger_module
from epochal.runtime.merging.merger import Merger
from epochal.runtime.worker_thread import InlineWorker, Worker, WorkerThread
from epochal.state.config.state_file import MergeConfig
from epochal.state.merging import CHUNK_ELEMENTS, Diverged, OuterStep, merge
from epochal.state.model.replica import Replica, checkpoint_bytes, replica_digest
from epochal.state.model.tensors import Tensors

CONFIG = MergeConfig(outer_lr=0.7, outer_momentum=0.9)
OUTER = OuterStep.of(CONFIG)
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


@pytest.fixture(autouse=True)
def _in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every replica is merged into a file."""
    monkeypatch.setattr(merger_module, "MERGED_IN_MEMORY_BYTES", 0)


@pytest.mark.parametrize("has_momentum", [True, False])
@pytest.mark.parametrize("kind", ["inline", "thread", "threads"])
async def test_replica_in_a_file_has_bytes_and_digest_of_the_rule(
    tmp_path: Path, kind: str, has_momentum: bool
) -> None:
    config = CONFIG if has_momentum else MergeConfig(outer_lr=0.7, outer_momentum=0.0)
    before, update = start(has_momentum=has_momentum), tensors(3)
    worker, hasher = workers(kind)
    merger = Merger(config, Spool(tmp_path), worker, hasher)
    after = await merger.applied(before, update)
    wanted = merge(before, update, OuterStep.of(config))
    assert after.digest == replica_digest(wanted) == await merger.digest(after.replica)
    assert after.file is not None
    assert after.file.to_bytes() == checkpoint_bytes(wanted)
    await merger.aclose()


@pytest.mark.parametrize("kind", ["inline", "thread", "threads"])
async def test_merge_that_diverges_says_so_and_ends_its_digest(tmp_path: Path, kind: str) -> None:
    worker, hasher = workers(kind)
    merger, infinite = Merger(CONFIG, Spool(tmp_path), worker, hasher), tensors(3)
    infinite["w"][1, 7] = np.inf
    with pytest.raises(Diverged):
        await merger.applied(start(), infinite)
    after = await merger.applied(start(), tensors(3))
    assert after.digest == replica_digest(merge(start(), tensors(3), OUTER))
    await merger.aclose()
