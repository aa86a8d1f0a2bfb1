"""A run whose database fails over to a standby: real servers, real coordinators, real clients."""

from pathlib import Path

import pytest

from tests.support.drive.processes import in_training
from tests.support.drive.replicas import Replica, Replicas, replicated_run
from tests.support.servers.postgres_server import ServerPair, postgres_server, standby_of


def noticed(replicas: Replicas) -> list[Replica]:
    """Return the coordinators that noticed that the journal went back."""
    return [replica for replica in replicas.all if replicas.run.events(replica.child, "journal_went_back")]


def taken_for_older_copies(replicas: Replicas) -> bool:
    """Return whether a coordinator held because its members knew a later version than the database."""
    blocked = (line for replica in replicas.all for line in replicas.run.events(replica.child, "store_blocked"))
    return any("older copy" in line["reason"] for line in blocked)


@pytest.mark.nightly
async def test_failover_that_loses_records_gives_the_run_a_new_lineage(tmp_path: Path) -> None:
    with postgres_server() as primary, standby_of(primary, is_synchronous=False) as standby:
        pair = ServerPair(primary, standby)
        async with replicated_run(tmp_path, pair, config__total_steps=20) as replicas:
            run = replicas.run
            await run.start_client()
            await run.until(in_training(3))
            pair.standby.stop_following()
            await run.until(in_training(run.watch.seen[-1].step + 2))
            pair.fail_over()
            assert (await run.finish(went_back=True)).rounds == 20
            assert len(replicas.shown.lineages) == 2
            assert await replicas.shown.void(run.store) > 0
            assert len(noticed(replicas)) >= 1
            assert not taken_for_older_copies(replicas)
            (returned,) = run.events(run.clients[0], "run_restored")
            assert returned["after"] == replicas.shown.lineages[1]
