"""Checkpoints from real web servers over loopback: whole ones, bad ones, and several at once."""

import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochal.coordinator_client.mirrors import Mirror
from epochal.run_manager.replica.checkpoint_download import CheckpointDownload
from epochal.runtime.files.spool import Spool
from epochal.runtime.files.spool_part import ReceivedFile
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.checkpoint_parts import CheckpointManifest, CheckpointPart, part_ranges, parts_digest
from epochal.state.documents import CheckpointRef
from epochal.state.errors import CoordinatorUnreachable, EpochalError, InvalidDocument
from epochal.state.wire import Sha256, sha256_hex
from tests.support.data.held_blobs import HeldBlobs
from tests.support.servers.nginx import Nginx, nginx

DATA = random.Random(2).randbytes(1_000_000)
RANGES = list(part_ranges(len(DATA), 150_000))
PARTS = tuple(CheckpointPart(sha256_hex(DATA[start:stop]), stop - start) for start, stop in RANGES)
CHECKPOINT = CheckpointRef(3, parts_digest(PARTS), len(DATA), sha256_hex(b"replica"), len(PARTS))


def fill(folder: Path) -> Path:
    """Write the parts as a run directory keeps them; return the folder."""
    for (start, stop), part in zip(RANGES, PARTS, strict=True):
        place_of(folder, part).parent.mkdir(parents=True, exist_ok=True)
        place_of(folder, part).write_bytes(DATA[start:stop])
    return folder


def place_of(folder: Path, part: CheckpointPart) -> Path:
    return folder / part.sha256[:2] / part.sha256


@contextlib.asynccontextmanager
async def mirror_at(url: str) -> AsyncIterator[Mirror]:
    mirror = Mirror.at(url)
    try:
        yield mirror
    finally:
        await mirror.aclose()


async def begun(mirror: Mirror, tmp_path: Path, held_bytes: int = 0) -> bytes:
    """Return the first part from a mirror, of which the beginning has arrived before."""
    file = Spool(tmp_path).file()
    target = ReceivedFile(file, PARTS[0].size_bytes)
    target.append(DATA[:held_bytes])
    await mirror.get_blob(PARTS[0].sha256, target)
    return file.to_bytes()


@pytest.mark.parametrize("place", ["data", "whole", "moved"])
async def test_part_comes_from_a_web_server_and_is_continued(tmp_path: Path, place: str) -> None:
    with nginx(tmp_path / "nginx", fill(tmp_path / "blobs")) as server:
        async with mirror_at(f"{server.url}/{place}/") as mirror:
            assert await begun(mirror, tmp_path) == DATA[:150_000]
            assert await begun(mirror, tmp_path, 100_000) == DATA[:150_000]


@pytest.mark.parametrize(
    ("place", "kind"), [("nowhere", InvalidDocument), ("denied", InvalidDocument), ("broken", CoordinatorUnreachable)]
)
async def test_server_that_answers_otherwise_is_an_error_by_name(
    tmp_path: Path, place: str, kind: type[EpochalError]
) -> None:
    with nginx(tmp_path / "nginx", fill(tmp_path / "blobs")) as server:
        async with mirror_at(f"{server.url}/{place}") as mirror:
            with pytest.raises(kind):
                await begun(mirror, tmp_path)


def sent(server: Nginx) -> int:
    """Return the number of parts that a server has sent whole."""
    return sum(" 200 " in line for line in server.requests())


async def test_parts_come_from_two_servers_of_which_each_is_wrong_in_some(tmp_path: Path) -> None:
    """The coordinator has only the parts that both servers have wrongly."""
    one, other = fill(tmp_path / "one"), fill(tmp_path / "other")
    place_of(one, PARTS[0]).unlink()
    place_of(one, PARTS[1]).write_bytes(DATA[150_000:200_000])
    place_of(other, PARTS[2]).write_bytes(place_of(other, PARTS[3]).read_bytes())
    for folder in (one, other):
        place_of(folder, PARTS[4]).write_bytes(bytes(150_000))
    start, stop = RANGES[4]
    coordinator = HeldBlobs(DATA[start:stop])
    coordinator.manifests[CHECKPOINT.blob_sha256] = CheckpointManifest(PARTS)

    async def manifest(sha256: Sha256) -> CheckpointManifest:
        return await coordinator.manifest(sha256)

    with nginx(tmp_path / "nginx-1", one) as first, nginx(tmp_path / "nginx-2", other) as second:
        async with mirror_at(f"{first.url}/data") as a, mirror_at(f"{second.url}/data") as b:
            download = CheckpointDownload(coordinator, (a, b), manifest, Spool(tmp_path), InlineWorker())
            file = await download.fetch(CHECKPOINT)
            assert bytes(file.view()) == DATA
        assert sent(first)
        assert sent(second)
