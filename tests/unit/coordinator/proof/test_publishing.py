"""A publication: all that an outsider needs and no secret; complete or known not to be; changes in it are found."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from epochal.coordinator.auth.signing_key import SigningKey
from epochal.coordinator.machine.stimuli import ConfigChanged, CoordinatorKeyReplaced, RunRestored
from epochal.coordinator.proof.audit import AuditReport, audit_store
from epochal.coordinator.proof.publishing import MANIFEST_FILE, Publication, Versions, fetch, publish
from epochal.coordinator.run.opening import signing_key_of
from epochal.coordinator.store.object_store.objects import Objects
from epochal.coordinator.store.open import open_store, open_store_reader
from epochal.coordinator.store.published_files import BucketFiles, FolderFiles
from epochal.coordinator.store.sql.notes import KEY, KEY_LOST
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidInput, StoreFailed
from epochal.state.wire import sha256_hex
from tests.support.data.object_blobs import s3_place
from tests.support.drive.cli import run_main
from tests.support.drive.journaled_run import (
    OpenedRun,
    compact,
    compact_state,
    keep_in,
    problems_of,
    simulated_segments,
)
from tests.support.servers.s3_server import AWS, empty_bucket, s3_server
from tests.support.simulate.virtual_time import run_virtually

VERSIONS = Versions.here("0.1.0")
ADMIN = bytes(range(64, 96))
SHORT = {"config__epoch_time": 0.25, "config__warmup_time": 0.2, "config__max_round_train_time": 0.2}
COMMANDS = re.compile(r"```bash\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """Return a run directory with a journal of several epochs, and the coordinator's private key in it."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    kept = run_virtually(simulated_segments(5, compact_state(**SHORT, run__keep_journal="all")))

    async def keep() -> None:
        await keep_in(folder, kept)
        store = await open_store(str(folder), 10**9)
        await store.keys.keep_admin_token_sha256(ADMIN)
        await store.aclose()

    asyncio.run(keep())
    return folder, kept.private_key


@pytest.fixture
def run_dir(whole: tuple[Path, bytes], tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole[0], tmp_path / "run"))


class CountedFiles(FolderFiles):
    """Files of a folder: which of them are written, and a failure before one of them."""

    def __init__(self, folder: Path, fails_at: int = -1) -> None:
        super().__init__(folder)
        self.written: list[str] = []
        self._fails_at = fails_at

    async def put(self, name: str, pieces: AsyncIterator[bytes]) -> None:
        if len(self.written) == self._fails_at:
            raise StoreFailed("the disk is gone")
        await super().put(name, pieces)
        self.written.append(name)


async def published(run_dir: Path, to: Path) -> Publication:
    return await publish(str(run_dir), FolderFiles(to), VERSIONS, lambda _: None)


def facts(report: AuditReport) -> tuple[object, ...]:
    return (report.run_id, report.rounds, report.record_chain, report.replica_chain, report.applied, report.blobs)


@pytest.mark.nightly
@pytest.mark.parametrize("is_compacted", [False, True])
async def test_audit_of_a_publication_agrees_with_that_of_the_run(
    run_dir: Path, tmp_path: Path, is_compacted: bool
) -> None:
    if is_compacted:
        await compact(run_dir)
    made = await published(run_dir, tmp_path / "out")
    found, own = [await audit_store(str(place), recompute=True) for place in (tmp_path / "out", run_dir)]
    assert found.problems == own.problems == ()
    assert facts(found) == facts(own)
    assert found.recomputed_steps == own.recomputed_steps
    assert (made.compacted_segments > 0, made.step) == (is_compacted, 25)


async def test_publication_holds_no_secret(whole: tuple[Path, bytes], tmp_path: Path) -> None:
    run_dir, private_key = whole
    await published(run_dir, tmp_path / "out")
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert private_key not in data, path
            assert ADMIN not in data, path
            assert path.stat().st_mode & 0o044 == 0o044 & ~_umask(), path
    assert await open_store_reader(str(tmp_path / "out")).keys.private_key() is None
    store = await open_store(str(tmp_path / "out"), 10**9)
    assert store.is_backup
    await store.aclose()


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


async def test_manifest_names_every_file_with_its_digest(run_dir: Path, tmp_path: Path) -> None:
    made = await published(run_dir, tmp_path / "out")
    there = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert there == {file.name for file in made.files} | {MANIFEST_FILE}
    for file in made.files:
        assert sha256_hex((tmp_path / "out" / file.name).read_bytes()) == file.sha256
    assert made.versions == VERSIONS


@pytest.mark.nightly
def test_every_command_of_the_page_works_where_nothing_else_is(run_dir: Path, tmp_path: Path) -> None:
    asyncio.run(published(run_dir, tmp_path / "out"))
    elsewhere = Path(shutil.move(tmp_path / "out", tmp_path / "elsewhere"))
    shutil.rmtree(run_dir)
    commands = COMMANDS.findall((elsewhere / "README.md").read_text())
    assert len(commands) == 4
    bare = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
    for command in commands:
        ran = subprocess.run(["bash", "-euc", command], cwd=elsewhere, env=bare, capture_output=True, text=True)
        assert ran.returncode == 0, f"{command}{ran.stdout}{ran.stderr}"
    (elsewhere / "state.toml").write_text("")
    for command in commands[:2]:
        ran = subprocess.run(["bash", "-euc", command], cwd=elsewhere, env=bare, capture_output=True, text=True)
        assert ran.returncode == 1, command
        assert "state.toml" in ran.stdout + ran.stderr


async def test_publishing_again_writes_the_manifest_alone(run_dir: Path, tmp_path: Path) -> None:
    await published(run_dir, tmp_path / "out")
    again = CountedFiles(tmp_path / "out")
    await publish(str(run_dir), again, VERSIONS, lambda _: None)
    assert again.written == [MANIFEST_FILE]


@pytest.mark.nightly
async def test_publication_that_is_interrupted_anywhere_is_known_and_resumed(run_dir: Path, tmp_path: Path) -> None:
    whole = CountedFiles(tmp_path / "whole")
    await publish(str(run_dir), whole, VERSIONS, lambda _: None)
    written = whole.written
    assert (written[0], written[-1]) == ("README.md", MANIFEST_FILE)
    for count in (0, 1, len(written) // 2, len(written) - 2, len(written) - 1):
        to = tmp_path / f"after-{count}"
        with pytest.raises(StoreFailed, match="the disk is gone"):
            await publish(str(run_dir), CountedFiles(to, count), VERSIONS, lambda _: None)
        with pytest.raises(StoreFailed, match="has no manifest"):
            await fetch(FolderFiles(to), FolderFiles(tmp_path / "fetched"))
        rest = CountedFiles(to)
        await publish(str(run_dir), rest, VERSIONS, lambda _: None)
        assert rest.written == written[count:]
        assert await problems_of(to) == ()


async def test_publishing_after_the_run_has_gone_on_removes_what_it_replaced(run_dir: Path, tmp_path: Path) -> None:
    await published(run_dir, tmp_path / "out")
    stray = tmp_path / "out" / "a-visitor's-own-file"
    stray.write_text("kept")
    before = {path.name for path in (tmp_path / "out" / "blobs").rglob("*") if path.is_file()}
    await compact(run_dir)  # the journal is another one; the blobs are the same
    made = await published(run_dir, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out" / "blobs").rglob("*") if path.is_file()} == before
    assert (stray.read_text(), made.compacted_segments > 0) == ("kept", True)
    assert await problems_of(tmp_path / "out") == ()


HARMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "manifest": (lambda to: _edit(to, "step", 7), "is not signed by key"),
    "signer": (lambda to: _edit(to, "coordinator_key", "ab" * 32), "is not signed by key"),
    "no manifest": (lambda to: (to / MANIFEST_FILE).unlink(), "was not finished"),
    "page": (lambda to: (to / "README.md").write_text("pip install something-else"), "README.md is not the file"),
    "blob": (lambda to: _flip(next(path for path in (to / "blobs").rglob("*") if path.is_file())), "is damaged"),
}


def _edit(to: Path, field: str, value: object) -> None:
    found = json.loads((to / MANIFEST_FILE).read_text())
    (to / MANIFEST_FILE).write_text(json.dumps(found | {field: value}))


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("harm", HARMS)
async def test_publication_that_was_changed_is_found_out(run_dir: Path, tmp_path: Path, harm: str) -> None:
    await published(run_dir, tmp_path / "out")
    change, said = HARMS[harm]
    change(tmp_path / "out")
    problems = await problems_of(tmp_path / "out")
    assert any(said in problem for problem in problems), problems


def files_in(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_folder_of_something_else_is_not_published_into(run_dir: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    shutil.copytree(run_dir, backup)
    files = files_in(backup)
    with pytest.raises(InvalidInput, match="holds something else; allowed: an empty folder, or one where"):
        await published(run_dir, backup)
    assert files_in(backup) == files


@pytest.mark.parametrize("fails_at", [None, 1])
async def test_publication_of_another_run_of_this_name_is_left_as_it_is(
    run_dir: Path, tmp_path: Path, fails_at: int | None
) -> None:
    """Whole, or left by an attempt that wrote the page alone."""
    if fails_at is None:
        await published(run_dir, tmp_path / "out")
    else:
        with pytest.raises(StoreFailed, match="the disk is gone"):
            await publish(str(run_dir), CountedFiles(tmp_path / "out", fails_at), VERSIONS, lambda _: None)
    before, key = files_in(tmp_path / "out"), bytes(range(32))
    opened = await OpenedRun.open(run_dir)
    await opened.submit(CoordinatorKeyReplaced(SigningKey(key).public_key_hex, "ab" * 16))
    await opened.store.notes.write(KEY, key)
    await opened.store.aclose()
    with pytest.raises(InvalidInput, match="holds another run of this name"):
        await published(run_dir, tmp_path / "out")
    assert files_in(tmp_path / "out") == before != {}


async def test_run_that_was_restored_is_published_where_it_was(run_dir: Path, tmp_path: Path) -> None:
    before = await published(run_dir, tmp_path / "out")
    opened = await OpenedRun.open(run_dir)
    await opened.submit(RunRestored("ab" * 16))
    await opened.store.aclose()
    after = await published(run_dir, tmp_path / "out")
    assert (before.lineage != after.lineage, after.lineage) == (True, "ab" * 16)
    assert await problems_of(tmp_path / "out") == ()


async def test_publication_is_not_published_but_copied(run_dir: Path, tmp_path: Path) -> None:
    await published(run_dir, tmp_path / "out")
    with pytest.raises(InvalidInput, match="is itself a publication: copy it"):
        await published(tmp_path / "out", tmp_path / "again")
    assert not (tmp_path / "again").exists()


async def test_run_without_its_key_leaves_nothing_where_it_was_to_be_published(run_dir: Path, tmp_path: Path) -> None:
    opened = await OpenedRun.open(run_dir)
    await opened.store.notes.delete(KEY)
    await opened.store.aclose()
    with pytest.raises(StoreFailed, match=re.escape(KEY_LOST)):
        await published(run_dir, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("inside", ["", "published"])
async def test_run_is_not_published_into_its_own_directory(run_dir: Path, inside: str) -> None:
    before = files_in(run_dir)
    with pytest.raises(InvalidInput, match="is in the run's own directory"):
        await published(run_dir, run_dir / inside)
    assert files_in(run_dir) == before


async def test_damaged_blob_is_not_published(run_dir: Path, tmp_path: Path) -> None:
    _flip(next(path for path in (run_dir / "blobs").rglob("*") if path.is_file()))
    with pytest.raises(StoreFailed, match="is damaged"):
        await published(run_dir, tmp_path / "out")
    assert not (tmp_path / "out" / MANIFEST_FILE).exists()


def _notified(state_file: StateFile, url: str) -> StateFile:
    notify = {"webhooks": [{"url": url}]}
    return StateFile.model_validate_json(json.dumps(json.loads(state_file.model_dump_json()) | {"notify": notify}))


async def test_address_of_a_webhook_keeps_a_run_from_being_published(run_dir: Path, tmp_path: Path) -> None:
    opened = await OpenedRun.open(run_dir)
    state_file = opened.run.state_file
    await opened.submit(ConfigChanged(_notified(state_file, "env:HOOK")))
    await opened.store.aclose()
    await published(run_dir, tmp_path / "out")
    opened = await OpenedRun.open(run_dir)
    await opened.submit(ConfigChanged(_notified(state_file, "https://hooks.example/T0/secret")))
    await opened.submit(ConfigChanged(_notified(state_file, "env:HOOK")))
    await opened.store.aclose()
    with pytest.raises(InvalidInput, match=r'segment [0-9]+ of the journal holds the address of a webhook.*"env:NAME"'):
        await published(run_dir, tmp_path / "out")


async def test_coordinator_does_not_start_from_a_publication(run_dir: Path, tmp_path: Path) -> None:
    await published(run_dir, tmp_path / "out")
    store = await open_store(str(tmp_path / "out"), 10**9)
    with pytest.raises(StoreFailed, match=re.escape(KEY_LOST)):
        await signing_key_of(store, anew=False)
    await store.aclose()


@pytest.mark.nightly
async def test_publication_in_a_bucket_is_resumed_and_fetched_whole(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in AWS.items():
        monkeypatch.setenv(name, value)
    with s3_server() as url:
        empty_bucket(url)
        files = BucketFiles(Objects(s3_place(url), "published"))
        made = await publish(str(run_dir), files, VERSIONS, lambda _: None)
        again = await publish(str(run_dir), files, VERSIONS, lambda _: None)
        assert again.files == made.files
        await fetch(files, FolderFiles(tmp_path / "fetched"))
    assert await problems_of(tmp_path / "fetched") == ()


def test_commands_publish_and_audit(run_dir: Path, tmp_path: Path) -> None:
    to = str(tmp_path / "out")
    run_main("publish", str(run_dir), to).expect(0, f"check it as its README.md says, or here: epochal audit {to}")
    run_main("audit", to).expect(0)
    assert json.loads(run_main("publish", str(run_dir), to, "--json").out)["format"] == 1


@pytest.mark.parametrize("place", ["", "ftp://host/folder", "s3://bucket", "az://account/c"])
def test_place_that_is_none_is_refused(place: str) -> None:
    run_main("publish", "run", place).expect(2, "allowed: a folder (also as file:///PATH), s3://BUCKET/FOLDER")
