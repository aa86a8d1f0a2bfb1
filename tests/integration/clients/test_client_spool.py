"""The spool of real clients: it goes with them, and a round that it cannot hold ends them by name."""

from pathlib import Path

import pytest

from tests.support.bounds import BOUND_S
from tests.support.drive.processes import in_training, real_run

LARGE = {"model__LLM__ngram": {"context": 8, "embedding": 64, "hidden": 256}}
"""A model whose results do not stay in memory: 0.6 MB."""


@pytest.mark.nightly
async def test_run_on_files_has_equal_replicas_and_leaves_nothing(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    both = {"config__total_steps": 4, "config__init_min_clients": 2, "config__min_clients": 2}
    async with real_run(tmp_path, config__client_timeout_s=9, **both, **LARGE) as run:
        killed, _ = [await run.start_client("--spool", str(spool)) for _ in range(2)]
        await run.until(in_training(2))
        killed.kill()
        await killed.wait(BOUND_S)
        await run.start_client("--spool", str(spool))
        report = await run.finish(without=(killed,))
        assert (report.rounds, report.unapplied, report.recomputed_steps) == (4, 0, 5)
    assert list(spool.iterdir()) == []


async def test_client_whose_spool_cannot_hold_a_round_ends_by_name(tmp_path: Path) -> None:
    bound = 2 * 1024 * 1024
    async with real_run(tmp_path, config__init_min_clients=1, client__spool_bytes=bound, **LARGE) as run:
        client = await run.start_client("--spool", str(tmp_path / "spool"))
        assert await client.wait(BOUND_S) == 1
        (line,) = [line for line in client.log_tail().splitlines() if line.startswith("epochal: ")]
        assert f"[client] spool_bytes is {bound}" in line
        assert "needs" in line
