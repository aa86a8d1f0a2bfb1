"""A client's blobs by way of an object store that refuses, fails, hangs and loses things."""

from collections.abc import Callable
from typing import Any

import pytest

from epochal.coordinator.store.object_store.objects import SIGNED_FOR_S
from epochal.coordinator_client.stored_blobs import MAX_STORE_REFUSALS
from epochal.runtime.files.spool import Spool
from epochal.runtime.files.spool_part import ReceivedFile
from epochal.state.errors import Refused
from epochal.state.wire import sha256_hex
from tests.support.data.object_blobs import PREFIX
from tests.support.data.spooled import SPOOL_PARENT, spooled
from tests.support.drive.served import DIFFERENCE, REPLICA, Served, WireClient, training
from tests.support.servers.data_http import HttpReply
from tests.support.servers.s3_door import DoorRequest, S3Door, s3_error
from tests.support.servers.s3_server import BUCKET
from tests.support.thinned import thinned


@pytest.fixture
async def client(run: Served) -> WireClient:
    """One of two clients in RoundTrain."""
    one, _ = await training(run)
    return one


async def fetched(client: WireClient, data: bytes, held: bytes = b"") -> bytes:
    """What a client reads of a result after the bytes that it holds."""
    file = spooled(held)
    await client.api.get_blob(sha256_hex(data), file)
    return file.to_bytes()


async def test_client_puts_and_gets_a_result_by_way_of_the_store(client: WireClient, door: S3Door) -> None:
    data = client.result(REPLICA, DIFFERENCE)
    assert (await client.commit(data)).status_code == 200
    await client.api.put_blob(sha256_hex(data), spooled(data))
    await client.api.put_blob(sha256_hex(data), spooled(data))
    assert len(door.signed("PUT")) == 1
    assert await fetched(client, data) == data
    assert await fetched(client, data, data[:7]) == data
    assert door.signed("GET")[-1].headers["range"] == "bytes=7-"
    assert all("authorization" not in request.headers for request in door.requests if request.is_signed_url)


async def both_ways(client: WireClient, data: bytes) -> None:
    """Puts a result and gets it."""
    await client.api.put_blob(sha256_hex(data), spooled(data))
    assert await fetched(client, data) == data


def first_ones(count: int, reply: HttpReply, method: str) -> Callable[[DoorRequest], HttpReply | None]:
    """A fault of the first signed requests of a method."""
    left = [count]

    def fault(request: DoorRequest) -> HttpReply | None:
        if request.is_signed_url and request.method == method and left[0]:
            left[0] -= 1
            return reply
        return None

    return fault


@thinned(("status", "code"), [(403, "AccessDenied"), (404, "NoSuchKey"), (412, "PreconditionFailed")], kept=1)
@thinned("method", ["PUT", "GET"])
async def test_refusal_of_the_store_is_answered_with_a_new_request(
    client: WireClient, door: S3Door, method: str, status: int, code: str
) -> None:
    data = client.result(REPLICA, DIFFERENCE)
    await client.commit(data)
    door.fault = first_ones(1, s3_error(status, code), method)
    await client.api.put_blob(sha256_hex(data), spooled(data))
    assert await fetched(client, data) == data
    assert len(door.signed(method)) == 2


@pytest.mark.parametrize("method", ["PUT", "GET"])
async def test_url_that_has_expired_is_replaced_by_a_fresh_one(client: WireClient, door: S3Door, method: str) -> None:
    data = client.result(REPLICA, DIFFERENCE)
    await client.commit(data)

    def first_comes_late(request: DoorRequest) -> None:
        is_first = request.is_signed_url and request.method == method and len(door.signed(method)) == 1
        door.ahead_s = SIGNED_FOR_S + 1 if is_first else 0

    door.fault = first_comes_late
    await both_ways(client, data)
    assert len(door.signed(method)) == 2


@pytest.mark.nightly
@pytest.mark.parametrize(("method", "kind"), [("PUT", "body-incomplete"), ("GET", "not-found")])
async def test_store_that_goes_on_refusing_is_named_after_a_few_requests(
    client: WireClient, door: S3Door, method: str, kind: str
) -> None:
    data = client.result(REPLICA, DIFFERENCE)
    await client.commit(data)
    door.fault = first_ones(100, s3_error(403, "AccessDenied", "not yours"), method)
    with pytest.raises(Refused, match=r"the object store answered 403 to .*AccessDenied: not yours") as refused:
        await both_ways(client, data)
    assert refused.value.kind == kind
    assert "X-Amz-Signature" not in str(refused.value)
    assert len(door.signed(method)) == MAX_STORE_REFUSALS


@pytest.mark.nightly
@thinned("status", [500, 503], kept=1)
@thinned("method", ["PUT", "GET"])
async def test_store_that_fails_now_may_be_asked_later(
    client: WireClient, door: S3Door, method: str, status: int
) -> None:
    data = client.result(REPLICA, DIFFERENCE)
    await client.commit(data)
    door.fault = first_ones(1, s3_error(status, "SlowDown"), method)
    with pytest.raises(Refused, match=f"answered {status}") as refused:
        await both_ways(client, data)
    assert (refused.value.kind, refused.value.kind.may_retry) == ("store-failed", True)
    await client.api.put_blob(sha256_hex(data), spooled(data))
    assert await fetched(client, data) == data


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["PUT", "GET"])
async def test_store_that_hangs_is_named_after_its_time(
    client: WireClient, door: S3Door, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    data = client.result(REPLICA, DIFFERENCE)
    await client.commit(data)
    door.fault = first_ones(1, HttpReply(200, b"", announced_bytes=10, hangs=True), method)
    with monkeypatch.context() as patch:
        patch.setattr("epochal.coordinator_client.stored_blobs.BLOB_TIMEOUT_S", 2)  # enough for the other way
        with pytest.raises(Refused, match=f"does not answer {method}") as refused:
            await both_ways(client, data)
    assert refused.value.kind == "store-failed"
    await both_ways(client, data)


async def test_body_that_breaks_off_is_continued_where_it_broke(client: WireClient, door: S3Door) -> None:
    data = client.result(REPLICA, DIFFERENCE)
    await client.commit(data)
    await client.api.put_blob(sha256_hex(data), spooled(data))
    door.fault = first_ones(1, HttpReply(200, data[:11], announced_bytes=len(data)), "GET")
    assert await fetched(client, data) == data
    assert door.signed("GET")[-1].headers["range"] == "bytes=11-"


async def delivered(client: WireClient) -> bytes:
    """Delivers a result by way of the store; returns it."""
    data = client.result(REPLICA, DIFFERENCE)
    await client.commit(data)
    await client.api.put_blob(sha256_hex(data), spooled(data))
    return data


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@thinned("change", [flipped, lambda data: data + b"x", lambda data: data[:-1], lambda _: b""])
async def test_client_is_told_that_an_object_was_overwritten(
    client: WireClient, bucket: Any, change: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    import obstore

    data = await delivered(client)
    key = f"{PREFIX}/blobs/{sha256_hex(data)}"
    await obstore.put_async(bucket, key, change(data))
    for _ in range(2):  # a later reader is told the same at once
        file = ReceivedFile(Spool(SPOOL_PARENT).file(), len(data))
        with pytest.raises(Refused, match=f"s3://{BUCKET}/{key} was overwritten: it") as refused:
            await client.api.get_blob(sha256_hex(data), file)
        assert refused.value.kind == "not-found"
    (lost,) = [record for record in caplog.records if record.getMessage() == "blob_lost"]
    assert f"{key} was overwritten" in lost.reason  # type: ignore[attr-defined]


async def test_other_bytes_on_the_way_are_asked_for_again(client: WireClient, door: S3Door) -> None:
    data = await delivered(client)
    door.fault = first_ones(1, HttpReply(200, flipped(data)), "GET")
    assert await fetched(client, data) == data
    door.fault = first_ones(1, HttpReply(200, data + b"x"), "GET")
    file = ReceivedFile(Spool(SPOOL_PARENT).file(), len(data))
    await client.api.get_blob(sha256_hex(data), file)
    assert file.sha256() == sha256_hex(data)


async def test_way_that_always_changes_bytes_costs_one_reader_the_blob(
    client: WireClient, run: Served, door: S3Door
) -> None:
    data = await delivered(client)
    door.fault = first_ones(100, HttpReply(200, flipped(data)), "GET")
    with pytest.raises(Refused, match=f"{door.url}/.*{sha256_hex(data)} has other bytes than blob") as refused:
        await fetched(client, data)
    assert (refused.value.kind, len(door.signed("GET"))) == ("not-found", MAX_STORE_REFUSALS)
    assert "Signature" not in str(refused.value)
    assert await run.service.blobs.size(sha256_hex(data)) == len(data), "the coordinator finds its bytes"
