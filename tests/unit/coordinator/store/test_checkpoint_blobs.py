"""`coordinator/store/checkpoint_blobs.py`: a checkpoint's blobs as one file."""

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.coordinator.store.checkpoint_blobs import digest_of_parts, keep_in_parts, opened_parts
from epochal.state.checkpoint_parts import CheckpointPart
from epochal.state.errors import Refused
from epochal.state.wire import sha256_hex
from tests.support.simulate.memory_store import MemoryBlobs
from tests.support.simulate.virtual_time import run_virtually

DATA = bytes(range(200)) * 3


async def pieces_of(data: bytes, size_bytes: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size_bytes):
        yield data[start : start + size_bytes]


async def kept(blobs: MemoryBlobs, data: bytes, size_bytes: int) -> list[CheckpointPart]:
    return [part async for part in keep_in_parts(blobs, size_bytes, pieces_of(data, 70), 250)]


@given(start=st.integers(-700, 700), stop=st.integers(-700, 700))
def test_slices_of_joined_parts_are_those_of_the_file(start: int, stop: int) -> None:
    async def joined() -> None:
        blobs = MemoryBlobs(2000)
        parts = await kept(blobs, DATA, len(DATA))
        assert [part.size_bytes for part in parts] == [250, 250, 100]
        async with opened_parts(blobs, [part.sha256 for part in parts]) as file:
            assert file[start:stop] == DATA[start:stop]
            assert bytes(file.view()) == DATA

    run_virtually(joined())


async def test_digest_of_several_parts_is_that_of_the_file() -> None:
    blobs = MemoryBlobs(2000)
    parts = [(part.sha256, part.size_bytes) for part in await kept(blobs, DATA, len(DATA))]
    assert await digest_of_parts(blobs, parts) == sha256_hex(DATA)
    assert await digest_of_parts(blobs, parts[:1]) == sha256_hex(DATA[:250])


@pytest.mark.parametrize(("size_bytes", "kind"), [(len(DATA) + 1, "blob-mismatch"), (len(DATA) - 1, "blob-too-large")])
async def test_checkpoint_of_another_length_than_announced_is_refused(size_bytes: int, kind: str) -> None:
    with pytest.raises(Refused) as error:
        await kept(MemoryBlobs(2000), DATA, size_bytes)
    assert error.value.kind == kind
