"""The disk cache: what it saves, what it survives, and how several processes share it."""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from epochal.data_providers.protocol import SourceUnavailable
from epochal.data_providers.sources.byte_source import SourceFile, Wanted, read
from epochal.data_providers.sources.cache import BLOCK_BYTES, CHUNK_BYTES, MIN_CACHE_BYTES, BlockCache
from epochal.data_providers.sources.cached_source import CachedSource
from epochal.state.errors import InvalidInput

DATA = np.random.default_rng(0).integers(0, 256, 5 * BLOCK_BYTES + 1000, dtype=np.uint8).tobytes()
LARGE_CACHE_BYTES = 4 * MIN_CACHE_BYTES


class Recorded:
    """A source in memory that records its reads; `away` makes it unavailable."""

    def __init__(self, version: str = "1", data: bytes = DATA) -> None:
        self.reads: list[tuple[int, int]] = []
        self.away = False
        self._data = data
        self.files: Sequence[SourceFile] = [SourceFile("a.bin", len(data), "memory:a.bin", version)]
        self.location = "memory:"

    async def read_into(self, name: str, start: int, into: memoryview) -> None:
        if self.away:
            raise SourceUnavailable("away")
        self.reads.append((start, start + len(into)))
        into[:] = self._data[start : start + len(into)]

    async def aclose(self) -> None:
        """Nothing is held."""


def entries(folder: Path) -> list[Path]:
    """The files of the blocks that are held."""
    return list(folder.glob("??/*"))


async def test_cache_brings_every_byte_once_and_then_from_the_disk(tmp_path: Path) -> None:
    source = Recorded()
    cached = CachedSource(source, BlockCache(tmp_path, LARGE_CACHE_BYTES))
    ends = [0, 1, 777, BLOCK_BYTES, 2 * BLOCK_BYTES + 5, len(DATA)]
    for start in ends:
        for stop in ends:
            if start <= stop:
                assert await read(cached, "a.bin", start, stop) == DATA[start:stop]
    assert sum(stop - start for start, stop in source.reads) == len(DATA) == cached.fetched_bytes
    source.away = True
    assert await read(cached, "a.bin", 0, len(DATA)) == DATA
    again = CachedSource(source, BlockCache(tmp_path, LARGE_CACHE_BYTES))
    assert await read(again, "a.bin", 5, len(DATA)) == DATA[5:]


async def test_cache_fetches_neighbouring_blocks_together(tmp_path: Path) -> None:
    source = Recorded()
    cached = CachedSource(source, BlockCache(tmp_path, LARGE_CACHE_BYTES))
    await read(cached, "a.bin", 2 * BLOCK_BYTES + 1, 2 * BLOCK_BYTES + 2)
    await read(cached, "a.bin", 0, len(DATA))
    assert sorted(source.reads) == [
        (0, 2 * BLOCK_BYTES),
        (2 * BLOCK_BYTES, 3 * BLOCK_BYTES),
        (3 * BLOCK_BYTES, len(DATA)),
    ]


async def test_cache_of_a_file_that_changed_is_another_files(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, LARGE_CACHE_BYTES)
    assert await read(CachedSource(Recorded("1"), cache), "a.bin", 0, 10) == DATA[:10]
    newer = bytes(reversed(DATA))
    assert await read(CachedSource(Recorded("2", newer), cache), "a.bin", 0, 10) == newer[:10]


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-1], lambda data: data[:40] + b"\0" + data[41:], lambda data: b""]
)
async def test_cache_entry_that_is_damaged_is_fetched_again(tmp_path: Path, spoil: object) -> None:
    source = Recorded()
    cached = CachedSource(source, BlockCache(tmp_path, LARGE_CACHE_BYTES))
    await read(cached, "a.bin", 0, len(DATA))
    entry = max(entries(tmp_path), key=lambda path: path.stat().st_size)
    entry.write_bytes(spoil(entry.read_bytes()))  # type: ignore[operator]
    source.reads.clear()
    assert await read(cached, "a.bin", 0, len(DATA)) == DATA
    assert len(source.reads) == 1
    source.reads.clear()
    assert await read(cached, "a.bin", 0, len(DATA)) == DATA
    assert not source.reads


def held_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in entries(folder))


def is_held(cache: BlockCache, key: str, block: bytes) -> bool:
    """Whether a block is held, as it should be."""
    into = bytearray(len(block))
    return cache.read_into(key, len(block), 0, memoryview(into)) and into == block


def test_cache_stays_below_its_limit_and_keeps_what_was_used_last(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, MIN_CACHE_BYTES)
    block = b"x" * BLOCK_BYTES
    keys = [f"{number:064x}" for number in range(150)]
    for number, key in enumerate(keys):
        cache.put(key, memoryview(block))
        assert is_held(cache, keys[0], block), "used again and again"
        os.utime(tmp_path / key[:2] / key, (number, number))
        os.utime(tmp_path / keys[0][:2] / keys[0], (10**6, 10**6))
        assert held_bytes(tmp_path) <= MIN_CACHE_BYTES
    assert not is_held(cache, keys[1], block)
    assert is_held(cache, keys[-1], block)


async def test_cache_stays_below_its_limit_when_a_read_is_larger(tmp_path: Path) -> None:
    data = np.random.default_rng(1).bytes(2 * MIN_CACHE_BYTES + 1000)
    source = Recorded(data=data)
    cached = CachedSource(source, BlockCache(tmp_path, MIN_CACHE_BYTES))
    assert await read(cached, "a.bin", 0, len(data)) == data
    assert MIN_CACHE_BYTES // 2 < held_bytes(tmp_path) <= MIN_CACHE_BYTES


def test_cache_that_is_too_small_or_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    for max_bytes in (0, MIN_CACHE_BYTES - 1):
        with pytest.raises(InvalidInput, match="allowed"):
            BlockCache(tmp_path, max_bytes)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidInput, match="file"):
        BlockCache(tmp_path / "file", MIN_CACHE_BYTES)


async def test_cache_whose_folder_is_gone_still_brings_the_data(tmp_path: Path) -> None:
    source = Recorded()
    cached = CachedSource(source, BlockCache(tmp_path / "cache", LARGE_CACHE_BYTES))
    (tmp_path / "cache").rename(tmp_path / "elsewhere")
    assert await read(cached, "a.bin", 7, len(DATA)) == DATA[7:]


def hammer(folder: Path, seed: int, rounds: int) -> None:
    """One process: reads at random places, and fails when a byte is wrong."""
    chance = np.random.default_rng(seed)

    async def main() -> None:
        cached = CachedSource(Recorded(version=str(seed % 2)), BlockCache(folder, MIN_CACHE_BYTES))
        for _ in range(rounds):
            start, stop = sorted(chance.integers(0, len(DATA), 2).tolist())
            if await read(cached, "a.bin", start, stop) != DATA[start:stop]:
                os._exit(3)

    asyncio.run(main())


def test_cache_is_shared_by_processes_of_which_some_are_killed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    lasting = context.Process(target=hammer, args=(tmp_path, 0, 60))
    victim = context.Process(target=hammer, args=(tmp_path, 2, 100_000))
    for process in (lasting, victim):
        process.start()
    lasting.join(60)
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    victim.join(60)
    assert [process.exitcode for process in (lasting, victim)] == [0, -signal.SIGKILL]
    hammer(tmp_path, 3, 20)
    assert held_bytes(tmp_path) <= MIN_CACHE_BYTES


class Batched(Recorded):
    """A source in memory that also answers batches, once it may; records their sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def read_many_into(self, wanted: Sequence[Wanted]) -> None:
        self.batches.append(len(wanted))
        for one in wanted:
            await self.read_into(one.name, one.start, one.into)

    async def read_into(self, name: str, start: int, into: memoryview) -> None:
        await super().read_into(name, start, into)
        await self.may_answer.wait()


def places(*starts: int) -> list[Wanted]:
    return [Wanted("a.bin", start, memoryview(bytearray(100))) for start in starts]


async def test_cache_fetches_what_a_batch_misses_together(tmp_path: Path) -> None:
    source = Batched()
    cached = CachedSource(source, BlockCache(tmp_path, LARGE_CACHE_BYTES))
    wanted = places(10, 2 * BLOCK_BYTES - 50, 4 * BLOCK_BYTES, 4 * BLOCK_BYTES + 200)
    await cached.read_many_into(wanted)
    assert [bytes(one.into) for one in wanted] == [DATA[one.start : one.start + 100] for one in wanted]
    assert source.batches == [2]
    assert source.reads == [(0, 3 * BLOCK_BYTES), (4 * BLOCK_BYTES, 5 * BLOCK_BYTES)]


async def test_cache_fetches_a_block_once_for_two_that_need_it(tmp_path: Path) -> None:
    source = Batched()
    source.may_answer.clear()
    cached = CachedSource(source, BlockCache(tmp_path, LARGE_CACHE_BYTES))
    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(read(cached, "a.bin", start, start + 10)) for start in (0, 500)]
        while not source.reads:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        source.may_answer.set()
    assert [reader.result() for reader in readers] == [DATA[:10], DATA[500:510]]
    assert source.reads == [(0, BLOCK_BYTES)]


async def test_cache_goes_on_when_another_reader_of_the_block_is_cancelled(tmp_path: Path) -> None:
    source = Batched()
    source.may_answer.clear()
    cached = CachedSource(source, BlockCache(tmp_path, LARGE_CACHE_BYTES))
    async with asyncio.TaskGroup() as group:
        first = group.create_task(read(cached, "a.bin", 0, 10))
        while not source.reads:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        second = group.create_task(read(cached, "a.bin", 500, 510))
        first.cancel()
        source.may_answer.set()
    assert second.result() == DATA[500:510]


async def test_cache_hashes_what_a_read_needs_and_no_more(tmp_path: Path) -> None:
    source = Recorded()
    cached = CachedSource(source, BlockCache(tmp_path, LARGE_CACHE_BYTES))
    await read(cached, "a.bin", 0, BLOCK_BYTES)
    (entry,) = entries(tmp_path)
    damaged = bytearray(entry.read_bytes())
    damaged[-1] ^= 1
    entry.write_bytes(damaged)
    source.reads.clear()
    assert await read(cached, "a.bin", 5, BLOCK_BYTES - CHUNK_BYTES) == DATA[5 : BLOCK_BYTES - CHUNK_BYTES]
    assert not source.reads, "the damage is elsewhere"
    assert await read(cached, "a.bin", BLOCK_BYTES - 1, BLOCK_BYTES) == DATA[BLOCK_BYTES - 1 : BLOCK_BYTES]
    assert source.reads == [(0, BLOCK_BYTES)], "damaged bytes are fetched again"
