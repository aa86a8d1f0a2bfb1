"""`coordinator_client/mirror.py`: a client whose mirror serves, lacks, damages, delays and breaks."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from epochal.coordinator_client import mirror
from epochal.coordinator_client.http import CoordinatorClient
from epochal.coordinator_client.mirror import Mirror
from epochal.runtime.files.spool import Spool
from epochal.runtime.files.spool_part import ReceivedFile
from epochal.runtime.http.http_client import open_client
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import InvalidInput
from epochal.state.wire import sha256_hex
from tests.support.data.spooled import SPOOL_PARENT
from tests.support.servers.data_http import HttpReply, HttpRequest, http_server
from tests.support.servers.ports import free_port

BLOB = bytes(range(256)) * 400
SHA256 = sha256_hex(BLOB)
PATH = f"/v1/blobs/{SHA256}"


@dataclass
class BlobServer:
    """Serves the blob, or gives `reply` to each request."""

    reply: HttpReply | None = None
    requests: list[HttpRequest] = field(default_factory=list)

    async def __call__(self, request: HttpRequest) -> HttpReply:
        self.requests.append(request)
        if self.reply is not None:
            return self.reply
        start = int(request.headers.get("range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        headers = {"Content-Range": f"bytes {start}-{len(BLOB) - 1}/{len(BLOB)}"} if start else {}
        return HttpReply(206 if start else 200, BLOB[start:], headers)

    @property
    def ranges(self) -> list[str | None]:
        return [request.headers.get("range") for request in self.requests]


@dataclass
class Mirrored:
    """A client with a coordinator and a mirror."""

    client: CoordinatorClient
    coordinator: BlobServer
    mirror: BlobServer

    async def fetched(self, held: bytes = b"") -> bytes:
        """Return what the client reads after the bytes that it holds."""
        file = Spool(SPOOL_PARENT).file()
        file.append(held)
        await self.client.get_blob(SHA256, ReceivedFile(file, len(BLOB)))
        return file.to_bytes()


@asynccontextmanager
async def mirrored(reply: HttpReply | None = None, url: str | None = None) -> AsyncIterator[Mirrored]:
    coordinator, other = BlobServer(), BlobServer(reply)
    async with (
        http_server(coordinator) as coordinator_url,
        http_server(other) as mirror_url,
        open_client(coordinator_url, "coordinator", True) as http,
        CoordinatorClient(http, "run", mirror=Mirror(url or mirror_url)) as client,
    ):
        client.use_token("a secret")
        yield Mirrored(client, coordinator, other)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == mirror.__name__]


async def test_mirror_serves_without_a_token_and_the_coordinator_is_not_asked() -> None:
    async with mirrored() as one:
        assert await one.fetched() == BLOB
        assert await one.fetched(BLOB[:1000]) == BLOB
        assert one.mirror.ranges == [None, "bytes=1000-"]
        assert {request.path for request in one.mirror.requests} == {PATH}
        assert not any("authorization" in request.headers for request in one.mirror.requests)
        assert one.coordinator.requests == []


FAILED = {
    "other bytes": HttpReply(200, BLOB[::-1]),
    "too few bytes": HttpReply(200, BLOB[:-1]),
    "too many bytes": HttpReply(200, BLOB + b"more"),
    "another range": HttpReply(206, BLOB[7:], {"Content-Range": f"bytes 7-{len(BLOB) - 1}/{len(BLOB)}"}),
    "an error": HttpReply(500, b"later"),
    "a refusal": HttpReply(403, b"no"),
    "a redirect": HttpReply(307, b"", {"Location": "http://127.0.0.1:9/elsewhere"}),
    "a broken body": HttpReply(200, BLOB[:3000], announced_bytes=len(BLOB)),
}


@pytest.mark.parametrize("fault", FAILED)
async def test_mirror_that_fails_is_left_alone_and_the_coordinator_asked(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with mirrored(FAILED[fault]) as one:
        assert [await one.fetched(), await one.fetched()] == [BLOB] * 2
        assert len(one.mirror.requests) == 1
        assert said(caplog) == ["mirror_failed"]


async def test_body_that_breaks_at_the_mirror_is_continued_at_the_coordinator() -> None:
    async with mirrored(FAILED["a broken body"]) as one:
        assert await one.fetched() == BLOB
        assert one.coordinator.ranges == ["bytes=3000-"]


async def test_wrong_bytes_that_break_off_come_from_the_coordinator_next_time() -> None:
    wrong = HttpReply(200, b"x" * 3000, announced_bytes=len(BLOB))
    async with mirrored(wrong) as one:
        assert sha256_hex(await one.fetched()) != SHA256, "whoever asked compares them, and asks again"
        assert await one.fetched() == BLOB


async def test_mirror_that_lacks_a_blob_is_asked_for_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with mirrored(HttpReply(404)) as one:
        for _ in range(3):
            assert await one.fetched() == BLOB
        assert len(one.mirror.requests) == 3
        one.mirror.reply = None
        assert await one.fetched() == BLOB
        assert len(one.coordinator.requests) == 3
        assert said(caplog) == ["mirror_lacks_blob"]


async def test_slow_mirror_is_given_up_and_what_it_gave_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mirror, "BODY_GRACE_S", 0.5)
    async with mirrored(HttpReply(200, BLOB[:2000], announced_bytes=len(BLOB), hangs=True)) as one:
        assert await one.fetched() == BLOB
        assert one.coordinator.ranges in (["bytes=2000-"], [None])
        assert said(caplog) == ["mirror_failed"]


async def test_mirror_that_is_down_costs_one_attempt(caplog: pytest.LogCaptureFixture) -> None:
    async with mirrored(url=f"http://127.0.0.1:{free_port()}") as one:
        assert [await one.fetched(), await one.fetched()] == [BLOB] * 2
        (line,) = (record for record in caplog.records if record.name == mirror.__name__)
        assert "connection refused" in line.__dict__["reason"]


async def test_mirror_that_failed_is_asked_again_after_its_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "REST_S", 0.0)
    async with mirrored(FAILED["an error"]) as one:
        assert await one.fetched() == BLOB
        one.mirror.reply = None
        assert await one.fetched() == BLOB
        assert (len(one.coordinator.requests), len(one.mirror.requests)) == (1, 2)


async def test_mirror_of_a_wrong_url_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(InvalidInput, match="mirror URL ftp://a"):
        await CoordinatorClient.connect("http://127.0.0.1:9", RetryPolicy(attempts=1), mirror="ftp://a")
