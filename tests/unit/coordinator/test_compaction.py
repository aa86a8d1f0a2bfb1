"""A compacted journal: the audit goes on from the proof, whatever was interrupted, and finds a proof that is wrong."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.audit import audit_store
from coordinator.backup import back_up, verify_backup
from coordinator.store.directory.journal import proof_paths, segment_paths
from state.errors import StoreFailed
from state.wire import canonical_json
from tests.support.journaled_run import OpenedRun, compact, compact_state, keep_in, simulated_segments
from tests.support.virtual_time import run_virtually

STEPS = 3
"""Number of segments that a checkpoint includes in the run of these tests."""

WRITES_OF_A_STEP = 7
"""The proof, its name, its folder's; a record and its sync; the deletion of a segment, and of the proof before."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run directory with a journal of several epochs, all of it kept."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    kept = run_virtually(simulated_segments(3, compact_state(run__keep_journal="all")))
    asyncio.run(keep_in(folder, kept))
    return folder


@pytest.fixture
def run_dir(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


async def problems_of(run_dir: Path) -> tuple[str, ...]:
    return (await audit_store(str(run_dir), recompute=False)).problems


async def test_audit_of_a_compacted_journal_agrees_with_that_of_all_of_it(whole: Path, run_dir: Path) -> None:
    assert await compact(run_dir) == STEPS
    found = await audit_store(str(run_dir), recompute=True)
    assert (found.compacted_segments, found.rounds, found.problems) == (STEPS, 24, ())
    assert [path.name for path in segment_paths(run_dir)] == ["00000003.log", "00000004.log"]
    for path in segment_paths(whole)[:STEPS]:
        shutil.copy(path, run_dir / "journal")
    for path in proof_paths(run_dir):
        path.unlink()
    assert replace(await audit_store(str(run_dir), recompute=True), compacted_segments=STEPS) == found


async def test_journal_that_is_compacted_already_stays_as_it_is(run_dir: Path) -> None:
    await compact(run_dir)
    before = [(path, path.read_bytes()) for path in (*segment_paths(run_dir), *proof_paths(run_dir))]
    assert await compact(run_dir) == 0
    assert before == [(path, path.read_bytes()) for path in (*segment_paths(run_dir), *proof_paths(run_dir))]
    assert len(proof_paths(run_dir)) == 1


async def test_proof_does_not_grow_with_the_journal(run_dir: Path) -> None:
    sizes = []
    for _ in range(STEPS):
        await compact(run_dir, steps=1)
        sizes += [path.stat().st_size for path in proof_paths(run_dir)]
    assert max(sizes) < 1200
    assert len(sizes) == STEPS


KILLED_AT_EVERY_WRITE = """
import asyncio, os, shutil, signal, sys
from pathlib import Path
from runtime.durable_files import REAL_DISK, Disk
from tests.support.journaled_run import compact

def killing(at):
    calls = 0
    def due():
        nonlocal calls
        calls += 1
        return calls == at
    def write(file, data):
        if due():
            REAL_DISK.write(file, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        REAL_DISK.write(file, data)
    def sync(descriptor):
        if due():
            os.kill(os.getpid(), signal.SIGKILL)
        os.fsync(descriptor)
    return Disk(write, sync)

whole, to = Path(sys.argv[1]), Path(sys.argv[2])
for at in range(1, 100):
    folder = Path(shutil.copytree(whole, to / f"{at:02d}"))
    child = os.fork()
    if not child:
        asyncio.run(compact(folder, steps=2, disk=killing(at)))
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
"""


async def test_compaction_killed_at_any_write_loses_and_doubles_nothing(whole: Path, tmp_path: Path) -> None:
    to = tmp_path / "killed"
    program = (sys.executable, "-c", KILLED_AT_EVERY_WRITE, str(whole), str(to))
    await asyncio.to_thread(subprocess.run, program, check=True)
    folders = sorted(path.parent for path in to.glob("*/journal"))
    assert len(folders) > 2 * WRITES_OF_A_STEP, "one of them was not killed"
    expected = (await audit_store(str(whole), recompute=False)).replica_chain
    for folder in folders:
        assert (folder.name, await problems_of(folder)) == (folder.name, ())
        await compact(folder)
        found = await audit_store(str(folder), recompute=False)
        assert (found.problems, found.compacted_segments, found.replica_chain) == ((), STEPS, expected)
        assert [path.name for path in proof_paths(folder)] == ["00000003.proof"]
        assert not list(folder.glob("journal/*.new"))


def changed(name: str, value: Any) -> Callable[[Path], None]:
    def change(run_dir: Path) -> None:
        (path,) = proof_paths(run_dir)
        path.write_bytes(canonical_json(json.loads(path.read_bytes()) | {name: value}))

    return change


def remove(run_dir: Path) -> None:
    proof_paths(run_dir)[0].unlink()


def flip(run_dir: Path) -> None:
    (path,) = proof_paths(run_dir)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 128
    path.write_bytes(data)


PROOF = "the proof of the journal's first 3 segments"
NOT_NAMED = f"{PROOF} is not the one that the journal names"
ZEROS = "00" * 32
HARMS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a batch less": (changed("applied", [{"start": 0, "end": 106}]), f"{PROOF}: 1 batches are missing"),
    "a batch more": (
        changed("applied", [{"start": 0, "end": 108}]),
        f"{PROOF}: batches [108, 108] were applied although",
    ),
    "a batch twice": (changed("applied_count", 109), f"{PROOF}: 1 batches were applied more than once"),
    "intervals out of order": (
        changed("applied", [{"start": 50, "end": 107}, {"start": 0, "end": 49}]),
        f"{PROOF} lists batches out of order",
    ),
    "another beginning": (changed("first_batch", 6), f"{PROOF}: batches [0, 5] were applied although"),
    "a round less": (changed("rounds", 17), f"{PROOF} says 17 steps"),
    "another last step": (changed("last_step", 19), f"{PROOF} says 18 steps up to 19"),
    "another replica": (changed("replica_digest", ZEROS), f"{PROOF} ends in another replica 18"),
    "another snapshot": (changed("snapshot_sha256", ZEROS), f"{PROOF} does not end where segment 3 begins"),
    "another version": (changed("version", 7), f"{PROOF} does not end where segment 3 begins"),
    "another sequence": (changed("sequence", 7), f"{PROOF} does not end where segment 3 begins"),
    "another run": (changed("run_id", "other"), f"{PROOF} does not end where segment 3 begins"),
    "another chain of records": (changed("record_chain", ZEROS), NOT_NAMED),
    "another chain of replicas": (changed("replica_chain", ZEROS), NOT_NAMED),
    "another proof before it": (changed("previous_sha256", ZEROS), NOT_NAMED),
    "another format": (changed("format", 9), f"{PROOF} has format 9"),
    "other segments": (changed("segment_count", 2), f"{PROOF} is of 2 segments"),
    "a byte": (flip, f"{PROOF} is damaged"),
    "no proof": (remove, f"{PROOF}, which the journal names, is missing"),
}


@pytest.fixture(scope="module")
def compacted(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(whole, tmp_path_factory.mktemp("compacted") / "run"))
    asyncio.run(compact(folder))
    return folder


@pytest.mark.parametrize("harm", HARMS)
async def test_proof_that_is_wrong_is_named_and_not_continued(compacted: Path, tmp_path: Path, harm: str) -> None:
    run_dir = Path(shutil.copytree(compacted, tmp_path / "run"))
    change, said = HARMS[harm]
    change(run_dir)
    problems = await problems_of(run_dir)
    assert any(problem.startswith(said) for problem in problems), problems
    before = len(segment_paths(run_dir))
    with pytest.raises(StoreFailed, match=r"missing or damaged|is damaged|has format|is of 2"):
        await compact(run_dir)
    assert len(segment_paths(run_dir)) == before


async def test_proofs_that_changed_places_are_named(run_dir: Path, compacted: Path) -> None:
    await compact(run_dir, steps=2)
    (earlier,) = proof_paths(run_dir)
    later = proof_paths(compacted)[0]
    shutil.copy(earlier, run_dir / "journal" / "keep")
    shutil.copy(later, earlier)
    assert any("is of 3 segments" in problem for problem in await problems_of(run_dir))
    body = json.loads((run_dir / "journal" / "keep").read_bytes()) | {"segment_count": 3}
    folder = Path(shutil.copytree(compacted, run_dir.with_name("other")))
    proof_paths(folder)[0].write_bytes(canonical_json(body))
    assert f"{PROOF} does not end where segment 3 begins" in await problems_of(folder)


async def test_segment_that_does_not_replay_is_kept(run_dir: Path) -> None:
    path = segment_paths(run_dir)[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreFailed, match=r"00000001\.log is damaged"):
        await compact(run_dir)
    assert segment_paths(run_dir)[0].name == "00000000.log"


async def test_journal_is_not_compacted_while_somebody_copies_it(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.compaction.COPY_RETRY_S", 0.0)
    monkeypatch.setattr("coordinator.compaction.MAX_COPY_WAITS", 2)
    opened = await OpenedRun.open(run_dir)
    async with opened.store.copying():
        await opened.compaction().step()
        assert len(segment_paths(run_dir)) == 5
    assert await problems_of(run_dir) == ()
    await opened.compaction().step()
    assert segment_paths(run_dir)[0].name == "00000002.log"
    await opened.store.aclose()


async def test_backup_of_a_compacted_run_is_whole_and_goes_on(compacted: Path, tmp_path: Path) -> None:
    to = tmp_path / "backup"
    await back_up(str(compacted), to, lambda _: None)
    assert (await verify_backup(to)).problems == ()
    copy = Path(shutil.copytree(to, tmp_path / "copy"))
    flip(copy)
    assert any("00000003.proof is damaged" in problem for problem in (await verify_backup(copy)).problems)
    opened = await OpenedRun.open(to, is_restored=True)
    assert not await opened.compaction().step()
    await opened.store.aclose()


async def test_run_taken_back_to_before_its_proof_was_named_goes_on(run_dir: Path) -> None:
    await compact(run_dir, steps=STEPS - 1)
    newest = segment_paths(run_dir)[-1]
    before = newest.read_bytes()
    await compact(run_dir)
    newest.write_bytes(before)
    assert await problems_of(run_dir) == ()
    assert await compact(run_dir) == 1
    assert await problems_of(run_dir) == ()
