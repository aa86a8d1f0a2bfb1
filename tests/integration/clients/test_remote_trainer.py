"""Clients that train on a training service, beside one that trains itself: real processes, equal replicas."""

from pathlib import Path

import pytest

from tests.support.drive.processes import RealRun, real_run

TOKEN = "EPOCHAL_TRAINER_TOKEN"


async def start_service(run: RealRun, name: str, port: str = "0", *arguments: str) -> str:
    """The URL of a training service."""
    _, url = await run.start_server(name, "trainer-service", "--port", port, *arguments)
    return url


@pytest.mark.nightly
async def test_light_clients_and_a_heavy_one_hold_the_same_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "only for us")
    overrides = {"config__init_min_clients": 3, "config__total_steps": 6, "merge__inner_state": "keep"}
    async with real_run(tmp_path, **overrides) as run:
        url = await start_service(run, "service", "0", "--max-chunk-items", "2", "--max-chunk-bytes", "10")
        for _ in range(2):
            await run.start_client("--trainer-url", url, trainer="remote")
        await run.start_client()
        report = await run.finish()
        assert (report.rounds, report.quarantined, report.unapplied) == (6, 0, 0)
        for child in run.clients[:2]:
            sent = run.events(child, "chunks_sent")
            assert len(sent) == 6
            assert 0 < sent[-1]["items"] <= 2 * sent[-1]["chunks"]
        refused = await run.command("client", run.url, "--trainer", "remote")
        assert refused.code == 2
        assert "--trainer remote and --trainer-url URL are given together" in refused.err
