"""A replica that is merged into a file by several threads, and hashed while it is written; the update likewise."""

import asyncio
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from epochal.runtime.files.spool import Spool, SpoolFile
from epochal.runtime.merging import merger as merger_module
from epochal.runtime.merging.arrival import Arrival
from epochal.runtime.merging.merger import Merger
from epochal.runtime.worker_thread import InlineWorker, WorkerThread
from epochal.state import merging
from epochal.state.config.state_file import MergeConfig
from epochal.state.merging import CHUNK_ELEMENTS, Diverged, OuterStep, merge
from epochal.state.model.replica import Replica, checkpoint_bytes, replica_digest
from epochal.state.model.tensors import Tensors
from epochal.state.updates import UpdateHeader, UpdateSum, Weight, decode_update, update_bytes

CONFIG = MergeConfig(outer_lr=0.7, outer_momentum=0.9)
OUTER = OuterStep.of(CONFIG)
KINDS = ("inline", "one thread", "threads")
SHAPES = {"a": (3, 5), "aa": (7,), "b": (CHUNK_ELEMENTS + 11,), "w": (2, CHUNK_ELEMENTS), "z": ()}

pytestmark = pytest.mark.skipif(sys.byteorder != "little", reason="files hold little-endian values")


def tensors(seed: int) -> Tensors:
    drawn = np.random.default_rng(seed).standard_normal
    return {name: np.asarray(drawn(shape), np.float32) for name, shape in SHAPES.items()}


def start(*, has_momentum: bool = True) -> Replica:
    return Replica(4, tensors(1), tensors(2) if has_momentum else {})


def merger_of(kind: str, config: MergeConfig, folder: Path) -> Merger:
    """Return a merger that runs inline, in one thread, or in several."""
    spool = Spool(folder)
    if kind == "one thread":
        return Merger(config, spool, WorkerThread("test-merge"))
    return Merger.with_threads(config, spool, WorkerThread if kind == "threads" else lambda _: InlineWorker())


@pytest.fixture(autouse=True)
def _in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every replica is merged into a file, by three threads, a chunk at a time."""
    monkeypatch.setattr(merger_module, "MERGED_IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(merger_module, "core_count", lambda: 3)
    monkeypatch.setattr(merging, "PIECE_ELEMENTS", CHUNK_ELEMENTS)


@pytest.mark.parametrize("has_momentum", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_replica_in_a_file_has_bytes_and_digest_of_the_rule(
    tmp_path: Path, kind: str, has_momentum: bool
) -> None:
    config = CONFIG if has_momentum else MergeConfig(outer_lr=0.7, outer_momentum=0.0)
    before, update = start(has_momentum=has_momentum), tensors(3)
    merger = merger_of(kind, config, tmp_path)
    after = await merger.applied(before, update)
    wanted = merge(before, update, OuterStep.of(config))
    assert after.digest == replica_digest(wanted) == replica_digest(after.replica)
    assert after.file is not None
    assert after.file.to_bytes() == checkpoint_bytes(wanted)
    await merger.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_merge_that_diverges_says_so_and_ends_its_digest(tmp_path: Path, kind: str) -> None:
    merger, infinite = merger_of(kind, CONFIG, tmp_path), tensors(3)
    infinite["w"][1, 7] = np.inf
    with pytest.raises(Diverged):
        await merger.applied(start(), infinite)
    after = await merger.applied(start(), tensors(3))
    assert after.digest == replica_digest(merge(start(), tensors(3), OUTER))
    await merger.aclose()


async def summed(merger: Merger) -> UpdateSum:
    """Return the sum of two results."""
    total = await merger.new_sum(5, start().layout)
    for number in (1, 2):
        total.add(Weight(number), tensors(10 + number))
    return total


@pytest.mark.parametrize("update", ["int4", "int8", "exact"])
@pytest.mark.parametrize("kind", KINDS)
async def test_update_and_its_replica_are_those_of_the_rule(
    tmp_path: Path, kind: str, update: Literal["int4", "int8", "exact"]
) -> None:
    merger, arrival = merger_of(kind, CONFIG.model_copy(update={"update": update}), tmp_path), Arrival()
    header = UpdateHeader("test-run", 5, "ab" * 32, merger.rule(5).codec)
    wanted = update_bytes(header, merger.rule(5), start().layout, [(Weight(1), tensors(11)), (Weight(2), tensors(12))])
    async with asyncio.TaskGroup() as group:
        making = group.create_task(merger.made(await summed(merger), header, start(), arrival))
        kept = b"".join([piece async for piece in arrival.pieces()])
    file, held = making.result()
    assert file.to_bytes() == kept == wanted
    assert held.digest == replica_digest(merge(start(), decode_update(wanted, header, start().layout), OUTER))
    await merger.aclose()


async def test_update_comes_piece_by_piece_while_it_is_made(tmp_path: Path) -> None:
    """Its first bytes can be read when its first piece is written, and are the header alone before."""
    merger, arrival, sizes = merger_of("inline", CONFIG, tmp_path), Arrival(), list[int]()
    header = UpdateHeader("test-run", 5, "ab" * 32, merger.rule(5).codec)
    noted = arrival.advance

    def advance(file: SpoolFile, verified_bytes: int, size_bytes: int) -> None:
        sizes.append(verified_bytes)
        noted(file, verified_bytes, size_bytes)

    arrival.advance = advance  # type: ignore[method-assign]
    file, _ = await merger.made(await summed(merger), header, start(), arrival)
    assert sizes == sorted(sizes)
    assert len(sizes) == 1 + len(list(merging.pieces_of(start().layout)))
    assert sizes[-1] == len(file)
    assert await arrival.size() == len(file)
