"""Checkpoints of several parts between real processes: from a mirror too, read by commands, and within an epoch."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

from epochal.runtime.files.left_files import PREFIX as LEFT_PREFIX
from epochal.runtime.files.spool import FOLDER_PREFIX
from epochal.state.phase_names import ROUND_PHASES
from epochal.state.wire import sha256_hex
from epochal.tools.export.folder import read_note
from tests.support.bounds import BOUND_S
from tests.support.drive.processes import in_training, real_run
from tests.support.servers.cutting_relay import cutting_relay, until
from tests.support.servers.nginx import nginx

LARGE = {"model__LLM__ngram": {"context": 8, "embedding": 64, "hidden": 256}}
"""A model whose checkpoint is 1.2 MB."""
PART_BYTES = 100_000
RUN = {
    "config__client_timeout_s": 9,
    "config__total_steps": 4,
    "config__init_min_clients": 2,
    "config__min_clients": 2,
    **LARGE,
}


async def test_parts_come_from_two_servers_and_commands_read_them(tmp_path: Path) -> None:
    with nginx(tmp_path / "nginx", tmp_path / "coordinator" / "blobs") as mirror:
        async with real_run(tmp_path, **RUN, blobs__part_bytes=PART_BYTES) as run:
            spool = ("--spool", str(tmp_path / "spool"))
            await run.start_client(*spool, "--mirror", f"{mirror.url}/data")
            killed = await run.start_client(
                *spool, "--mirror", f"{mirror.url}/denied", "--mirror", "http://127.0.0.1:9"
            )
            await run.until(in_training(2))
            killed.kill()
            await killed.wait(BOUND_S)
            await run.start_client(*spool, "--mirror", f"{mirror.url}/data/")
            report = await run.finish(without=(killed,))
            assert (report.rounds, report.unapplied, report.recomputed_steps) == (4, 0, 5)
            sent = [line for line in mirror.requests() if line.startswith("/data/") and " 200 " in line]
            assert sent, "the mirror had a part in it"
            assert any(" 403 " in line for line in mirror.requests() if line.startswith("/denied/"))
            checkpoint = run.watch.seen[-1].checkpoint
            assert checkpoint is not None
            assert checkpoint.part_count == -(-checkpoint.size_bytes // PART_BYTES) > 10
            assert len(list((run.run_dir / "blobs").glob("??/*"))) >= checkpoint.part_count
            for place, out in ((str(run.run_dir), tmp_path / "stored"), (run.url, tmp_path / "served")):
                ran = await run.command_here("export", place, "--out", str(out), EPOCHAL_ADMIN_TOKEN=run.admin_token)
                ran.expect(0, "replica 4")
                note = read_note(out)
                assert note is not None
                assert note.checkpoint_sha256 == checkpoint.blob_sha256
    assert list((tmp_path / "spool").glob(f"{FOLDER_PREFIX}*")) == []


def whole_parts_left(spool: Path, blobs: Path) -> int:
    """Return how many parts of a checkpoint a client that has not ended has received."""
    known = {path.name for path in blobs.glob("??/*")}
    data = b"".join(path.read_bytes() for path in spool.glob(f"{FOLDER_PREFIX}*/{LEFT_PREFIX}*"))
    return sum(sha256_hex(data[start : start + PART_BYTES]) in known for start in range(0, len(data), PART_BYTES))


async def test_joiner_killed_in_its_download_does_not_begin_anew(tmp_path: Path) -> None:
    one = {**RUN, "config__init_min_clients": 1, "config__min_clients": 1, "config__total_steps": 1}
    spool, key = tmp_path / "spool", tmp_path / "key"
    key.write_bytes(bytes(32))
    same = ("--spool", str(spool), "--key", str(key))
    async with real_run(tmp_path, **one, blobs__part_bytes=PART_BYTES) as run:
        port = urlsplit(run.url).port
        assert port is not None
        async with cutting_relay("127.0.0.1", port) as relay:
            relay.answer_bytes = 8 * PART_BYTES
            joiner = await run.children.start("joiner", "client", relay.url, "--trainer", "numpy", *same)
            async with asyncio.timeout(BOUND_S):
                await relay.is_silent.wait()
                await until(lambda: whole_parts_left(spool, run.run_dir / "blobs") > 1)
            joiner.kill()
            await joiner.wait(BOUND_S)
        client = await run.start_client(*same)
        report = await run.finish()
        assert (report.rounds, report.unapplied) == (1, 0)
        (resumed,) = run.events(client, "checkpoint_download_resumed")
        assert 1 < resumed["parts_held"] < resumed["parts"]
    assert list(spool.glob(f"{FOLDER_PREFIX}*")) == []


async def test_checkpoints_are_written_while_rounds_go_on(tmp_path: Path) -> None:
    every = {"config__total_steps": 12, "config__checkpoint_every": 3, "blobs__part_bytes": PART_BYTES}
    async with real_run(tmp_path, 2, **{**RUN, **every}) as run:
        newer = await run.until(lambda document: document.checkpoint is not None and document.checkpoint.step > 0)
        assert newer.epoch == 0
        assert newer.run_state in ROUND_PHASES
        await run.start_client("--spool", str(tmp_path / "spool"))
        report = await run.finish()
        assert (report.rounds, report.unapplied) == (12, 0)
