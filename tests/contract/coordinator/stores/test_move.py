"""Moving a run from a run directory into a database and back: history, keys and blobs, or nothing at all."""

import json
import os
import shutil
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from epochal.coordinator.machine.run import Run
from epochal.coordinator.proof.audit import AuditReport, audit_store
from epochal.coordinator.proof.migrate_store import move
from epochal.coordinator.serve import ServeOptions, serving
from epochal.coordinator.store.files.opening import open_folder_reader
from epochal.coordinator.store.open import open_store_reader, runs_in
from epochal.coordinator.store.postgres.opening import open_database_reader
from epochal.coordinator.store.sql.notes import MOVED
from epochal.runtime.http.http_server import Endpoint
from epochal.state.errors import InvalidInput, StoreFailed
from epochal.state.phase_names import RunState
from epochal.state.wire import sha256_hex
from tests.contract.coordinator.api.test_api_rewind import begin_again
from tests.support.data.states import state_file
from tests.support.data.stored_blobs import blob_bytes
from tests.support.drive.cli import Ran, run_main_in_thread
from tests.support.drive.played_rounds import play_round
from tests.support.drive.served import DIFFERENCE, GENESIS, REPLICA, Served, WireClient, served_over_sockets, training
from tests.support.servers.postgres_server import PostgresServer

SOON = {"config__waiting_for_members_extra_time": 0.001}


@pytest.fixture
def url(database_server: PostgresServer) -> str:
    return database_server.new_database()


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is in the middle of its first round, with a checkpoint and a delivered result."""
    folder = tmp_path_factory.mktemp("played") / "run"
    async with served_over_sockets(folder) as running:
        clients = await training(running)
        await deliver(clients[0])
    return folder


@pytest.fixture
def run_dir(played: Path, tmp_path: Path) -> Path:
    """Return a copy of it."""
    return Path(shutil.copytree(played, tmp_path / "run"))


async def deliver(client: WireClient) -> None:
    """Commit and deliver a result of the round under way."""
    data = client.result(REPLICA, DIFFERENCE)
    assert (await client.commit(data)).status_code == 200
    assert (await client.put_blob(data)).status_code in (200, 201, 204)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


async def moved(source: object, target: object, folder: Path | None = None) -> AuditReport:
    return (await move(str(source), str(target), folder, lambda _: None)).audit


async def served_again(store: str, folder: Path | None = None) -> Run:
    """Serve a run once more, and return it."""
    options = ServeOptions(store, Endpoint(port=0), genesis=GENESIS, blobs_folder=folder)
    async with serving(state_file(**SOON), options) as running:
        return running.handlers.service.run


@pytest.mark.nightly
async def test_run_that_went_back_moves_with_both_branches(url: str, shared: Path, tmp_path: Path) -> None:
    run_dir, back = tmp_path / "run", tmp_path / "back"
    async with served_over_sockets(run_dir) as running:
        clients = await training(running)
        await play_round(running, clients)
        rewind = await clients[0].send("POST", "/rewind", {"to_step": 0}, token=running.admin_token)
        assert rewind.status_code == 200
        await begin_again(running, clients)
        await play_round(running, clients)
    before = await audit_store(str(run_dir), recompute=True)
    assert (before.passed, before.rewinds, before.dropped_rounds, before.rounds) == (True, 1, 1, 1)
    await moved(run_dir, url, shared)
    assert await audit_store(url, recompute=True) == before
    await moved(url, back)
    assert await audit_store(str(back), recompute=True) == before


@pytest.mark.nightly
async def test_run_moves_into_a_database_and_back_with_its_history(
    run_dir: Path, url: str, shared: Path, tmp_path: Path
) -> None:
    before = await audit_store(str(run_dir), recompute=True)
    assert before.passed
    await moved(run_dir, url, shared)
    assert await audit_store(url, recompute=True) == before
    with pytest.raises(InvalidInput, match=f"was moved, to {url}"):
        await served_again(str(run_dir))
    there = await served_again(url, shared)
    assert there.clock.phase is RunState.ROUND_TRAIN
    assert len(there.members) == 2
    (kept,) = runs_in(url)
    assert kept.version > 0
    between = await audit_store(url, recompute=True)
    back = tmp_path / "back"
    await moved(url, back)
    assert await audit_store(str(back), recompute=True) == between
    assert runs_in(url) == []
    assert os.listdir(shared) == []
    here = await served_again(str(back))
    assert (here.identity.lineage, here.identity.coordinator_key, here.members.by_id) == (
        there.identity.lineage,
        there.identity.coordinator_key,
        there.members.by_id,
    )


@pytest.mark.nightly
async def test_result_that_lies_in_the_database_moves_into_a_folder(url: str, shared: Path, tmp_path: Path) -> None:
    options = ServeOptions(url, Endpoint(port=0), genesis=GENESIS, blobs_folder=shared)
    async with serving(state_file(**SOON), options) as running, httpx.AsyncClient(base_url=running.url) as http:
        run = Served(running.handlers.service, running.handlers, http, f"/v1/runs/{state_file(**SOON).run_id}")
        member, _ = await training(run)
        data = member.result(REPLICA, DIFFERENCE)
        assert (await member.deliver(data)).status_code == 200
    digest = sha256_hex(data)
    assert await open_store_reader(url).blobs.size(digest) == len(data)
    assert digest not in names_in(shared)
    back = tmp_path / "back"
    report = await moved(url, back)
    assert report.passed
    assert await blob_bytes(open_store_reader(str(back)).blobs, digest) == data


@pytest.mark.nightly
async def test_run_that_is_served_is_not_moved(tmp_path: Path, url: str, shared: Path) -> None:
    async with served_over_sockets(tmp_path / "run") as running:
        await training(running)
        with pytest.raises(StoreFailed, match="served by another coordinator"):
            await moved(tmp_path / "run", url, shared)
    await moved(tmp_path / "run", url, shared)
    options = ServeOptions(url, Endpoint(port=0), genesis=GENESIS, blobs_folder=shared)
    async with serving(state_file(**SOON), options):
        with pytest.raises(StoreFailed, match="stop all of them first"):
            await moved(url, tmp_path / "back")
    assert (await served_again(url, shared)).clock.phase is RunState.ROUND_TRAIN


@pytest.mark.nightly
async def test_folder_that_was_moved_is_not_moved_again(
    run_dir: Path, url: str, shared: Path, tmp_path: Path, database_server: PostgresServer
) -> None:
    await moved(run_dir, url, shared)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(InvalidInput, match="allowed: a folder that holds no blobs of this run"):
        await moved(run_dir, url, shared)
    with pytest.raises(InvalidInput, match=f"was moved, to {url}: serve it from there"):
        await moved(run_dir, database_server.new_database(), other)
    with pytest.raises(InvalidInput, match=f"was moved, to {url}"):
        await served_again(str(run_dir))
    assert os.listdir(other) == []
    assert (await served_again(url, shared)).clock.phase is RunState.ROUND_TRAIN


@pytest.mark.nightly
async def test_move_that_was_killed_may_be_repeated_to_the_same_place(
    run_dir: Path, url: str, shared: Path, database_server: PostgresServer
) -> None:
    reader = open_folder_reader(run_dir, writes=True)
    await reader.notes.write(MOVED, url.encode())
    elsewhere = database_server.new_database()
    for target in (elsewhere, None):
        with pytest.raises(InvalidInput, match=f"is being moved, or was moved, to {url}"):
            await (served_again(str(run_dir)) if target is None else moved(run_dir, target, shared))
    with pytest.raises(InvalidInput, match="name a folder for them"):
        await moved(run_dir, url)
    assert await reader.notes.read(MOVED) == url.encode(), "the move that was killed may have brought the run there"
    await moved(run_dir, url, shared)
    assert await reader.notes.read(MOVED) == url.encode()
    await reader.aclose()


@pytest.mark.nightly
async def test_mark_in_a_database_is_taken_back_only_by_its_move(
    run_dir: Path, url: str, shared: Path, tmp_path: Path
) -> None:
    await moved(run_dir, url, shared)
    back = tmp_path / "back"
    await open_database_reader(url, writes=True).notes.write(MOVED, str(back).encode())
    with pytest.raises(InvalidInput, match=f"is being moved, or was moved, to {back}"):
        await moved(url, tmp_path / "elsewhere")
    back.write_text("in the way")
    with pytest.raises(InvalidInput, match="allowed: a folder that does not exist yet"):
        await moved(url, back)
    with pytest.raises(InvalidInput, match=f"to {back}: serve it from there"):
        await served_again(url, shared)
    back.unlink()
    await moved(url, back)
    assert (await served_again(str(back))).clock.phase is RunState.ROUND_TRAIN


async def test_run_that_is_damaged_stays_where_it_is(run_dir: Path, url: str, shared: Path) -> None:
    blob = next(path for path in (run_dir / "blobs").glob("??/*") if len(path.name) == 64)
    data = blob.read_bytes()
    blob.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(StoreFailed, match="is damaged where it is"):
        await moved(run_dir, url, shared)
    blob.write_bytes(data)
    assert os.listdir(shared) == []
    assert (await served_again(str(run_dir))).clock.phase is RunState.ROUND_TRAIN


@pytest.mark.nightly
async def test_run_that_is_there_already_is_not_overwritten(
    run_dir: Path, url: str, shared: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    await served_again(url, other)
    before = await audit_store(url, recompute=False)
    with pytest.raises(InvalidInput, match=r"holds a run .* already"):
        await moved(run_dir, url, shared)
    assert await audit_store(url, recompute=False) == before
    assert os.listdir(shared) == []
    assert (await served_again(str(run_dir))).clock.phase is RunState.ROUND_TRAIN
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(InvalidInput, match="allowed: a folder that does not exist yet"):
        await moved(url, tmp_path / "taken")
    assert (await served_again(url, other)).clock.phase is RunState.WAITING_FOR_MEMBERS


async def test_move_says_what_it_wants(run_dir: Path, url: str, shared: Path, tmp_path: Path) -> None:
    for source, target, folder, said in (
        (
            run_dir,
            tmp_path / "new",
            None,
            f"{run_dir} and {tmp_path / 'new'}: neither is a database; allowed: a folder and",
        ),
        ("postgresql://me:secret@a/b", url, None, "postgresql://me:…@a/b and .*: both are databases"),
        (run_dir, url, None, r"name a folder for them .*--blobs DIR"),
        (run_dir, f"{url}?run=another", shared, "names run 'another'"),
        (url, tmp_path / "new", shared, "--blobs goes with a target in a database"),
        (url, tmp_path / "new", None, "holds no run"),
        (tmp_path, url, shared, "holds no run"),
    ):
        with pytest.raises(InvalidInput, match=said):
            await moved(source, target, folder)
    assert (await served_again(str(run_dir))).clock.phase is RunState.ROUND_TRAIN


@pytest.mark.nightly
async def test_backup_of_a_database_is_served_only_as_restored(
    run_dir: Path, url: str, shared: Path, database_server: PostgresServer
) -> None:
    await moved(run_dir, url, shared)
    before = await served_again(url, shared)
    restored = database_server.new_database()
    database_server.copy(url, restored)
    with pytest.raises(InvalidInput, match="is a backup; start from it with --restored"):
        await served_again(restored, shared)
    options = ServeOptions(restored, Endpoint(port=0), genesis=GENESIS, blobs_folder=shared, is_restored=True)
    async with serving(state_file(**SOON), options) as running:
        run = running.handlers.service.run
        assert run.identity.lineage != before.identity.lineage
        assert run.members.by_id == before.members.by_id
        with pytest.raises(InvalidInput, match="--restored: other coordinators serve the run"):
            async with serving(state_file(**SOON), options):
                pass
    assert (await audit_store(restored, recompute=False)).passed
    assert (await served_again(restored, shared)).identity.lineage == run.identity.lineage


@pytest.mark.nightly
async def test_refused_start_leaves_the_note_of_the_blobs_folder(
    run_dir: Path, url: str, shared: Path, tmp_path: Path
) -> None:
    await moved(run_dir, url, shared)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(StoreFailed, match="lacks blobs"):
        await served_again(url, other)
    (kept,) = runs_in(url)
    assert kept.blobs == str(shared)
    assert (await audit_store(url, recompute=False)).passed


async def ran_with(*arguments: str) -> Ran:
    return await run_main_in_thread(*arguments, environment={})


async def test_commands_that_read_a_run_take_a_database(run_dir: Path, url: str, shared: Path) -> None:
    ran = await ran_with("move", str(run_dir), url, "--blobs", str(shared))
    assert (ran.code, "run test-run is in" in ran.out) == (0, True), ran.err
    ran = await ran_with("runs", url)
    assert ran.out.startswith("test-run: version ")
    (listed,) = json.loads((await ran_with("runs", url, "--json")).out)
    assert (listed["run_id"], listed["blobs"]) == ("test-run", str(shared))
    for command in (("audit", url), ("audit", f"{url}?run=test-run&blobs={shared}"), ("token", "data-server", url)):
        assert (await ran_with(*command)).code == 0
    copy = shared.with_name("copy")
    assert (await ran_with("backup", url, str(copy))).code == 0
    ran = await ran_with("runs", str(run_dir))
    assert (ran.code, ran.out.startswith("test-run: version ")) == (0, True), ran.err
