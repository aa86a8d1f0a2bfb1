"""Data that fails: a data server that dies, samples that no client can train on."""

import asyncio
import resource
from pathlib import Path

import numpy as np
import pytest

from epochal.coordinator_client.api import DocumentMark
from epochal.data_providers.tcp.server_limits import ServerLimits
from epochal.runtime.http.http_client import MAX_CONNECTIONS
from epochal.state.intervals import BatchId
from tests.support.data.token_files import SEQ_LEN, SEQUENCES, write_served_tokens, write_tokens
from tests.support.drive.processes import in_training, real_run

POLL_S = 30.0
LAST_STEP = 30
"""Of a run that loses its data server in its third step: a quick client is not yet there when the server ends."""
LAST_SEQUENCES = 3
BAD_INDEX = 29
FEW_FILES = 1024
"""A usual limit of a process's open files: enough for the connections, but for nothing else."""


@pytest.mark.nightly
async def test_data_server_may_open_as_many_files_as_its_connections_need(tmp_path: Path) -> None:
    config, port = write_served_tokens(tmp_path)
    location = {"Server": f"127.0.0.1:{port}"}
    async with real_run(tmp_path / "run", model__LLM__data_location=location) as run:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_FILES, hard))
        try:
            server, _ = await run.start_server("data", "data-server", str(config), "--coordinator", run.url)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        allowed, _ = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        assert allowed > ServerLimits().connections.total


@pytest.mark.nightly
async def test_sample_that_fails_on_three_clients_is_quarantined(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "data", BAD_INDEX)
    overrides = {"config__total_steps": 30, "model__LLM__data_location": {"Local": str(path)}}
    async with real_run(tmp_path / "run", 3, **overrides) as run:
        report = await run.finish()
        assert (report.quarantined, report.unapplied) == (1, 0)
        status = await run.status()
        assert status.quarantined == (BatchId(BAD_INDEX, BAD_INDEX),)
        (said,) = run.events(run.coordinator, "batches_quarantined")
        assert said["batch_id"] == str(BatchId(BAD_INDEX, BAD_INDEX))
        assert "a token or label is above" in said["reason"]
        assert f"data index {BAD_INDEX}" in said["reason"]
        assert len(set(said["failed_on"])) == 3, "each client has failed on it"
        assert report.applied == 30 * 12 - 1 or report.rounds >= 30


@pytest.mark.nightly
async def test_file_that_shrinks_loses_the_sample_that_is_cut_and_no_other(tmp_path: Path) -> None:
    first = write_tokens(tmp_path / "data")
    tokens = np.fromfile(first, "<u2")
    last = tmp_path / "data" / "z.bin"
    tokens[: LAST_SEQUENCES * SEQ_LEN].tofile(last)
    overrides = {
        "config__total_steps": 50,  # the sample that is cut comes up at step 34, which leaves rounds to single it out
        "model__LLM__data_location": {"Local": str(first.parent)},
    }
    async with real_run(tmp_path / "run", 3, **overrides) as run:
        await run.until(in_training(1))  # each client has looked at the file, and holds it open
        last.write_bytes(last.read_bytes()[:-2])
        report = await run.finish()
        assert (report.quarantined, report.unapplied) == (1, 0)
        cut = SEQUENCES + LAST_SEQUENCES - 1
        assert (await run.status()).quarantined == (BatchId(cut, cut),)


@pytest.mark.nightly
async def test_requests_that_a_failed_step_cancels_cost_no_connections(tmp_path: Path) -> None:
    async with real_run(tmp_path / "run") as run:
        document = await run.watch.next()
        mark = DocumentMark(document.lineage, document.version)
        for turns in range(8):  # of the event loop, until the requests are cancelled
            async with asyncio.TaskGroup() as group:
                asking = [
                    group.create_task(run.watch.api.run_document(mark, POLL_S)) for _ in range(3 * MAX_CONNECTIONS)
                ]
                for _ in range(turns):
                    await asyncio.sleep(0)
                for waiting in asking:
                    waiting.cancel()
        assert await run.watch.api.run_document(None, 0.0) == document
