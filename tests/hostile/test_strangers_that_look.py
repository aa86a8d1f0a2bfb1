"""Strangers that look at a run without end take neither the places nor the time of members and of the operator."""

import asyncio

import pytest

from epochal.coordinator.insight import history_views, viewers
from epochal.coordinator.run.long_polls import Pool, ReaderKind
from tests.support.bounds import BOUND_S
from tests.support.drive.played_rounds import play_round
from tests.support.drive.run_place import RunPlace
from tests.support.drive.served import GENESIS, problem, served_over_sockets, training
from tests.support.servers.event_stream import viewing

STREAMS = 3
SMALL = {
    kind: Pool(total=STREAMS, each=STREAMS) for kind in (ReaderKind.STRANGER, ReaderKind.MEMBER, ReaderKind.OPERATOR)
}


async def test_viewers_at_one_address_leave_places_to_member_and_operator(
    place: RunPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewers, "POOLS", SMALL)
    async with asyncio.timeout(BOUND_S), served_over_sockets(place, GENESIS) as run:
        (member, _) = await training(run)
        await run.insight.history.is_read.wait()
        async with viewing(run) as one, viewing(run) as two, viewing(run) as three:
            for viewer in (one, two, three):
                await viewer.next()
            for token in (None, "made up"):
                headers = {} if token is None else {"Authorization": f"Bearer {token}"}
                refused = await run.http.get(f"{run.run_url}/events", headers=headers)
                assert problem(refused) == "overloaded"
            for token in (member.token, run.admin_token):
                async with viewing(run, token=token) as viewer:
                    assert await viewer.next() is not None


async def test_strangers_that_merge_long_histories_without_end_are_refused_alone(
    place: RunPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_views, "FREE_ROWS", 1)
    monkeypatch.setattr(history_views, "STRANGERS_PARTS_AT_ONCE", 1)
    async with asyncio.timeout(BOUND_S), served_over_sockets(place, GENESIS, config__total_steps=100) as run:
        members = await training(run)
        for _ in range(4):
            await play_round(run, members)
        await run.insight.history.is_read.wait()
        parts = [f"{run.run_url}/history?from={first}&points=2" for first in range(3)]
        made, refused = await run.http.get(parts[0]), await run.http.get(parts[1])
        assert (made.status_code, problem(refused)) == (200, "rate-limited")
        for free in ("", "?points=512", "?from=3", "?from=3&to=3&points=7"):
            assert (await run.http.get(f"{run.run_url}/history{free}")).status_code == 200
        for token in (members[0].token, run.admin_token):
            answers = [await members[0].send("GET", part.removeprefix(run.run_url), token=token) for part in parts]
            assert {answer.status_code for answer in answers} == {200}
