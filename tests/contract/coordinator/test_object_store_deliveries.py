"""Blobs that clients put into an object store and read there: a real coordinator, a real S3 API behind a door."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest

from epochal.coordinator.store.object_store.blobs import ObjectBlobs
from epochal.coordinator.store.object_store.objects import Objects
from epochal.state.messages.requests import FailureReport
from epochal.state.wire import Sha256, sha256_hex
from tests.support.data.object_blobs import PREFIX, RUN_ID, s3_place
from tests.support.data.spooled import spooled
from tests.support.data.stored_blobs import blob_bytes
from tests.support.drive.served import ADMIN, DIFFERENCE, REPLICA, Served, WireClient, problem, training
from tests.support.drive.stored_run import LIMIT
from tests.support.servers.data_http import HttpReply
from tests.support.servers.s3_door import DoorRequest, S3Door, s3_error
from tests.support.servers.s3_server import BUCKET
from tests.support.thinned import thinned

INCOMING = f"/{BUCKET}/{PREFIX}/incoming/"
BLOBS = f"/{BUCKET}/{PREFIX}/blobs/"


async def granted(client: WireClient, data: bytes, *, commits: bool = True) -> dict[str, Any]:
    """Announces a result; returns how it is to be put into the store."""
    if commits:
        assert (await client.commit(data)).status_code == 200
    answer = await client.send("POST", f"/v1/blobs/{sha256_hex(data)}/grant")
    assert answer.status_code == 200
    return dict(answer.json())


async def put(grant: dict[str, Any], data: bytes) -> httpx.Response:
    async with httpx.AsyncClient() as http:
        return await http.put(grant["url"], content=data, headers=grant["headers"])


async def arrive(client: WireClient, data: bytes) -> httpx.Response:
    return await client.send("POST", f"/v1/blobs/{sha256_hex(data)}/arrival")


async def deliver(client: WireClient, data: bytes) -> None:
    assert (await put(await granted(client, data), data)).status_code == 200
    assert (await arrive(client, data)).status_code == 201


async def place_of(client: WireClient, sha256: Sha256, query: str = "") -> httpx.Response:
    return await client.send("GET", f"/v1/blobs/{sha256}{query}")


async def test_result_goes_to_the_store_and_is_counted(run: Served, door: S3Door) -> None:
    client, _ = await training(run)
    data = client.result(REPLICA, DIFFERENCE)
    await deliver(client, data)
    assert run.service.run.round is not None
    assert client.client_id in run.service.run.round.results.verified
    assert await blob_bytes(run.service.blobs, sha256_hex(data)) == data
    again = await granted(client, data, commits=False)
    assert again["delivered"]
    assert (await arrive(client, data)).status_code == 201
    assert [request.path for request in door.signed("PUT")] == [f"{INCOMING}{sha256_hex(data)}.{client.client_id}"]


async def test_signature_binds_length_and_digest(run: Served, door: S3Door) -> None:
    client, _ = await training(run)
    data = client.result(REPLICA, DIFFERENCE)
    grant = await granted(client, data)
    longer = await put(grant, data + b"x")
    other = await put(grant, bytes(len(data)))
    assert (longer.status_code, other.status_code) == (403, 400)
    assert "BadDigest" in other.text
    assert (await put(grant, data)).status_code == 200


async def test_blob_is_read_at_a_signed_url_by_members_and_the_operator(run: Served, door: S3Door) -> None:
    client, other = await training(run)
    data = client.result(REPLICA, DIFFERENCE)
    await deliver(client, data)
    hidden = await place_of(other, sha256_hex(data))
    assert problem(hidden) == "not-now"
    await deliver(other, other.result(REPLICA, DIFFERENCE))
    for token in (other.token, ADMIN):
        led = await other.send("GET", f"/v1/blobs/{sha256_hex(data)}", token=token)
        assert (led.status_code, led.headers["cache-control"]) == (307, "no-store")
        async with httpx.AsyncClient() as http:
            part = await http.get(led.headers["location"], headers={"Range": "bytes=5-"})
        assert (part.status_code, part.content) == (206, data[5:])
    stranger = await run.http.get(f"/v1/blobs/{sha256_hex(data)}")
    assert problem(stranger) == "unauthorized"


async def test_nobody_is_granted_a_blob_that_was_not_announced(run: Served) -> None:
    client, _ = await training(run)
    data = client.result(REPLICA, DIFFERENCE)
    assert problem(await client.send("POST", f"/v1/blobs/{sha256_hex(data)}/grant")) == "not-committed"
    assert problem(await arrive(client, data)) == "not-committed"


async def test_result_that_breaks_a_rule_is_refused_and_deleted(run: Served) -> None:
    client, _ = await training(run)
    data = client.result(REPLICA, {"w": np.full((2, 3), np.inf, np.float32)})
    assert (await put(await granted(client, data), data)).status_code == 200
    refused = await arrive(client, data)
    assert (problem(refused), refused.json()["rule"]) == ("result-invalid", "scale")
    assert await run.service.blobs.size(sha256_hex(data)) is None
    assert await objects(run) == []


async def objects(run: Served) -> list[str]:
    """The run's objects, without the first checkpoint."""
    assert run.store is not None
    blobs = run.store.blobs._objects
    assert blobs is not None
    kept = {checkpoint.blob_sha256 for checkpoint in run.service.run.models.checkpoints}
    listed = [*await blobs._objects.listed("blobs"), *await blobs._objects.listed("incoming")]
    return [item.key for item in listed if item.key.rpartition("/")[2] not in kept]


async def test_other_bytes_in_the_store_are_refused_and_may_be_put_again(run: Served, bucket: Any) -> None:
    import obstore

    client, _ = await training(run)
    data = client.result(REPLICA, DIFFERENCE)
    grant = await granted(client, data)
    await obstore.put_async(bucket, f"{PREFIX}/incoming/{sha256_hex(data)}.{client.client_id}", bytes(len(data)))
    refused = await arrive(client, data)
    assert problem(refused) == "blob-mismatch"
    assert sha256_hex(bytes(len(data))) in refused.json()["detail"]
    assert await objects(run) == []
    assert (await put(grant, data)).status_code == 200
    assert (await arrive(client, data)).status_code == 201


async def test_granted_upload_takes_room_until_its_round_is_over(run: Served) -> None:
    client, other = await training(run)
    held_bytes = run.service.blobs.total_bytes
    data = client.result(REPLICA, DIFFERENCE)
    await granted(client, data)
    assert run.service.blobs.total_bytes == held_bytes + len(data)
    for member in (client, other):
        assert (await member.send("POST", "/failures", FailureReport(1, 0, "trainer", "broken"))).status_code == 200
    assert run.service.blobs.total_bytes == held_bytes
    assert problem(await arrive(client, data)) == "not-committed"


async def test_client_is_not_blamed_for_a_result_without_room(run: Served) -> None:
    clients = await training(run)
    filling = bytes(LIMIT - run.service.blobs.total_bytes)

    async def body() -> AsyncIterator[bytes]:
        yield filling

    await run.service.blobs.receive(sha256_hex(filling), len(filling), body())
    by_store, by_coordinator = (client.result(REPLICA, DIFFERENCE) for client in clients)
    await clients[0].commit(by_store)
    assert problem(await clients[0].send("POST", f"/v1/blobs/{sha256_hex(by_store)}/grant")) == "blobs-full"
    await clients[1].commit(by_coordinator)
    assert problem(await clients[1].put_blob(by_coordinator)) == "blobs-full"
    assert run.service.run.round is not None
    assert run.service.run.round.missing.without_room == {client.client_id for client in clients}


@pytest.mark.parametrize(("difference", "kind"), [(b"more", "blob-too-large"), (None, "blob-mismatch")])
async def test_object_of_another_size_is_refused(run: Served, bucket: Any, difference: bytes | None, kind: str) -> None:
    import obstore

    client, _ = await training(run)
    data = client.result(REPLICA, DIFFERENCE)
    await granted(client, data)
    wrong = data[:-1] if difference is None else data + difference
    await obstore.put_async(bucket, f"{PREFIX}/incoming/{sha256_hex(data)}.{client.client_id}", wrong)
    refused = await arrive(client, data)
    assert problem(refused) == kind
    place = f"s3://{BUCKET}/{PREFIX}/incoming/{sha256_hex(data)}.{client.client_id}"
    assert refused.json()["detail"] == f"{place} has {len(wrong)} bytes; {len(data)} were announced"
    assert await objects(run) == []
    await client.api.put_blob(sha256_hex(data), spooled(data))


async def test_object_that_never_arrived_is_named(run: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.coordinator.store.object_store.blobs.SHOWN_WITHIN_S", 0.3)
    client, _ = await training(run)
    data = client.result(REPLICA, DIFFERENCE)
    await granted(client, data)
    refused = await arrive(client, data)
    assert problem(refused) == "body-incomplete"
    assert f"s3://{BUCKET}/{PREFIX}/incoming/{sha256_hex(data)}" in refused.json()["detail"]


async def test_object_that_shows_late_is_waited_for(run: Served, door: S3Door) -> None:
    client, _ = await training(run)
    data = client.result(REPLICA, DIFFERENCE)
    assert (await put(await granted(client, data), data)).status_code == 200
    hidden = [2]

    def late(request: DoorRequest) -> HttpReply | None:
        if request.method == "HEAD" and "incoming" in request.path and hidden[0]:
            hidden[0] -= 1
            return HttpReply(404)
        return None

    door.fault = late
    assert (await arrive(client, data)).status_code == 201
    assert hidden == [0]


@pytest.mark.nightly
@thinned(
    ("status", "code"), [(403, "AccessDenied"), (412, "PreconditionFailed"), (500, "InternalError"), (503, "SlowDown")]
)
async def test_store_that_fails_holds_the_run_which_goes_on(run: Served, door: S3Door, status: int, code: str) -> None:
    client, _ = await training(run)
    data = client.result(REPLICA, DIFFERENCE)
    assert (await put(await granted(client, data), data)).status_code == 200
    door.fault = lambda request: None if request.is_signed_url else s3_error(status, code)
    refused = await arrive(client, data)
    assert problem(refused) == "store-failed"
    assert f"s3://{BUCKET}/{PREFIX}" in refused.json()["detail"]
    door.fault = lambda _: None
    while run.service.health.blocked.is_set():
        await run.service.readers.wait_published(run.service.published.version, None, 0.2)
    assert (await arrive(client, data)).status_code == 201


async def test_object_that_vanished_is_named_once_somebody_misses_it(
    run: Served, bucket: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    monkeypatch.setattr("epochal.coordinator.store.object_store.blobs.SHOWN_WITHIN_S", 0.3)
    client, _ = await training(run)
    data = client.result(REPLICA, DIFFERENCE)
    await deliver(client, data)
    await obstore.delete_async(bucket, f"{PREFIX}/blobs/{sha256_hex(data)}")
    assert (await place_of(client, sha256_hex(data))).status_code == 307
    missed = await place_of(client, sha256_hex(data), "?looks=1")
    assert problem(missed) == "not-found"
    assert f"s3://{BUCKET}/{PREFIX}/blobs/{sha256_hex(data)} is not there any more" in missed.json()["detail"]
    assert "blob_lost" in [record.getMessage() for record in caplog.records]
    shown = (await run.http.get("/metrics")).text
    assert "epochal_coordinator_blobs_lost 1.0" in shown
    assert problem(await place_of(client, sha256_hex(data))) == "not-found"


async def test_blob_not_checked_before_a_crash_is_checked_at_the_next_start(door: S3Door, bucket: Any) -> None:
    import obstore

    right, wrong = b"the bytes", b"other bytes"
    for name in (right, b"announced"):
        await obstore.put_async(bucket, f"{PREFIX}/incoming/{sha256_hex(name)}.{'0' * 32}", right)
    await obstore.put_async(bucket, f"{PREFIX}/blobs/{sha256_hex(right)}", right)
    await obstore.put_async(bucket, f"{PREFIX}/blobs/{sha256_hex(b'announced')}", wrong)
    opened = await ObjectBlobs.open(Objects(s3_place(door.url), RUN_ID), LIMIT)
    assert await opened.held() == {sha256_hex(right)}
