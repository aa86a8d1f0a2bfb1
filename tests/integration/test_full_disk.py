"""A disk that fills up under a running coordinator: it stops accepting, says so, and loses nothing."""

import resource
from pathlib import Path

from state.phases import RunState
from tests.support.by_hand import hold_in, joined_by_hand
from tests.support.processes import RealRun, real_run


def fill_disk(run: RealRun) -> None:
    """From now on no file of the coordinator may grow beyond the journal's present length."""
    journal = max((run.run_dir / "journal").glob("*.log"))
    length = journal.stat().st_size
    assert run.coordinator.process.pid is not None
    resource.prlimit(run.coordinator.process.pid, resource.RLIMIT_FSIZE, (length + 7, length + 7))


async def test_full_disk_stops_the_coordinator_which_says_so_and_publishes_nothing_more(tmp_path: Path) -> None:
    overrides = {"config__init_min_clients": 3, "config__total_steps": 5}
    async with real_run(tmp_path, **overrides) as run, joined_by_hand(run, 1) as hand:
        for _ in range(2):
            await run.start_client()
        before = await hold_in(hand, RunState.ROUND_TRAIN, 2)
        assert (await run.http.get("/readyz")).status_code == 200

        fill_disk(run)
        refusal = await run.http.delete(
            "/v1/runs/test-run/clients/me", headers={"Authorization": f"Bearer {hand.session.session_token}"}
        )
        assert (refusal.status_code, refusal.json()["type"]) == (503, "urn:epochal:problem:store-failed")
        assert refusal.json()["retry"] is True
        assert refusal.headers["retry-after"] == "1"
        ready = await run.http.get("/readyz")
        assert ready.status_code == 503
        assert "File too large" in ready.text
        assert (await run.http.get("/healthz")).status_code == 200
        shown = (await run.http.get("/v1/runs/test-run")).json()
        assert shown["version"] == before.version, "nothing is published that could not be kept"
        (said,) = run.events(run.coordinator, "store_failed")
        assert said["level"] == "critical"
        assert (await run.http.get("/v1/runs/test-run/clients/me", headers=bearer(hand.session.session_token))).json()

        await run.kill_coordinator()
        await run.start_coordinator()
        after = await hand.watch.next()
        assert (after.run_state, after.round) == (before.run_state, before.round)
        (dropped,) = run.events(run.coordinator, "journal_torn_record_dropped")
        assert dropped["torn_bytes"] == 7
        await hand.api.withdraw()
        report = await run.finish()
        assert report.rounds == 5


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_run_directory_that_cannot_be_written_refuses_to_start(tmp_path: Path) -> None:
    async with real_run(tmp_path) as run:
        (tmp_path / "file").write_text("no folder")
        ran = await run.command("coordinator", str(run.state_path), "--run-dir", str(tmp_path / "file"), "--port", "0")
        assert ran.code == 1
        assert "cannot be used as a run directory" in ran.err
        assert "Traceback" not in ran.err
