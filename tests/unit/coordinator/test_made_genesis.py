"""The first checkpoint that a start makes: one parameter at a time from its source to the store."""

import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from epochal.coordinator.run.genesis import Genesis, GenesisRules, keep_made_genesis
from epochal.coordinator.store.files.blobs import DirectoryBlobs
from epochal.state.errors import InvalidInput
from epochal.state.model.first_model import FirstModel, first_checkpoint
from epochal.state.model.replica import parse_checkpoint, replica_digest
from epochal.state.model.tensors import Float32Array, TensorLayout
from tests.support.data.states import state_file
from tests.support.data.stored_blobs import blob_bytes

NAMES = [f"w{number}" for number in range(8)]
LAYOUT = TensorLayout(tuple((name, (50_000,)) for name in NAMES))
SPEC = state_file().model.LLM.spec


async def keep(blobs: DirectoryBlobs, first: FirstModel) -> tuple[str, str]:
    """Make and keep the first checkpoint; return its replica digest, and that of the blob that is held."""

    async def make(step: int) -> FirstModel:
        assert step == first.step
        return first

    rules = GenesisRules.of(state_file(), 0, lambda spec: LAYOUT)
    provided = await keep_made_genesis(Genesis(lambda spec: LAYOUT, make), rules, blobs)
    assert provided is not None
    reference = provided.checkpoint
    data = await blob_bytes(blobs, reference.blob_sha256)
    assert len(data) == reference.size_bytes
    assert data == first_checkpoint(first).to_bytes()
    return reference.replica_digest, replica_digest(parse_checkpoint(data))


async def test_made_checkpoint_holds_one_parameter_at_a_time(tmp_path: Path) -> None:
    made: list[weakref.ref[Float32Array]] = []
    alive_counts: list[int] = []

    def parameters() -> Iterator[tuple[str, Float32Array]]:
        for number, name in enumerate(NAMES):
            values = np.full(50_000, number, np.float32)
            made.append(weakref.ref(values))
            alive_counts.append(sum(one() is not None for one in made))
            yield name, values

    kept, found = await keep(await DirectoryBlobs.open(tmp_path, 2**30), FirstModel(SPEC, 0, LAYOUT, parameters))
    assert kept == found
    assert max(alive_counts) <= 2, "the one that is written, and the next"


async def test_made_checkpoint_whose_source_fails_midway_leaves_nothing(tmp_path: Path) -> None:
    def parameters() -> Iterator[tuple[str, Float32Array]]:
        for name in NAMES:
            yield name, np.full(50_000, 3e5 if name == NAMES[-1] else 1.0, np.float32)

    blobs = await DirectoryBlobs.open(tmp_path, 2**30)
    with pytest.raises(InvalidInput, match=r"values of 'w7' that are larger than merge\.max_abs"):
        await keep(blobs, FirstModel(SPEC, 0, LAYOUT, parameters))
    assert await blobs.held() == frozenset()
    assert blobs.total_bytes == 0


async def test_model_that_finds_no_room_is_refused_before_it_is_made(tmp_path: Path) -> None:
    async def make(step: int) -> FirstModel:
        raise AssertionError("a model that nobody can keep was made")

    rules = GenesisRules.of(state_file(blobs__max_total_bytes=2**20), 0, lambda spec: LAYOUT)
    blobs = await DirectoryBlobs.open(tmp_path, 2**30)
    for genesis in (Genesis(make=make), Genesis()):
        with pytest.raises(InvalidInput, match=r"25 % of \[blobs\] max_total_bytes; it needs `max_total_bytes = 12"):
            await keep_made_genesis(genesis, rules, blobs)
