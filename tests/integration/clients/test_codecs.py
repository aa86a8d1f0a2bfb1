"""A run of each codec: what clients send is as small as specified, and every replica is the recomputed one."""

import asyncio
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from epochal.coordinator.store.files.blobs import DirectoryBlobs
from epochal.coordinator.store.files.folder import DATABASE_FILE
from epochal.state.results import METADATA_BOUND_BYTES
from tests.support.bounds import BOUND_S
from tests.support.drive.cli import PLAIN_OUTPUT, Ran
from tests.support.drive.processes import real_run
from tests.support.thinned import thinned

STEPS = 3
SPARSE: dict[str, Any] = {
    "merge__codec": "sparse",
    "merge__error_feedback": True,
    "merge__outer_lr": 1.0,
    "merge__outer_momentum": 0.0,
}
CODECS: dict[str, tuple[dict[str, Any], float]] = {
    "int8": ({"merge__codec": "int8"}, 1.02),
    "int4 with error feedback": ({"merge__codec": "int4", "merge__error_feedback": True}, 0.52),
    "int2": ({"merge__codec": "int2", "merge__error_feedback": True}, 0.27),
    "sparse": (SPARSE, 0.04),
    "sparse over senders": (SPARSE | {"merge__mean": "senders", "merge__sparse_keep": 32}, 0.02),
}
"""Settings, and bytes a parameter at most, beside those of the header and of small tensors."""
VALUE_BYTES = 4


@thinned("name", CODECS)
async def test_run_of_a_codec_ends_with_equal_replicas_and_a_clean_audit(name: str, tmp_path: Path) -> None:
    overrides, rate = CODECS[name]
    async with real_run(tmp_path, config__total_steps=STEPS, config__init_min_clients=2, **overrides) as run:
        for _ in range(2):
            await run.start_client()
        report = await run.finish()
        assert (report.rounds, report.quarantined, report.unapplied) == (STEPS, 0, 0)
        assert report.recomputed_steps == STEPS + 1
        files = DirectoryBlobs.for_reading(run.run_dir)
        blobs = [await files.size(sha256) or 0 for sha256 in await files.held()]
        with closing(sqlite3.connect(run.run_dir / DATABASE_FILE)) as database:
            blobs += [size for (size,) in database.execute("SELECT size_bytes FROM epochal_blobs")]
    has_momentum = overrides.get("merge__outer_momentum") != 0
    parameters = max(blobs) / VALUE_BYTES / (1 + has_momentum)
    results = [size for size in blobs if size < VALUE_BYTES * parameters * 0.9]
    updates = [size for size in results if results.count(size) == STEPS]
    assert len(results) == 2 * STEPS + STEPS, "and an update a round"
    assert max(size for size in results if size not in updates) <= rate * parameters + METADATA_BOUND_BYTES


OLDER_VERSION = """
import sys
from epochal.state.codecs import codecs_by_name
codecs_by_name.SPOKEN = tuple(sys.argv.pop(1).split(","))
from epochal.cli.main import main
main()
"""
"""The command as a version that reads and writes the codecs in the first argument, and no others."""


async def run_older(codecs: str, *arguments: str) -> Ran:
    """Run a command of an older version to its end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OLDER_VERSION, codecs, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **PLAIN_OUTPUT},
    )
    try:
        async with asyncio.timeout(BOUND_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())


@pytest.mark.nightly
async def test_client_of_another_codec_version_is_refused_at_its_join(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__init_min_clients=1, config__total_steps=1, merge__codec="int4") as run:
        for codecs in ("float32/1,int8/1", "float32/1,int4/2"):
            refused = await run_older(codecs, "client", run.url, "--trainer", "numpy")
            said = f"results have codec and format int4/1, the client reads and writes {codecs.replace(',', ', ')}: "
            refused.expect(1, said, "install the version of Epochal that the coordinator has")
        assert run.events(run.coordinator, "membership_changed") == []
        (await run_older("float32/1,int4/1", "client", run.url, "--trainer", "numpy")).expect(0)
        assert (await run.finish()).rounds == 1
