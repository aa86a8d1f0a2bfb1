"""`coordinator_client/resumed_uploads.py`: from where a blob is sent; the coordinator may have lost some."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

from epochal.coordinator_client.resumed_uploads import MAX_OFFSETS, ResumedUploads
from epochal.state.errors import CoordinatorUnreachable, Refused
from epochal.state.messages.blob_messages import UploadProgress
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256, sha256_hex
from tests.support.data.spooled import spooled

if TYPE_CHECKING:
    from epochal.runtime.files.spool_part import SentBytes

DATA = bytes(range(200))
SHA256 = sha256_hex(DATA)


class Coordinator:
    """Says of how many bytes it knows: one number for each question and each refused rest."""

    def __init__(self, *arrived: int) -> None:
        self.arrived = list(arrived)
        self.bodies: list[bytes] = []

    async def progress(self, sha256: Sha256) -> UploadProgress:
        return UploadProgress(self.arrived.pop(0))

    async def send(self, path: str, headers: Mapping[str, str], file: "SentBytes") -> None:
        self.bodies.append(file.to_bytes())
        start = int(headers.get("Content-Range", "bytes 0-").split()[1].partition("-")[0])
        assert self.bodies[-1] == DATA[start:]
        if len(self.bodies) == 1:
            raise CoordinatorUnreachable("the connection ended")
        if start and self.arrived:
            raise Refused(Refusal.OFFSET_DIFFERS, "other bytes follow", received_bytes=self.arrived.pop(0))


async def lengths_sent(coordinator: Coordinator) -> list[int]:
    """Deliver the blob, whose first request breaks; return how many bytes each request brought."""
    uploads = ResumedUploads(coordinator.progress, coordinator.send)
    with pytest.raises(CoordinatorUnreachable):
        await uploads.put(SHA256, spooled(DATA))
    await uploads.put(SHA256, spooled(DATA))
    return [len(body) for body in coordinator.bodies]


async def test_rest_begins_where_the_coordinator_says_that_it_does() -> None:
    assert await lengths_sent(Coordinator(50)) == [200, 150]
    assert await lengths_sent(Coordinator(50, 80)) == [200, 150, 120]
    assert await lengths_sent(Coordinator(50, 80, 20)) == [200, 150, 120, 180]


async def test_coordinator_that_lost_all_receives_the_whole() -> None:
    assert await lengths_sent(Coordinator(0)) == [200, 200]
    assert await lengths_sent(Coordinator(50, 0)) == [200, 150, 200]


async def test_coordinator_that_contradicts_itself_receives_the_whole() -> None:
    assert await lengths_sent(Coordinator(*[50] * 20)) == [200, *[150] * MAX_OFFSETS, 200]
