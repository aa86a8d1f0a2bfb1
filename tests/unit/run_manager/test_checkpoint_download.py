"""`run_manager/replica/checkpoint_download.py`: parts from several places, and what may be wrong with one."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from epochal.run_manager.events import BlobFetched, Event
from epochal.run_manager.replica.checkpoint_download import ATTEMPTS_PER_SOURCE, FAILURES_OF_MIRROR, CheckpointDownload
from epochal.runtime.files.left_files import PREFIX
from epochal.runtime.files.spool import Spool
from epochal.runtime.files.spool_part import ReceivedBytes
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.checkpoint_parts import CheckpointManifest, CheckpointPart, part_ranges, parts_digest
from epochal.state.documents import CheckpointRef
from epochal.state.errors import CoordinatorUnreachable, InvalidDocument, Refused
from epochal.state.wire import Sha256, sha256_hex
from tests.support.data.held_blobs import HeldBlobs
from tests.support.data.spooled import SPOOL_PARENT
from tests.support.simulate.virtual_time import in_virtual_time

PART_BYTES = 40_000
DATA = random.Random(1).randbytes(3 * PART_BYTES + 7)
PARTS = [DATA[start:stop] for start, stop in part_ranges(len(DATA), PART_BYTES)]
NAMED = tuple(CheckpointPart(sha256_hex(part), len(part)) for part in PARTS)
CHECKPOINT = CheckpointRef(4, parts_digest(NAMED), len(DATA), sha256_hex(b"replica"), len(NAMED))


class Source(HeldBlobs):
    """A coordinator or a mirror with these blobs, which waits a moment before each."""

    def __init__(self, *blobs: bytes, name: str = "mirror") -> None:
        super().__init__(*blobs)
        self.name = name
        self.manifests[CHECKPOINT.blob_sha256] = CheckpointManifest(NAMED)

    async def get_blob(self, sha256: Sha256, file: ReceivedBytes) -> None:
        await asyncio.sleep(0.01)
        await super().get_blob(sha256, file)

    async def aclose(self) -> None:
        pass


def download_of(coordinator: Source, *mirrors: Source, events: list[Event] | None = None) -> CheckpointDownload:
    seen: list[Event] = [] if events is None else events
    spool = Spool(SPOOL_PARENT)
    return CheckpointDownload(coordinator, mirrors, coordinator.manifest, spool, InlineWorker(), seen.append)


async def fetched(coordinator: Source, *mirrors: Source) -> bytes:
    return (await download_of(coordinator, *mirrors).fetch(CHECKPOINT)).to_bytes()


def with_wrong(source: Source, number: int, data: bytes) -> Source:
    """Return the source with these bytes in place of a part's."""
    source.blobs[NAMED[number].sha256] = data
    return source


@in_virtual_time
async def test_parts_come_from_both_sources_and_each_only_once() -> None:
    coordinator, mirror = Source(*PARTS), Source(*PARTS)
    events: list[Event] = []
    file = await download_of(coordinator, mirror, events=events).fetch(CHECKPOINT)
    assert file.to_bytes() == DATA
    assert coordinator.asked.total()
    assert mirror.asked.total()
    assert coordinator.asked.total() + mirror.asked.total() == len(PARTS)
    assert sum(event.size_bytes for event in events if isinstance(event, BlobFetched)) == len(DATA)


@in_virtual_time
async def test_checkpoint_of_one_part_needs_no_manifest() -> None:
    data = b"a small checkpoint"
    coordinator = Source(data)
    coordinator.manifests.clear()
    ref = CheckpointRef(4, sha256_hex(data), len(data), sha256_hex(b"replica"))
    assert (await download_of(coordinator).fetch(ref)).to_bytes() == data


@pytest.mark.parametrize("bad", ["coordinator", "mirror"])
@pytest.mark.parametrize(
    "wrong",
    [None, PARTS[1][:100], b"", PARTS[1] + b"!", PARTS[0], bytes(PART_BYTES)],
    ids=["missing", "truncated", "empty", "oversized", "swapped", "damaged"],
)
@in_virtual_time
async def test_part_that_is_wrong_at_one_source_comes_from_the_other(wrong: bytes | None, bad: str) -> None:
    sources = {"coordinator": Source(*PARTS), "mirror": Source(*PARTS)}
    if wrong is None:
        del sources[bad].blobs[NAMED[1].sha256]
    else:
        with_wrong(sources[bad], 1, wrong)
    assert await fetched(sources["coordinator"], sources["mirror"]) == DATA


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [(PARTS[1][:100], "truncated"), (PARTS[1] + b"!", "oversized"), (PARTS[0], "swapped"), (PARTS[1][::-1], "damaged")],
    ids=["truncated", "oversized", "swapped", "damaged"],
)
@in_virtual_time
async def test_part_that_is_wrong_everywhere_ends_by_name(wrong: bytes, rule: str) -> None:
    coordinator, mirror = (with_wrong(Source(*PARTS), 1, wrong) for _ in range(2))
    with pytest.raises(InvalidDocument, match="part 2 of 4 of the checkpoint of step 4") as error:
        await fetched(coordinator, mirror)
    assert error.value.context["rule"] == rule
    assert [source.asked[NAMED[1].sha256] for source in (coordinator, mirror)] == [ATTEMPTS_PER_SOURCE] * 2


@in_virtual_time
async def test_part_that_nobody_has_is_asked_for_again_and_only_that() -> None:
    coordinator = Source(*PARTS[:3])
    download = download_of(coordinator)
    with pytest.raises(Refused, match="no source has part 4 of 4") as error:
        await download.fetch(CHECKPOINT)
    assert error.value.kind == "not-found"
    coordinator.blobs[NAMED[3].sha256] = PARTS[3]
    assert (await download.fetch(CHECKPOINT)).to_bytes() == DATA
    assert [coordinator.asked[part.sha256] for part in NAMED] == [1, 1, 1, 2]


def left_in(parent: Path) -> list[Path]:
    """Return the files that processes have left."""
    return list(parent.glob(f"*/{PREFIX}*"))


def damage(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


async def broken_off(spool: Spool) -> None:
    """Fetch all parts but the last one, as a process does that ends then."""
    source = Source(*PARTS[:3])
    download = CheckpointDownload(source, (), source.manifest, spool, InlineWorker())
    with pytest.raises(Refused, match="no source has part 4 of 4"):
        await download.fetch(CHECKPOINT)
    spool.close()


@in_virtual_time
async def test_next_process_fetches_the_parts_that_the_last_one_lacks(tmp_path: Path) -> None:
    await broken_off(Spool(tmp_path))
    source, spool = Source(*PARTS), Spool(tmp_path)
    download = CheckpointDownload(source, (), source.manifest, spool, InlineWorker())
    file = await download.fetch(CHECKPOINT)
    assert file.to_bytes() == DATA
    assert [source.asked[part.sha256] for part in NAMED] == [0, 0, 0, 1]
    assert left_in(tmp_path), "it may be killed yet"
    spool.close()
    assert left_in(tmp_path) == []


@in_virtual_time
async def test_part_that_was_left_damaged_is_fetched_again(tmp_path: Path) -> None:
    await broken_off(Spool(tmp_path))
    (left,) = left_in(tmp_path)
    damage(left, PART_BYTES)
    source, spool = Source(*PARTS), Spool(tmp_path)
    download = CheckpointDownload(source, (), source.manifest, spool, InlineWorker())
    assert (await download.fetch(CHECKPOINT)).to_bytes() == DATA
    assert [source.asked[part.sha256] for part in NAMED] == [0, 1, 0, 1]


@in_virtual_time
async def test_parts_of_another_checkpoint_are_not_kept(tmp_path: Path) -> None:
    await broken_off(Spool(tmp_path))
    data = b"a small checkpoint"
    source, spool = Source(data), Spool(tmp_path)
    download = CheckpointDownload(source, (), source.manifest, spool, InlineWorker())
    ref = CheckpointRef(4, sha256_hex(data), len(data), sha256_hex(b"replica"))
    assert (await download.fetch(ref)).to_bytes() == data
    assert left_in(tmp_path) == []
    spool.close()


class Breaking(Source):
    """A source whose every answer breaks off after some bytes; `junk` puts wrong ones there."""

    def __init__(self, *blobs: bytes, junk: bool = False, name: str = "mirror") -> None:
        super().__init__(*blobs, name=name)
        self.junk = junk
        self.starts: list[int] = []

    async def get_blob(self, sha256: Sha256, file: ReceivedBytes) -> None:
        self.starts.append(file.size_bytes)
        data = bytes(PART_BYTES) if self.junk else self.blobs[sha256]
        file.append(data[file.size_bytes : file.size_bytes + 15_000])
        await asyncio.sleep(0.001)
        raise CoordinatorUnreachable("the connection broke")


@in_virtual_time
async def test_part_that_breaks_off_at_a_mirror_goes_on_where_it_stopped() -> None:
    coordinator, mirror = Source(*PARTS), Breaking(*PARTS)
    asked: list[int] = []

    async def get_blob(sha256: Sha256, file: ReceivedBytes) -> None:
        asked.append(file.size_bytes)
        await Source.get_blob(coordinator, sha256, file)

    coordinator.get_blob = get_blob  # type: ignore[method-assign]
    assert await fetched(coordinator, mirror) == DATA
    assert any(asked) or any(mirror.starts), "some attempt began where another one had stopped"
    assert len(mirror.starts) <= FAILURES_OF_MIRROR + len(PARTS)


@in_virtual_time
async def test_junk_of_a_mirror_does_not_use_up_the_coordinators_attempts() -> None:
    assert await fetched(Source(*PARTS), *[Breaking(junk=True, name=f"mirror {number}") for number in range(8)]) == DATA


class Hanging(Source):
    async def get_blob(self, sha256: Sha256, file: ReceivedBytes) -> None:
        await asyncio.Event().wait()


@in_virtual_time
async def test_mirror_that_hangs_delays_the_download_by_a_bounded_time() -> None:
    async with asyncio.timeout(300):
        assert await fetched(Source(*PARTS), Hanging()) == DATA


@in_virtual_time
async def test_coordinator_that_is_lost_ends_the_download_with_its_error() -> None:
    class Lost(Source):
        async def get_blob(self, sha256: Sha256, file: ReceivedBytes) -> None:
            raise CoordinatorUnreachable("no answer for 300 s")

    with pytest.raises(CoordinatorUnreachable, match="300 s"):
        await fetched(Lost(*PARTS))


@pytest.mark.parametrize("parts", [NAMED[::-1], NAMED[:2]], ids=["order", "few"])
@in_virtual_time
async def test_manifest_of_another_checkpoint_is_refused(parts: Sequence[CheckpointPart]) -> None:
    coordinator = Source(*PARTS)
    coordinator.manifests[CHECKPOINT.blob_sha256] = CheckpointManifest(tuple(parts))
    with pytest.raises(InvalidDocument):
        await fetched(coordinator)


@in_virtual_time
async def test_equal_parts_are_received_at_each_of_their_places() -> None:
    data = bytes(2 * PART_BYTES)
    part = CheckpointPart(sha256_hex(bytes(PART_BYTES)), PART_BYTES)
    ref = CheckpointRef(0, parts_digest((part, part)), len(data), sha256_hex(b"replica"), 2)
    coordinator = Source(bytes(PART_BYTES))
    coordinator.manifests[ref.blob_sha256] = CheckpointManifest((part, part))
    assert (await download_of(coordinator).fetch(ref)).to_bytes() == data
