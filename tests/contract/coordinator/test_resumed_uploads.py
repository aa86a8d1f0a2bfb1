"""Uploads over real connections that break: the rest is sent, by the same member, and the whole is compared."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from epochal.coordinator.blobs import resumable_uploads, transfers
from epochal.coordinator.blobs.intake import MAX_CHECKS
from epochal.coordinator.run.genesis import Genesis
from epochal.coordinator.store.files.folder import FolderPlace
from epochal.coordinator_client.http import CoordinatorClient
from epochal.coordinator_client.resumed_uploads import ASKED_FROM_BYTES
from epochal.coordinator_client.session import ClientProfile, CoordinatorSession
from epochal.runtime.http.http_client import open_client
from epochal.runtime.retry import RetryPolicy
from epochal.state.config.model_table import ModelSpec
from epochal.state.errors import CoordinatorUnreachable, Refused, StoreBlocked
from epochal.state.model.first_model import FirstModel
from epochal.state.model.replica import Replica
from epochal.state.model.tensors import TensorLayout
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256, sha256_hex
from tests.support.bounds import BOUND_S
from tests.support.data.spooled import fetched, spooled
from tests.support.data.stored_blobs import one_piece
from tests.support.drive.served import (
    DIFFERENCE,
    REPLICA,
    SPEC,
    Served,
    WireClient,
    problem,
    served_over_sockets,
    training,
)
from tests.support.servers.cutting_relay import CuttingRelay, cutting_relay, until
from tests.support.servers.plain_http import PLAIN
from tests.support.simulate.simulated_client import key_of

BROKEN_AT = 100
LARGE = Replica(0, {"w": np.ones((1024, 1025), np.float32)}, {"w": np.zeros((1024, 1025), np.float32)})


async def make_large(step: int) -> FirstModel:
    return FirstModel.of(SPEC, replace(LARGE, step=step))


def large_layout(_: ModelSpec) -> TensorLayout:
    return LARGE.layout


@dataclass
class Uploading:
    """A member that has committed to a result, and uploads it."""

    run: Served
    relay: CuttingRelay
    member: WireClient
    other: WireClient
    data: bytes

    @property
    def sha256(self) -> Sha256:
        return sha256_hex(self.data)

    @asynccontextmanager
    async def process(self) -> AsyncIterator[CoordinatorClient]:
        """A client's process, which knows nothing of an earlier one."""
        async with (
            open_client(self.relay.url, "coordinator", PLAIN) as http,
            CoordinatorClient(http, self.member.api.run_id) as api,
        ):
            api.use_token(self.member.token)
            yield api

    async def break_off(self, api: CoordinatorClient, cut_after: int, data: bytes | None = None) -> None:
        """Upload until the connection breaks, when so many bytes more have arrived."""
        before = self.run.service.blobs.total_bytes
        self.relay.cut_after = cut_after
        self.relay.until = lambda: self.run.service.blobs.total_bytes == before + cut_after
        with pytest.raises(CoordinatorUnreachable):
            await api.put_blob(self.sha256, spooled(self.data if data is None else data))
        self.relay.cut_after = None

    async def progress(self, member: WireClient | None = None) -> int:
        answer = await (member or self.member).send("GET", f"/v1/blobs/{self.sha256}/upload")
        return int(answer.json()["received_bytes"])

    async def put_from(self, member: WireClient, start: int, data: bytes, **headers: str) -> httpx.Response:
        whole = len(self.data)
        headers = {"Authorization": f"Bearer {member.token}", "Content-Range": f"bytes {start}-{whole - 1}/{whole}"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        return await self.run.http.put(f"/v1/blobs/{self.sha256}", content=data, headers=headers)

    def is_counted(self) -> bool:
        current = self.run.service.run.round
        return current is not None and self.member.client_id in current.results.verified


@asynccontextmanager
async def uploading(folder: Path) -> AsyncIterator[Uploading]:
    async with served_over_sockets(folder) as run:
        member, other = await training(run)
        data = member.result(REPLICA, DIFFERENCE)
        assert (await member.commit(data)).status_code == 200
        url = run.http.base_url
        async with cutting_relay(url.host, url.port or 80) as relay:
            place, bearer = f"{run.run_url}/clients/me", f"Authorization: Bearer {member.token}"
            relay.introduction = f"GET {place} HTTP/1.1\r\nHost: {url.host}\r\n{bearer}\r\n\r\n".encode()
            yield Uploading(run, relay, member, other, data)


@pytest.fixture(autouse=True)
def direct_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


async def test_upload_that_breaks_again_and_again_arrives_once(tmp_path: Path) -> None:
    step = 25
    async with uploading(tmp_path) as upload, upload.process() as api:
        starts = range(0, len(upload.data), step)
        for _ in starts[1:]:
            await upload.break_off(api, step)
        assert not upload.is_counted()
        await api.put_blob(upload.sha256, spooled(upload.data))
        assert upload.is_counted()
        assert upload.relay.starts == list(starts)
        assert upload.relay.sent_bytes == len(upload.data)


async def test_upload_that_breaks_on_a_kept_connection_goes_on(tmp_path: Path) -> None:
    async with uploading(tmp_path) as upload, upload.process() as api:
        checkpoint = upload.run.service.run.models.checkpoints[0].blob_sha256
        for _ in range(3):
            await fetched(api, checkpoint)
            await upload.break_off(api, BROKEN_AT)
        await fetched(api, checkpoint)
        await api.put_blob(upload.sha256, spooled(upload.data))
        assert upload.is_counted()
        assert upload.relay.starts == [0, BROKEN_AT, 2 * BROKEN_AT, 3 * BROKEN_AT]
        assert upload.relay.sent_bytes == len(upload.data)


async def test_upload_that_breaks_after_its_last_byte_is_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with uploading(tmp_path) as upload, upload.process() as api, AsyncExitStack() as while_checks_wait:
        for _ in range(MAX_CHECKS):
            await while_checks_wait.enter_async_context(upload.run.handlers.intake.checking)
        await upload.break_off(api, len(upload.data))
        monkeypatch.setattr(resumable_uploads, "FINISHED_WITHIN_S", 0.01)
        with pytest.raises(Refused, match="all of blob") as refused:
            await api.put_blob(upload.sha256, spooled(upload.data))
        assert refused.value.kind is Refusal.OVERLOADED
        monkeypatch.undo()
        await while_checks_wait.aclose()
        await api.put_blob(upload.sha256, spooled(upload.data))
        assert upload.is_counted()
        assert upload.relay.starts == [0]
        assert upload.relay.sent_bytes == len(upload.data)


@pytest.mark.nightly
async def test_upload_that_was_too_slow_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with uploading(tmp_path) as upload, upload.process() as api:
        arrived = upload.run.service.blobs.total_bytes + BROKEN_AT

        def has_given_up() -> bool:
            if upload.run.handlers.uploads.running_count or upload.run.service.blobs.total_bytes != arrived:
                return False
            upload.relay.cut_after = None
            monkeypatch.undo()
            return True

        session = CoordinatorSession(api, ClientProfile(key_of(1)), RetryPolicy(bound_s=20), lambda _: None)
        monkeypatch.setattr(transfers, "GRACE_S", 0.1)
        upload.relay.cut_after, upload.relay.until = BROKEN_AT, has_given_up
        await session.put_blob(upload.sha256, spooled(upload.data))
        assert upload.is_counted()
        assert upload.relay.starts == [0, BROKEN_AT]


async def test_result_that_is_held_is_counted_unread(tmp_path: Path) -> None:
    async with uploading(tmp_path) as upload, asyncio.timeout(20):
        await upload.run.service.blobs.receive(upload.sha256, len(upload.data), one_piece(upload.data))
        url = upload.run.http.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(upload.relay.introduction)
        await reader.readuntil(b" 200 OK")
        head = [
            f"PUT /v1/blobs/{upload.sha256} HTTP/1.1",
            f"Host: {url.host}",
            f"Authorization: Bearer {upload.member.token}",
            f"Content-Length: {len(upload.data)}",
        ]
        writer.write("\r\n".join([*head, "", ""]).encode() + upload.data[:BROKEN_AT])
        await reader.readuntil(b" 201 Created")
        writer.close()
        assert upload.is_counted()


async def test_large_upload_is_gone_on_with_by_later_processes(tmp_path: Path) -> None:
    genesis, codec = Genesis(large_layout, make_large), {"merge__codec": "float32"}
    async with served_over_sockets(tmp_path, genesis, **codec) as run:
        member, other = await training(run, replica=LARGE)
        member.codec = "float32"
        data = member.result(LARGE, {"w": np.random.default_rng(1).standard_normal((1024, 1025)).astype(np.float32)})
        assert len(data) > ASKED_FROM_BYTES
        assert (await member.commit(data)).status_code == 200
        url, breaks = run.http.base_url, [1, 262_144, 262_145, 3_000_000]
        async with cutting_relay(url.host, url.port or 80) as relay:
            upload = Uploading(run, relay, member, other, data)
            for cut_after in breaks:
                async with upload.process() as api:
                    await upload.break_off(api, cut_after)
            async with upload.process() as api:
                await api.put_blob(upload.sha256, spooled(data))
        assert upload.is_counted()
        assert relay.starts == [sum(breaks[:count]) for count in range(len(breaks) + 1)]
        assert relay.sent_bytes == len(data)


async def test_upload_begins_anew_after_the_coordinator_has(tmp_path: Path) -> None:
    async with uploading(tmp_path) as upload, upload.process() as api:
        await upload.break_off(api, BROKEN_AT)
        token, data = upload.member.token, upload.data
    assert list((tmp_path / "blobs" / "partial").iterdir()) == []
    async with served_over_sockets(tmp_path) as run, CoordinatorClient(run.http, "test-run") as api:
        api.use_token(token)
        assert (await api.upload_progress(sha256_hex(data))).received_bytes == 0
        await api.put_blob(sha256_hex(data), spooled(data))
        assert (await api.upload_progress(sha256_hex(data))).delivered


async def test_another_member_neither_goes_on_with_an_upload_nor_stops_it(tmp_path: Path) -> None:
    async with uploading(tmp_path) as upload, upload.process() as api:
        await upload.break_off(api, BROKEN_AT)
        assert problem(await upload.put_from(upload.other, BROKEN_AT, upload.data[BROKEN_AT:])) == "not-committed"
        assert (await upload.other.commit(upload.data)).status_code == 200
        assert await upload.progress(upload.other) == 0
        refused = await upload.put_from(upload.other, BROKEN_AT, upload.data[BROKEN_AT:])
        assert (problem(refused), refused.json()["received_bytes"]) == ("offset-differs", 0)
        assert problem(await upload.put_from(upload.other, 0, b"x" * len(upload.data))) == "blob-mismatch"
        await api.put_blob(upload.sha256, spooled(upload.data))
        assert upload.is_counted()
        assert upload.relay.starts == [0, BROKEN_AT]


async def test_request_that_goes_on_takes_over_from_one_that_hangs(tmp_path: Path) -> None:
    async with uploading(tmp_path) as upload:
        hangs = asyncio.Event()

        async def beginning() -> AsyncIterator[bytes]:
            yield upload.data[:BROKEN_AT]
            await hangs.wait()
            yield upload.data[BROKEN_AT:]

        headers = {"Authorization": f"Bearer {upload.member.token}", "Content-Length": str(len(upload.data))}
        before = upload.run.service.blobs.total_bytes
        first = asyncio.create_task(
            upload.run.http.put(f"/v1/blobs/{upload.sha256}", content=beginning(), headers=headers)
        )
        await until(lambda: upload.run.service.blobs.total_bytes == before + BROKEN_AT)
        assert await upload.progress() == BROKEN_AT
        assert (await upload.put_from(upload.member, BROKEN_AT, upload.data[BROKEN_AT:])).status_code == 201
        hangs.set()
        assert problem(await first) == "body-incomplete"
        assert upload.is_counted()


async def test_wrong_bytes_of_an_earlier_attempt_are_not_trusted(tmp_path: Path) -> None:
    async with uploading(tmp_path) as upload, upload.process() as api:
        await upload.break_off(api, BROKEN_AT, b"x" * len(upload.data))
        await api.put_blob(upload.sha256, spooled(upload.data))
        assert upload.is_counted()
        assert upload.relay.starts == [0, BROKEN_AT, 0]


LIES = {
    "bytes 100-{last}/{more}": "blob-too-large",
    "bytes 101-{whole}/{more}": "blob-too-large",
    "bytes 99-{less}/{last}": "blob-mismatch",
    "bytes 99-{less}/{whole}": "blob-mismatch",
    "bytes 99-{last}/{whole}": "invalid-parameter",
    "bytes 100-{last}/*": "invalid-parameter",
    "bytes {whole}-{last}/{whole}": "invalid-parameter",
    "bytes 100-{last}/{last}": "invalid-parameter",
}


async def test_rest_of_a_lying_length_is_refused_and_costs_nothing(tmp_path: Path) -> None:
    async with uploading(tmp_path) as upload, upload.process() as api:
        await upload.break_off(api, BROKEN_AT)
        whole = len(upload.data)
        for lie, kind in LIES.items():
            place = lie.format(whole=whole, last=whole - 1, less=whole - 2, more=whole + 1)
            rest = upload.data[BROKEN_AT:]
            assert problem(await upload.put_from(upload.member, 0, rest, Content_Range=place)) == kind, lie
        assert await upload.progress() == BROKEN_AT


async def test_broken_upload_ends_with_its_senders_membership(tmp_path: Path) -> None:
    async with uploading(tmp_path) as upload, upload.process() as api:
        before = upload.run.service.blobs.total_bytes
        await upload.break_off(api, BROKEN_AT)
        assert (await upload.member.send("DELETE", "/clients/me")).status_code == 204
        await until(lambda: upload.run.service.blobs.total_bytes == before)


async def test_broken_upload_gives_its_room_to_a_run_that_a_full_disk_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderPlace, "retry_s", 0.01)
    async with uploading(tmp_path) as upload, upload.process() as api:
        before = upload.run.service.blobs.total_bytes
        await upload.break_off(api, BROKEN_AT)
        upload.run.service.note_failure(StoreBlocked("no space", is_full=True, needed_bytes=2**60))
        answer = await upload.put_from(upload.member, BROKEN_AT, upload.data[BROKEN_AT:])
        assert problem(answer) == "store-failed"
        async with asyncio.timeout(BOUND_S):
            await until(lambda: upload.run.service.blobs.total_bytes == before)
