"""`run_manager/replica/checkpoint_download.py`: several parts at once, and what may be wrong with one."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from epochal.run_manager.events import BlobFetched, Event
from epochal.run_manager.replica.checkpoint_download import ATTEMPTS, CheckpointDownload
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


def download_of(coordinator: HeldBlobs, events: list[Event] | None = None) -> CheckpointDownload:
    seen: list[Event] = [] if events is None else events
    return CheckpointDownload(coordinator, Spool(SPOOL_PARENT), InlineWorker(), seen.append)


def source(*blobs: bytes) -> HeldBlobs:
    """Return a coordinator with these blobs, and the manifest of the checkpoint."""
    found = HeldBlobs(*blobs)
    found.manifests[CHECKPOINT.blob_sha256] = CheckpointManifest(NAMED)
    return found


async def fetched(coordinator: HeldBlobs) -> bytes:
    return (await download_of(coordinator).fetch(CHECKPOINT)).to_bytes()


@in_virtual_time
async def test_each_part_is_asked_for_once() -> None:
    coordinator, events = source(*PARTS), list[Event]()
    assert (await download_of(coordinator, events).fetch(CHECKPOINT)).to_bytes() == DATA
    assert coordinator.asked.total() == len(PARTS)
    assert sum(event.size_bytes for event in events if isinstance(event, BlobFetched)) == len(DATA)


@in_virtual_time
async def test_checkpoint_of_one_part_needs_no_manifest() -> None:
    data = b"a small checkpoint"
    ref = CheckpointRef(4, sha256_hex(data), len(data), sha256_hex(b"replica"))
    assert (await download_of(HeldBlobs(data)).fetch(ref)).to_bytes() == data


WRONG = {"truncated": PARTS[1][:100], "oversized": PARTS[1] + b"!", "swapped": PARTS[0], "damaged": PARTS[1][::-1]}


@pytest.mark.parametrize("rule", WRONG)
@in_virtual_time
async def test_part_that_is_always_wrong_ends_by_name(rule: str) -> None:
    coordinator = source(*PARTS)
    coordinator.blobs[NAMED[1].sha256] = WRONG[rule]
    with pytest.raises(InvalidDocument, match="part 2 of 4 of the checkpoint of step 4") as error:
        await fetched(coordinator)
    assert error.value.context["rule"] == rule
    assert coordinator.asked[NAMED[1].sha256] == ATTEMPTS


class WrongOnce(HeldBlobs):
    """A coordinator whose first answer for the second part is wrong."""

    wrong: bytes

    async def get_blob(self, sha256: Sha256, file: ReceivedBytes) -> None:
        if sha256 == NAMED[1].sha256 and not self.asked[sha256]:
            self.asked[sha256] += 1
            file.append(self.wrong)
        else:
            await super().get_blob(sha256, file)


@pytest.mark.parametrize("rule", WRONG)
@in_virtual_time
async def test_part_that_was_wrong_once_is_fetched_again(rule: str) -> None:
    coordinator = WrongOnce(*PARTS)
    coordinator.wrong = WRONG[rule]
    coordinator.manifests[CHECKPOINT.blob_sha256] = CheckpointManifest(NAMED)
    assert await fetched(coordinator) == DATA


@in_virtual_time
async def test_part_that_is_missing_is_asked_for_again_and_only_that() -> None:
    coordinator = source(*PARTS[:3])
    download = download_of(coordinator)
    with pytest.raises(Refused, match="the coordinator lacks part 4 of 4") as error:
        await download.fetch(CHECKPOINT)
    assert error.value.kind == "not-found"
    coordinator.blobs[NAMED[3].sha256] = PARTS[3]
    assert (await download.fetch(CHECKPOINT)).to_bytes() == DATA
    assert [coordinator.asked[part.sha256] for part in NAMED] == [1, 1, 1, 2]


class Breaking(HeldBlobs):
    """A coordinator that is lost after some bytes of each part, until it is back."""

    is_back = False

    async def get_blob(self, sha256: Sha256, file: ReceivedBytes) -> None:
        if self.is_back:
            assert file.size_bytes == min(15_000, len(self.blobs[sha256]))
            file.append(self.blobs[sha256][file.size_bytes :])
        else:
            file.append(self.blobs[sha256][:15_000])
            await asyncio.sleep(0.001)
            raise CoordinatorUnreachable("no answer for 300 s")


@in_virtual_time
async def test_lost_coordinator_ends_the_download_which_then_goes_on() -> None:
    coordinator = Breaking(*PARTS)
    coordinator.manifests[CHECKPOINT.blob_sha256] = CheckpointManifest(NAMED)
    download = download_of(coordinator)
    with pytest.raises(CoordinatorUnreachable, match="300 s"):
        await download.fetch(CHECKPOINT)
    coordinator.is_back = True
    assert (await download.fetch(CHECKPOINT)).to_bytes() == DATA


@pytest.mark.parametrize("parts", [NAMED[::-1], NAMED[:2]], ids=["order", "few"])
@in_virtual_time
async def test_manifest_of_another_checkpoint_is_refused(parts: Sequence[CheckpointPart]) -> None:
    coordinator = source(*PARTS)
    coordinator.manifests[CHECKPOINT.blob_sha256] = CheckpointManifest(tuple(parts))
    with pytest.raises(InvalidDocument):
        await fetched(coordinator)


@in_virtual_time
async def test_equal_parts_are_received_at_each_of_their_places() -> None:
    data = bytes(2 * PART_BYTES)
    part = CheckpointPart(sha256_hex(bytes(PART_BYTES)), PART_BYTES)
    ref = CheckpointRef(0, parts_digest((part, part)), len(data), sha256_hex(b"replica"), 2)
    coordinator = HeldBlobs(bytes(PART_BYTES))
    coordinator.manifests[ref.blob_sha256] = CheckpointManifest((part, part))
    assert (await download_of(coordinator).fetch(ref)).to_bytes() == data
