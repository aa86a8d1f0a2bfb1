"""A run whose database waits for a synchronous standby that is gone: it holds, and goes on where it was."""

from pathlib import Path

import pytest

from tests.support.drive.processes import in_training
from tests.support.drive.replicas import replicated_run
from tests.support.servers.postgres_server import postgres_server

COMMITS_THAT_WAIT = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.mark.nightly
async def test_run_holds_while_commits_wait_for_a_standby_and_goes_on(tmp_path: Path) -> None:
    with postgres_server() as server:
        async with replicated_run(tmp_path, server, 1, config__total_steps=40) as replicas:
            run, (replica,) = replicas.run, replicas.all
            await run.start_client()
            await run.until(in_training(2))
            server.wait_for_standby("gone")
            await replicas.ready(replica, is_ready=False)
            ((waiting,),) = server.execute(COMMITS_THAT_WAIT)
            assert waiting > 0
            server.wait_for_standby("")
            await replicas.ready(replica)
            assert (await run.finish()).rounds == 40
