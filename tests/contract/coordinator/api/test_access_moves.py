"""Who may join, and who was told what, while a run moves into a database and back, and is restored from a backup."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from epochal.coordinator.machine.stimuli import NoticeRaised, NoticeSettled
from epochal.coordinator.proof.backup import back_up
from epochal.coordinator.proof.migrate_store import move
from epochal.coordinator.serve import ServeOptions, serving
from epochal.coordinator_client.operator import connect_operator
from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.runtime.http.http_server import Endpoint
from epochal.state.messages.access_commands import InvitationRequest
from epochal.state.messages.notices import Notice
from tests.support.data.states import state_file
from tests.support.drive.served import GENESIS, Served, WireClient, problem
from tests.support.servers.postgres_server import PostgresServer


class Operated:
    """One run wherever it is kept, with the admin token that its first start printed."""

    def __init__(self, mode: str, blobs: Path) -> None:
        self.state = state_file(config__waiting_for_members_extra_time=0.001, access__mode=mode)
        self.token: str | None = None
        self.blobs = blobs

    @contextlib.asynccontextmanager
    async def at(self, store: object, *, is_restored: bool = False) -> AsyncIterator[tuple[Served, ViewerClient]]:
        """Serve it from a store."""
        folder = self.blobs if str(store).startswith("postgres") else None
        options = ServeOptions(
            str(store), Endpoint(port=0), genesis=GENESIS, blobs_folder=folder, is_restored=is_restored
        )
        async with serving(self.state, options) as running, httpx.AsyncClient(base_url=running.url) as http:
            self.token = running.admin_token or self.token
            run = Served(running.handlers.service, running.handlers, http, f"/v1/runs/{self.state.run_id}")
            async with await connect_operator(running.url, self.token) as operator:
                yield run, operator


async def moved(source: object, target: object, blobs: Path | None = None) -> None:
    report = await move(str(source), str(target), blobs, lambda _: None)
    assert report.audit.passed


async def joins(run: Served, number: int, code: str | None = None) -> str:
    client = WireClient(run, number)
    answer = await client.send("POST", "/clients", await client.join_request(code))
    return "joined" if answer.status_code == 200 else problem(answer)


async def told(run: Served) -> Notice:
    """Have a webhook told of the run's end; return the notice as it is kept."""
    await run.insight.ready()
    await run.service.submit(NoticeRaised("end", "7", "the run has ended", 3600.0))
    (raised,) = (notice for notice in run.insight.projection.notices.notices() if notice.kind == "end")
    await run.service.submit(NoticeSettled("end", raised.raised_s, "hook"))
    return await kept(run)


async def kept(run: Served) -> Notice:
    await run.insight.ready()
    (notice,) = (notice for notice in run.insight.projection.notices.notices() if notice.kind == "end")
    return notice


@pytest.mark.nightly
async def test_invitations_and_notices_move_with_the_run(tmp_path: Path, database_server: PostgresServer) -> None:
    blobs, here, there, back = tmp_path / "blobs", tmp_path / "run", database_server.new_database(), tmp_path / "back"
    blobs.mkdir()
    operated = Operated("invitations", blobs)
    async with operated.at(here) as (run, operator):
        code = (await operator.invite(InvitationRequest(3))).code
        revoked = await operator.invite(InvitationRequest(1))
        await operator.revoke(revoked.id)
        assert await joins(run, 1, code) == "joined"
        notice = await told(run)
        assert notice.settled == ("hook",)
    await moved(here, there, blobs)
    async with operated.at(there) as (run, operator):
        assert await kept(run) == notice
        assert await joins(run, 9, revoked.code) == "access-denied"
        assert await joins(run, 2, code) == "joined"
        (listed,) = (await operator.invitations()).invitations
        assert (listed.uses, listed.used) == (3, 2)
    await moved(there, back)
    async with operated.at(back) as (run, operator):
        assert await kept(run) == notice
        assert [await joins(run, number, code) for number in (2, 3, 4)] == ["joined", "joined", "access-denied"]
        await back_up(str(back), tmp_path / "copy", lambda _: None)
    async with operated.at(tmp_path / "copy", is_restored=True) as (run, operator):
        assert await kept(run) == notice
        assert [await joins(run, number, code) for number in (1, 4)] == ["joined", "access-denied"]
        (listed,) = (await operator.invitations()).invitations
        assert (listed.uses, listed.used) == (3, 3)


async def test_admitted_keys_move_with_the_run(tmp_path: Path, database_server: PostgresServer) -> None:
    blobs, here, there, back = tmp_path / "blobs", tmp_path / "run", database_server.new_database(), tmp_path / "back"
    blobs.mkdir()
    operated = Operated("keys", blobs)
    async with operated.at(here) as (run, operator):
        first, second = (WireClient(run, number).key.public_key for number in (1, 2))
        await operator.admit_key(first)
        assert [await joins(run, number) for number in (1, 2)] == ["joined", "access-denied"]
    await moved(here, there, blobs)
    async with operated.at(there) as (run, operator):
        assert [await joins(run, number) for number in (1, 2)] == ["joined", "access-denied"]
        await operator.remove_key(first)
        await operator.admit_key(second)
    await back_up(there, tmp_path / "copy", lambda _: None)
    await moved(there, back)
    for store, is_restored in ((back, False), (tmp_path / "copy", True)):
        async with operated.at(store, is_restored=is_restored) as (run, operator):
            assert [one.public_key for one in (await operator.access()).keys] == [second]
            assert [await joins(run, number) for number in (1, 2)] == ["access-denied", "joined"]
