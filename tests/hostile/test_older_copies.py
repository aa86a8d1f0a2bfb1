"""An older copy of a run directory is served without `--restored`: the members know better, and the run holds."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochal.coordinator_client.api import DocumentMark
from epochal.state.messages.requests import Attestation, RunStatus
from epochal.state.model.replica import replica_digest
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.drive.processes import RealRun, in_training, real_run
from tests.support.drive.served import DIFFERENCE, REPLICA, Served, WireClient, served, training

OLDER = "older copy of the run"


async def put_older_copy(run: RealRun) -> Path:
    """Let the run go on beyond a copy of its folder, and put the copy in its place; return the newer folder."""
    copy, newer = run.folder / "copy", run.folder / "newer"
    await run.until(in_training(2))
    await run.stop_coordinator()
    shutil.copytree(run.run_dir, copy)
    await run.start_coordinator()
    await run.until(in_training(run.watch.seen[-1].step + 6))
    await run.stop_coordinator()
    run.run_dir.rename(newer)
    copy.rename(run.run_dir)
    return newer


async def held(run: RealRun) -> RunStatus:
    """Return the status of a run once it holds."""
    await run.until_logged(run.coordinator, "store_blocked", while_answering=False)
    return await run.status()


@pytest.mark.nightly
async def test_older_copy_is_held_until_the_newer_one_is_put_back(tmp_path: Path) -> None:
    async with real_run(tmp_path, 2, config__total_steps=100_000) as run:
        newer = await put_older_copy(run)
        last = run.watch.seen[-1]
        await run.start_coordinator()
        status = await held(run)
        assert OLDER in (status.store_problem or "")
        assert "--restored" in (status.store_problem or "")
        assert status.waiting
        assert (await run.http.get("/readyz")).status_code == 503
        assert status.version < last.version
        await run.stop_coordinator()
        shutil.rmtree(run.run_dir)
        newer.rename(run.run_dir)
        last_step = run.end_soon()
        await run.start_coordinator()
        assert (await run.finish()).rounds == last_step


@pytest.mark.nightly
async def test_older_copy_that_is_taken_as_restored_goes_on(tmp_path: Path) -> None:
    async with real_run(tmp_path, 2, config__total_steps=100_000) as run:
        await put_older_copy(run)
        await run.start_coordinator()
        await held(run)
        await run.stop_coordinator()
        run.end_soon()
        await run.start_coordinator("--restored")
        run.watch.seen.clear()
        await run.finish(went_back=True)


@pytest.mark.nightly
async def test_client_that_was_started_again_remembers_what_it_knew(tmp_path: Path) -> None:
    async with real_run(tmp_path, 1, config__total_steps=100_000) as run:
        await put_older_copy(run)
        (client,) = run.clients
        await client.stop()
        await run.start_coordinator()
        await run.start_client("--key", str(tmp_path / "client-1.key"))
        assert OLDER in ((await held(run)).store_problem or "")


@pytest.fixture
async def coordinator() -> AsyncIterator[Served]:
    async with served(state_file()) as coordinator:
        yield coordinator


async def ask_beyond(client: WireClient, versions: int) -> int:
    """Ask for what follows a version that is later than the coordinator's by some; return the status."""
    document = client.served.service.published.document
    query = f"?after={document.version + versions}&lineage={document.lineage}&wait_s=0"
    return (await client.send("GET", query)).status_code


async def proven_clients(coordinator: Served) -> list[WireClient]:
    """Return three members of which a result was applied."""
    clients = await training(coordinator, 3)
    for client in clients:
        assert (await client.deliver(client.result(REPLICA, DIFFERENCE))).status_code == 200
    current = coordinator.service.run.round
    assert current is not None
    attested = Attestation(current.number.step, current.number.attempt, replica_digest(REPLICA), "7")
    for client in clients:
        await client.send("POST", "/attestations", attested)
    async with asyncio.timeout(BOUND_S):
        while coordinator.service.run.progress.step == 1:
            await coordinator.service.readers.wait_published(10**9, None, 0.05)
    return clients


async def test_claims_of_strangers_do_not_count(coordinator: Served) -> None:
    client = WireClient(coordinator, 1)
    await client.join()
    await ask_beyond(client, 0)
    for _ in range(5):
        document = coordinator.service.published.document
        await coordinator.http.get(f"{coordinator.run_url}?after={document.version + 9}&lineage={document.lineage}")
    assert coordinator.service.health.problem is None


@pytest.mark.nightly
async def test_hold_ends_when_members_take_their_claims_back(coordinator: Served) -> None:
    clients = await proven_clients(coordinator)
    for client in clients[:2]:
        await ask_beyond(client, 1000)
    async with asyncio.timeout(BOUND_S):
        await coordinator.service.health.blocked.wait()
        assert await ask_beyond(clients[0], 1000) == 503
        for client in clients:
            await ask_beyond(client, 0)
        while coordinator.service.health.problem is not None:
            await coordinator.service.readers.wait_published(10**9, None, 0.05)
    assert coordinator.service.accepting


async def test_claim_about_another_lineage_says_nothing(coordinator: Served) -> None:
    client = WireClient(coordinator, 1)
    await client.join()
    mark = DocumentMark("ab" * 16, 10**6)
    await client.api.run_document(mark, 0.0)
    assert coordinator.service.health.problem is None
