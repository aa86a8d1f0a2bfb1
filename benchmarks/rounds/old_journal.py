"""The journal of segments and packs that folders had before the one in SQL, taken from the repository's history."""

import asyncio
import subprocess
import sys
from pathlib import Path

COMMIT = "a147bad0019110e3185c9a903718464ad54f3cbe~1"
"""The last version that had it."""
ROOT = Path(__file__).parents[2]
ROOMS = ("epochal", "coordinator", "runtime", "state")
NO_HISTORY = "the old journal: this copy of the repository has no history"
PROGRAM = """
import asyncio, hashlib, os, sys, time
from pathlib import Path
from epochal.coordinator.machine.journal_records import JournalRecord, Snapshot
from epochal.coordinator.store.directory.run_directory import RunDirectory

async def main(folder, each_s, record_bytes, blob_count, blob_bytes):
    store, count = await RunDirectory.open(Path(folder), 2**40), 0
    await store.journal.open_segment(Snapshot(0, b"start"))
    began_s = time.perf_counter()
    while (elapsed_s := time.perf_counter() - began_s) < each_s:
        count += 1
        async with asyncio.TaskGroup() as tasks:
            for data in [os.urandom(blob_bytes) for _ in range(blob_count)]:
                tasks.create_task(store.blobs.keep(hashlib.sha256(data).hexdigest(), data))
        await store.journal.append(JournalRecord(count, bytes(record_bytes)))
    print(count / elapsed_s)
    await store.aclose()

asyncio.run(main(sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:])))
"""
"""Keeps records, each after its blobs, and prints how many a second became durable."""


def fetched(folder: Path) -> Path | None:
    """Return a folder with the old version's rooms, made in this one; None where the history lacks it."""
    archive = ("git", "-C", str(ROOT), "archive", COMMIT, *ROOMS)
    found = subprocess.run(archive, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if found.returncode:
        return None
    version = folder / "old-version"
    version.mkdir()
    subprocess.run(("tar", "-x", "-C", str(version)), input=found.stdout, check=True)
    return version


async def records_per_s(version: Path | None, run: Path, *numbers: float) -> float | None:
    """Return how many records a second the old journal keeps.

    Args:
        version: as `fetched` returns it.
        run: the new folder of the run.
        numbers: seconds, size of a record, number of small blobs with each, their size.
    """
    if version is None:
        return None
    command = (sys.executable, "-c", PROGRAM, str(run), *map(str, numbers))
    program = await asyncio.create_subprocess_exec(*command, cwd=version, stdout=asyncio.subprocess.PIPE)
    printed, _ = await program.communicate()
    if program.returncode:
        raise RuntimeError(f"the old journal's program ended with {program.returncode}")
    return float(printed)
