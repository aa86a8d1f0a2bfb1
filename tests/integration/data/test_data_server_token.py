"""A data server's own token: made from the store or at the coordinator's address, and used by the command."""

import asyncio
import time
from pathlib import Path

import pytest

from epochal.coordinator.auth.signing_key import SigningKey
from epochal.coordinator.auth.tokens import SessionTokens
from epochal.state.wire import ClientId
from tests.support.bounds import BOUND_S
from tests.support.drive.processes import real_run

DATA = 'dir = "data"\ntoken_size = "TwoBytes"\nseq_len = 16\n'
VOUCHED = 'epochal_http_connections{peer="member"} 1.0\n'


@pytest.mark.nightly
async def test_token_from_store_or_address_gives_the_data_server_its_place(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one.bin").write_bytes(bytes(4096))
    (tmp_path / "data.toml").write_text(DATA, encoding="utf-8")
    async with real_run(tmp_path) as run:
        admin, wrong = {"EPOCHAL_ADMIN_TOKEN": run.admin_token}, {"EPOCHAL_ADMIN_TOKEN": "wrong"}
        another = SessionTokens(SigningKey(bytes(32)), "another").session_token(ClientId("a" * 32), 1, time.time())
        server = ("data-server", str(tmp_path / "data.toml"), "--coordinator", run.url, "--port", "0")
        from_store, from_address, forbidden, unknown, of_another_run = await asyncio.gather(
            run.command("token", "data-server", str(run.run_dir)),
            run.command("token", "data-server", run.url, **admin),
            run.command("token", "data-server", run.url, **wrong),
            run.command(*server, "--token", "wrong"),
            run.command(*server, EPOCHAL_DATA_SERVER_TOKEN=another),
        )
        forbidden.expect(1, "admin token")
        unknown.expect(2, "--token (or EPOCHAL_DATA_SERVER_TOKEN) is not a token of the coordinator")
        of_another_run.expect(2, "`epochal token data-server` makes one")
        for made in (from_store, from_address):
            made.expect(0)
            headers = {"Authorization": f"Bearer {made.out.strip()}"}
            assert (await run.http.get("/v1/runs/test-run", headers=headers)).status_code == 200
        child = await run.children.start(
            "data-server", *server, environment={"EPOCHAL_DATA_SERVER_TOKEN": from_store.out.strip()}
        )
        await run.line_of(child, "listening on ")
        async with asyncio.timeout(BOUND_S):
            while VOUCHED not in (await run.http.get("/metrics")).text:
                continue
