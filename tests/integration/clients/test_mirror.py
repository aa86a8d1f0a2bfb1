"""Clients with a mirror, which is an nginx as `deploy/mirror` configures it."""

from pathlib import Path

from tests.support.drive.processes import in_training, real_run
from tests.support.servers.nginx import mirror

STEPS = 4


async def test_clients_read_updates_and_checkpoints_at_a_real_mirror(tmp_path: Path) -> None:
    async with real_run(tmp_path / "run", config__total_steps=STEPS, config__init_min_clients=2) as run:
        token = await run.command_here("token", "mirror", run.store)
        token.expect(0)
        with mirror(tmp_path / "mirror", run.url, token.out.strip()) as nginx:
            for _ in range(2):
                await run.start_client("--mirror", nginx.url)
            await run.until(in_training(1))
            report = await run.finish()
            lines = [line.split() for line in nginx.log_path.read_text().splitlines()]
        logs = [run.events(child) for child in run.clients]
    assert (report.rounds, report.unapplied) == (STEPS, 0)
    assert not [line for log in logs for line in log if line["event"] == "mirror_failed"]
    served = {path for path, status, _ in lines if status == "200"}
    assert len(served) > STEPS, "each round's update, and the first checkpoint"
    assert "HIT" in {found for _, _, found in lines}, "what one client had asked for came from the cache"


async def test_run_goes_on_when_its_mirror_is_killed(tmp_path: Path) -> None:
    async with real_run(tmp_path / "run", config__total_steps=STEPS, config__init_min_clients=1) as run:
        token = await run.command_here("token", "mirror", run.store)
        with mirror(tmp_path / "mirror", run.url, token.out.strip()) as nginx:
            client = await run.start_client("--mirror", nginx.url)
            await run.until(in_training(1))
        report = await run.finish()
        failed = run.events(client, "mirror_failed")
    assert report.rounds == STEPS
    assert len(failed) <= 1
