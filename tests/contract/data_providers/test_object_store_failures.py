"""Failures of a bucket's server, and Azure's own listing: obstore against real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from epochal.data_providers.open_data import OpenOptions, open_location
from epochal.data_providers.protocol import CorruptData, DatasetSpec, Rejected, SourceUnavailable
from epochal.data_providers.sources.byte_source import Wanted, read
from epochal.data_providers.sources.object_store import MAX_CONCURRENT_REQUESTS, ObjectStoreSource
from epochal.runtime import buckets
from epochal.runtime.buckets import MAX_RETRIES
from epochal.runtime.permissions import OWNERS
from epochal.state.config.data_location import S3, Azure
from epochal.state.errors import DataError
from epochal.state.intervals import DataIds
from tests.support.bounds import BOUND_S
from tests.support.heavy import need_module
from tests.support.servers.data_http import Answer, HttpReply, HttpRequest, http_server

TOKENS = np.arange(64, dtype="<u2")
WRITTEN = "Mon, 02 Jan 2023 10:00:00 GMT"
AZURE_LISTING = f"""<?xml version="1.0" encoding="utf-8"?>
<EnumerationResults ServiceEndpoint="https://a.blob.core.windows.net/" ContainerName="c"><Prefix>d/</Prefix><Blobs>
<Blob><Name>d/a.bin</Name><Properties><Creation-Time>{WRITTEN}</Creation-Time><Last-Modified>{WRITTEN}</Last-Modified>
<Etag>0x8DAECA5A</Etag><Content-Length>{TOKENS.nbytes}</Content-Length>
<Content-Type>a/b</Content-Type></Properties></Blob>
</Blobs><NextMarker /></EnumerationResults>"""


@pytest.fixture(autouse=True)
def _obstore() -> None:
    need_module("obstore")


@asynccontextmanager
async def s3_source(answer: Answer) -> AsyncIterator[ObjectStoreSource]:
    """A bucket on a server with these answers."""
    async with http_server(answer) as url:
        yield await ObjectStoreSource.open(S3(bucket_name="b", endpoint=url), OWNERS)


@pytest.mark.parametrize(("etag", "is_same"), [('"0x8DAECA5A"', True), ('"0x8DAECA5B"', False)])
async def test_azure_container_is_read_though_its_listing_has_no_quotes(etag: str, is_same: bool) -> None:
    async def answer(request: HttpRequest) -> HttpReply:
        """As Microsoft's documentation of "List Blobs" and "Get Blob" has it."""
        if request.query.get("comp") == "list":
            assert (request.path, request.query["prefix"]) == ("/c", "d/")
            return HttpReply(200, AZURE_LISTING.encode())
        first, last = request.byte_range() or (0, TOKENS.nbytes - 1)
        part = TOKENS.tobytes()[first : last + 1]
        headers = {"ETag": etag, "Last-Modified": WRITTEN}
        return HttpReply(206, part, headers | {"Content-Range": f"bytes {first}-{last}/{TOKENS.nbytes}"})

    async with http_server(answer) as url:
        location = Azure(account_name="a", container_name="c", filter_directory="d", endpoint=url)
        provider = await open_location(location, DatasetSpec(2, 16), OpenOptions("run", lambda: "", OWNERS))
        if is_same:
            assert (await provider.get_samples(DataIds(1, 2))).input_ids.tolist() == list(range(16, 48))
        else:
            with pytest.raises(CorruptData, match=r"az://a/c/d/a\.bin changed"):
                await provider.get_samples(DataIds(1, 2))
        await provider.aclose()


@pytest.mark.parametrize(
    ("status", "error", "requests"),
    [
        (400, Rejected, 1),
        (401, Rejected, 1),
        (403, Rejected, 1),
        (404, Rejected, 1),
        (429, SourceUnavailable, MAX_RETRIES + 1),
        (500, SourceUnavailable, MAX_RETRIES + 1),
        (503, SourceUnavailable, MAX_RETRIES + 1),
    ],
)
@pytest.mark.parametrize("when", ["listing", "reading"])
async def test_status_of_a_store_is_refusal_or_retried_within_a_bound(
    status: int, error: type[DataError], requests: int, when: str
) -> None:
    failed = 0

    async def answer(request: HttpRequest) -> HttpReply:
        nonlocal failed
        if when == "reading" and "list-type" in request.query:
            return HttpReply(200, S3_LISTING.encode())
        failed += 1
        return HttpReply(status, b"<Error><Code>Some</Code></Error>")

    with pytest.raises(error, match="s3://b"):
        async with s3_source(answer) as source:
            await read(source, "a.bin", 0, 8)
    assert failed == requests


S3_LISTING = """<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><IsTruncated>false</IsTruncated><Contents>
<Key>a.bin</Key><LastModified>2023-01-02T10:00:00.250Z</LastModified><Size>128</Size></Contents></ListBucketResult>"""


async def test_object_without_an_etag_is_the_same_while_its_second_is() -> None:
    async def answer(request: HttpRequest) -> HttpReply:
        if "list-type" in request.query:
            return HttpReply(200, S3_LISTING.encode())
        first, last = request.byte_range() or (0, 127)
        headers = {"Last-Modified": WRITTEN, "Content-Range": f"bytes {first}-{last}/128"}
        return HttpReply(206, TOKENS.tobytes()[first : last + 1], headers)

    async with s3_source(answer) as source:
        assert await read(source, "a.bin", 2, 6) == b"\x01\x00\x02\x00"


async def test_store_that_hangs_is_unavailable_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MAX_RETRIES", 1)

    async def answer(_: HttpRequest) -> HttpReply:
        return HttpReply(200, b"<", announced_bytes=1000, hangs=True)

    async with http_server(answer) as url:
        store = buckets.store_of(S3(bucket_name="b", endpoint=url), buckets.StoreAccess(OWNERS, timeout="200ms"))
        with pytest.raises(SourceUnavailable, match="s3://b cannot be read"):
            await ObjectStoreSource.over(store, "s3://b", "")


async def test_store_that_does_not_answer_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MAX_RETRIES", 0)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(SourceUnavailable, match="s3://tokens"):
        await ObjectStoreSource.open(S3(bucket_name="tokens", filter_directory="data", endpoint=url), OWNERS)


@pytest.mark.parametrize(
    ("status", "part", "content_range", "error", "message"),
    [
        (416, b"", "bytes */20", CorruptData, "changed: it is shorter"),
        (206, b"0123456789", "bytes 10-19/20", CorruptData, "changed: it had 128 bytes"),
        (206, b"0" * 100, "bytes 0-99/128", SourceUnavailable, "cannot be read"),
        (200, b"0" * 128, "", Rejected, "cannot be requested"),
    ],
    ids=["beyond the end", "cut short", "another part", "all of it"],
)
async def test_answer_that_is_not_the_range_is_never_taken(
    status: int, part: bytes, content_range: str, error: type[DataError], message: str
) -> None:
    async def answer(request: HttpRequest) -> HttpReply:
        if "list-type" in request.query:
            return HttpReply(200, S3_LISTING.encode())
        return HttpReply(status, part, {"Last-Modified": WRITTEN, "Content-Range": content_range})

    async with s3_source(answer) as source:
        with pytest.raises(error, match=message):
            await read(source, "a.bin", 10, 110)


async def test_interrupted_body_is_continued_where_it_ended() -> None:
    asked: list[tuple[int, int] | None] = []

    async def answer(request: HttpRequest) -> HttpReply:
        if "list-type" in request.query:
            return HttpReply(200, S3_LISTING.replace("<Size>", "<ETag>x</ETag><Size>").encode())
        first, last = request.byte_range() or (0, 127)
        asked.append((first, last))
        part = TOKENS.tobytes()[first : last + 1]
        headers = {"ETag": "x", "Last-Modified": WRITTEN, "Content-Range": f"bytes {first}-{last}/128"}
        return HttpReply(206, part[:40] if len(asked) == 1 else part, headers, announced_bytes=len(part))

    async with s3_source(answer) as source:
        assert await read(source, "a.bin", 10, 110) == TOKENS.tobytes()[10:110]
    assert asked == [(10, 109), (50, 109)]


async def test_bucket_of_another_region_is_rejected_without_a_retry() -> None:
    async def answer(_: HttpRequest) -> HttpReply:
        return HttpReply(301, b"<Error><Code>PermanentRedirect</Code></Error>", {"x-amz-bucket-region": "eu-west-1"})

    with pytest.raises(Rejected, match="region"):
        async with s3_source(answer):
            pass


async def test_ranges_of_a_bucket_are_requested_concurrently() -> None:
    under_way, most, crowded = 0, 0, asyncio.Event()

    async def answer(request: HttpRequest) -> HttpReply:
        nonlocal under_way, most
        if "list-type" in request.query:
            return HttpReply(200, S3_LISTING.encode())
        under_way += 1
        most = max(most, under_way)
        if most == MAX_CONCURRENT_REQUESTS:
            crowded.set()
        await crowded.wait()
        under_way -= 1
        ((first, last),) = request.byte_ranges()
        headers = {"Last-Modified": WRITTEN, "Content-Range": f"bytes {first}-{last}/128"}
        return HttpReply(206, TOKENS.tobytes()[first : last + 1], headers)

    async with s3_source(answer) as source, asyncio.timeout(BOUND_S):
        wanted = [Wanted("a.bin", start, memoryview(bytearray(2))) for start in range(0, 128, 2)]
        await source.read_many_into(wanted)
    assert b"".join(one.into for one in wanted) == TOKENS.tobytes()
