"""Every command that reads a run, on one that is served from a database, and on a copy by PostgreSQL's tools."""

import json
from pathlib import Path

import pytest

from tests.support.drive.replicas import replicated_run
from tests.support.servers.postgres_server import postgres_server

STEPS = 3


@pytest.mark.nightly
async def test_commands_read_a_run_that_is_served_from_a_database(tmp_path: Path) -> None:
    with postgres_server() as server:
        async with replicated_run(tmp_path, server, 2, config__total_steps=STEPS) as replicas:
            run, url = replicas.run, replicas.run.store
            await run.start_client()
            await run.finish()

            async def report(*arguments: str) -> dict[str, object]:
                ran = await run.command(*arguments, "--json")
                assert ran.code == 0, ran.err
                found: dict[str, object] = json.loads(ran.out)
                return found

            evaluated = await report("evaluate", url, "--samples", "8", "--name", "held-out")
            assert evaluated["step"] == STEPS
            audited = await report("audit", url, "--recompute")
            assert (audited["problems"], audited["replicas_identical"]) == ([], True)
            ran = await run.command("export", url, "--out", str(tmp_path / "exported"))
            assert (ran.code, (tmp_path / "exported").is_dir()) == (0, True), ran.err
            copied = await report("backup", url, str(tmp_path / "copy"))
            assert copied["blobs"] == audited["blobs"]
            restored = server.new_database()
            server.copy(url, restored)
            assert await report("audit", restored, "--recompute") == audited
