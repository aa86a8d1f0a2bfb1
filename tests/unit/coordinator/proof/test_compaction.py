"""A compacted journal: the audit goes on from the proof, whatever was interrupted, and finds a proof that is wrong."""

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from epochal.coordinator.proof.audit import audit_store
from epochal.coordinator.proof.backup import back_up
from epochal.state.errors import StoreFailed
from epochal.state.wire import canonical_json, sha256_hex
from tests.support.data.stored_rows import count_bytes, execute, flip, proofs_in, put_proof, segments_in
from tests.support.drive.journaled_run import (
    OpenedRun,
    compact,
    compact_state,
    keep_in,
    problems_of,
    simulated_segments,
)
from tests.support.simulate.virtual_time import run_virtually

LEFT = 2
"""Number of segments that a checkpoint does not include: from the older kept one on, and after the newer."""

VERY_SHORT_EPOCHS = {"config__epoch_time": 0.25, "config__warmup_time": 0.2, "config__max_round_train_time": 0.2}
STATEMENTS_OF_A_STEP = 15
"""Fewer than keep a proof, append a record, and delete a segment and the proof before."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run directory with a journal of several epochs, all of it kept."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    state = compact_state(**VERY_SHORT_EPOCHS, run__keep_journal="all")
    kept = run_virtually(simulated_segments(3, state))
    asyncio.run(keep_in(folder, kept))
    return folder


@pytest.fixture
def run_dir(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def covered(whole: Path) -> int:
    """Return the number of segments that a checkpoint includes."""
    return len(segments_in(whole)) - LEFT


async def test_audit_names_a_blob_of_the_database_with_a_flipped_bit(run_dir: Path) -> None:
    """Nothing needs it any more: it waits for the next sweep."""
    sha256 = sha256_hex(b"a small result")
    sql = "INSERT INTO epochal_blobs (run_id, sha256, size_bytes, body) SELECT run_id, ?, ?, ? FROM epochal_runs"
    execute(run_dir, sql, (bytes.fromhex(sha256), 14, b"a small result"))
    assert await problems_of(run_dir) == ()
    flip(run_dir, "epochal_blobs", "body")
    assert f"blob {sha256} is damaged: its bytes hash to" in "; ".join(await problems_of(run_dir))


async def test_audit_of_a_compacted_journal_agrees_with_that_of_all_of_it(whole: Path, run_dir: Path) -> None:
    count = covered(whole)
    assert await compact(run_dir) == count > 1
    found = await audit_store(str(run_dir), recompute=True)
    assert (found.compacted_segments, found.rounds, found.problems) == (count, 24, ())
    assert segments_in(run_dir)[0] == count
    for table, segment in (("epochal_records", "segment"), ("epochal_segments", "number")):
        for row in execute(whole, f"SELECT * FROM {table} WHERE {segment} < {count}"):
            execute(run_dir, f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    execute(run_dir, "DELETE FROM epochal_proofs")
    count_bytes(run_dir)
    assert replace(await audit_store(str(run_dir), recompute=True), compacted_segments=count) == found


async def test_journal_that_is_compacted_already_stays_as_it_is(run_dir: Path) -> None:
    await compact(run_dir)
    before = segments_in(run_dir), proofs_in(run_dir)
    assert await compact(run_dir) == 0
    assert before == (segments_in(run_dir), proofs_in(run_dir))
    assert len(proofs_in(run_dir)) == 1


async def test_proof_grows_with_the_journal_only_by_figures(run_dir: Path) -> None:
    sizes = []
    while await compact(run_dir, steps=1):
        sizes += [len(body) - len(json.loads(body)["history"]) for body in proofs_in(run_dir).values()]
    assert len(sizes) > 1
    assert max(sizes) < 1300


KILLED_AT_EVERY_STATEMENT = """
import asyncio, sys
from pathlib import Path
from tests.support.drive.journaled_run import compact
from tests.support.drive.killed_statements import killed_at_each

killed_at_each(Path(sys.argv[1]), Path(sys.argv[2]), lambda folder: asyncio.run(compact(folder, steps=2)))
"""


@pytest.mark.nightly
async def test_compaction_killed_at_any_statement_loses_and_doubles_nothing(whole: Path, tmp_path: Path) -> None:
    to = tmp_path / "killed"
    program = (sys.executable, "-c", KILLED_AT_EVERY_STATEMENT, str(whole), str(to))
    await asyncio.to_thread(subprocess.run, program, check=True)
    folders = sorted(to.iterdir())
    assert len(folders) > 2 * STATEMENTS_OF_A_STEP, "one of them was not killed"
    expected, count = (await audit_store(str(whole), recompute=False)).replica_chain, covered(whole)
    for folder in folders:
        assert (folder.name, await problems_of(folder)) == (folder.name, ())
        await compact(folder)
        found = await audit_store(str(folder), recompute=False)
        assert (found.problems, found.compacted_segments, found.replica_chain) == ((), count, expected)
        assert list(proofs_in(folder)) == [count]


Proof = dict[str, Any]


def edited(edit: Callable[[Proof], Proof]) -> Callable[[Path], None]:
    """Return what changes fields of the proof, or of its ledger."""

    def change(run_dir: Path) -> None:
        ((count, body),) = proofs_in(run_dir).items()
        proof = json.loads(body)
        changed = edit(proof | proof["ledger"])
        ledger = {name: changed.pop(name, value) for name, value in proof["ledger"].items()}
        put_proof(run_dir, count, canonical_json(proof | changed | {"ledger": ledger}))

    return change


def moved_end(by: int) -> Callable[[Path], None]:
    """Return what moves the end of the last applied interval."""

    def edit(proof: Proof) -> Proof:
        *others, last = proof["applied"]
        return {"applied": [*others, last | {"end": last["end"] + by}], "applied_count": proof["applied_count"] + by}

    return edited(edit)


def split(proof: Proof) -> Proof:
    *others, last = proof["applied"]
    middle = (last["start"] + last["end"]) // 2
    return {"applied": [*others, last | {"start": middle + 1}, last | {"end": middle}]}


def remove(run_dir: Path) -> None:
    execute(run_dir, "DELETE FROM epochal_proofs")
    count_bytes(run_dir)


def flip_proof(run_dir: Path) -> None:
    flip(run_dir, "epochal_proofs", "body")


PROOF = r"the proof of the journal's first \d+ segments"
NOT_NAMED = f"{PROOF} is not the one that the journal names"
NOT_JOINED = f"{PROOF} does not end where segment \\d+ begins"
ZEROS = "00" * 32
HARMS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a batch less": (moved_end(-1), f"{PROOF}: missing: 1 batch, from"),
    "a batch more": (moved_end(1), f"{PROOF}: (batches .* were applied although|applied more than once: 1 batch)"),
    "a batch twice": (
        edited(lambda proof: {"applied_count": proof["applied_count"] + 1}),
        f"{PROOF}: applied more than once: 1 batch",
    ),
    "intervals out of order": (edited(split), f"{PROOF} lists batches out of order"),
    "another beginning": (edited(lambda _: {"first_batch": 6}), f"{PROOF}: batches .* were applied although"),
    "a round less": (edited(lambda proof: {"rounds": proof["rounds"] - 1}), rf"{PROOF} says \d+ steps up to"),
    "another last step": (edited(lambda _: {"last_step": 999}), rf"{PROOF} says \d+ steps up to 999"),
    "another replica": (edited(lambda _: {"replica_digest": ZEROS}), f"{PROOF} ends in another replica"),
    "another snapshot": (edited(lambda _: {"snapshot_sha256": ZEROS}), NOT_JOINED),
    "another version": (edited(lambda _: {"version": 7}), NOT_JOINED),
    "another sequence": (edited(lambda _: {"sequence": 7}), NOT_JOINED),
    "another run": (edited(lambda _: {"run_id": "other"}), NOT_JOINED),
    "another chain of records": (edited(lambda _: {"record_chain": ZEROS}), NOT_NAMED),
    "another chain of replicas": (edited(lambda _: {"replica_chain": ZEROS}), NOT_NAMED),
    "another proof before it": (edited(lambda _: {"previous_sha256": ZEROS}), NOT_NAMED),
    "another format": (edited(lambda _: {"format": 9}), f"{PROOF} has format 9"),
    "other segments": (edited(lambda _: {"segment_count": 1}), f"{PROOF} is of 1 segments"),
    "a bit": (flip_proof, r".*the proof of \d+ segments of \S+ is damaged"),
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
    assert any(re.match(said, problem) for problem in problems), problems
    before = segments_in(run_dir)
    with pytest.raises(StoreFailed, match=r"missing or damaged|is damaged|has format|is of 1"):
        await compact(run_dir)
    assert segments_in(run_dir) == before


async def test_proofs_that_changed_places_are_named(run_dir: Path, compacted: Path, tmp_path: Path) -> None:
    await compact(run_dir, steps=1)
    (earlier,), (count,) = proofs_in(run_dir).values(), proofs_in(compacted)
    folder = Path(shutil.copytree(compacted, tmp_path / "other"))
    put_proof(folder, count, earlier)
    assert any(re.match(f"{PROOF} is of 1 segments", problem) for problem in await problems_of(folder))
    put_proof(folder, count, canonical_json(json.loads(earlier) | {"segment_count": count}))
    assert any(re.match(NOT_JOINED, problem) for problem in await problems_of(folder))


async def test_segment_that_does_not_replay_is_kept(run_dir: Path) -> None:
    flip(run_dir, "epochal_records", "body", "segment = 1")
    with pytest.raises(StoreFailed, match=r"record \d+ of \S+ is damaged"):
        await compact(run_dir)
    assert segments_in(run_dir)[0] == 0


async def test_journal_is_not_compacted_while_somebody_copies_it(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochal.coordinator.proof.compaction.COPY_RETRY_S", 0.0)
    monkeypatch.setattr("epochal.coordinator.proof.compaction.MAX_COPY_WAITS", 2)
    opened = await OpenedRun.open(run_dir)
    async with opened.store.place.copying():
        await opened.compaction().step()
        assert segments_in(run_dir)[0] == 0
    assert await problems_of(run_dir) == ()
    await opened.compaction().step()
    assert segments_in(run_dir)[0] == 2
    await opened.store.aclose()


async def test_backup_of_a_compacted_run_is_whole_and_goes_on(compacted: Path, tmp_path: Path) -> None:
    to = tmp_path / "backup"
    await back_up(str(compacted), to, lambda _: None)
    assert await problems_of(to) == ()
    copy = Path(shutil.copytree(to, tmp_path / "copy"))
    flip_proof(copy)
    assert any("segments of run is damaged" in problem for problem in await problems_of(copy))
    opened = await OpenedRun.open(to)
    assert not await opened.compaction().step()
    await opened.store.aclose()


async def test_run_taken_back_to_before_its_proof_was_named_goes_on(run_dir: Path) -> None:
    await compact(run_dir, steps=covered(run_dir) - 1)
    before = Path(shutil.copytree(run_dir, run_dir.with_name("before")))
    await compact(run_dir)
    (((count, body)),) = proofs_in(run_dir).items()
    put_proof(before, count, body)
    run_dir = before
    assert await problems_of(run_dir) == ()
    assert await compact(run_dir) == 1
    assert await problems_of(run_dir) == ()
