"""Pages of results that come with the bytes of small ones: what a member gets, when, and never before it may."""

import httpx
import pytest

from epochal.coordinator.blobs import recent_results
from epochal.state.messages.deliveries import MEDIA_TYPE, encoded_delivery
from epochal.state.messages.requests import ResultCommitment, ResultMetrics
from epochal.state.messages.result_bundles import PageAndBytes, parse_bundle
from epochal.state.wire import sha256_hex
from tests.support.drive.served import DIFFERENCE, REPLICA, Served, WireClient, training


async def delivered(member: WireClient) -> bytes:
    """Deliver the member's result with its commitment, and return its bytes."""
    data, current = member.result(REPLICA, DIFFERENCE), member.served.service.run.round
    assert current is not None
    metrics = ResultMetrics(loss=1.0, tokens=1, train_s=0.1)
    bound = ResultCommitment(current.number.step, current.number.attempt, sha256_hex(data), len(data), metrics)
    headers = {"Authorization": f"Bearer {member.token}", "Content-Type": MEDIA_TYPE}
    url, body = f"{member.served.run_url}/deliveries", encoded_delivery(bound, data)
    assert (await member.served.http.post(url, content=body, headers=headers)).status_code == 200
    return data


async def listed(served: Served, token: str | None, more: str = "&bytes=true") -> httpx.Response:
    current = served.service.run.round
    assert current is not None
    place = f"{served.run_url}/rounds/{current.number.step}/results?attempt={current.number.attempt}&after=0{more}"
    return await served.http.get(place, headers={} if token is None else {"Authorization": f"Bearer {token}"})


async def bundle(member: WireClient) -> PageAndBytes:
    answer = await listed(member.served, member.token)
    assert answer.headers["Content-Type"] == MEDIA_TYPE
    return parse_bundle(answer.content)


async def test_page_comes_with_bytes_of_others_once_the_own_result_is_in(coordinator: Served) -> None:
    first, second = await training(coordinator)
    one = await delivered(first)
    assert await bundle(second) == ((await bundle(second))[0], {}), "commit before reveal"
    two = await delivered(second)
    assert (await bundle(first))[1] == {sha256_hex(two): two}
    assert (await bundle(second))[1] == {sha256_hex(one): one}
    assert len((await bundle(second))[0].results) == 2


async def test_bytes_that_are_not_in_memory_are_read(coordinator: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_results, "MAX_RECENT_BYTES", 0)
    first, second = await training(coordinator)
    one = await delivered(first)
    await delivered(second)
    assert (await bundle(second))[1] == {sha256_hex(one): one}


async def test_bytes_are_no_more_than_may_come_with_a_page(
    coordinator: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await training(coordinator)
    one = await delivered(first)
    await delivered(second)
    monkeypatch.setattr(recent_results, "MAX_BUNDLED_BYTES", len(one) - 1)
    found = await bundle(second)
    assert (found[1], len(found[0].results)) == ({}, 2)


async def test_lost_bytes_are_left_out_of_the_page(coordinator: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_results, "MAX_RECENT_BYTES", 0)
    first, second = await training(coordinator)
    one = await delivered(first)
    await delivered(second)
    store = coordinator.store
    assert store is not None
    await store.recorded_blobs.drop([sha256_hex(one)], store.journal.database.sequence)
    assert (await bundle(second))[1] == {}


async def test_strangers_get_the_page_alone(coordinator: Served) -> None:
    first, second = await training(coordinator)
    for member in (first, second):
        await delivered(member)
    for answer in (await listed(coordinator, None), await listed(coordinator, first.token, more="")):
        assert answer.headers["Content-Type"] == "application/json"
        assert len(answer.json()["results"]) == 2
