"""A client far from its data server and its coordinator: after the first round its trainer waits for no data."""

import statistics
from pathlib import Path

import pytest

from tests.support.data.token_files import write_served_tokens
from tests.support.drive.processes import in_training, real_run
from tests.support.servers.delaying_relay import delaying_relay

ROUND_TRIP_S = 0.2
ROUNDS = 9


@pytest.mark.nightly
async def test_client_far_from_its_data_waits_only_in_its_first_round(tmp_path: Path) -> None:
    """Its rounds take a few round trips to the coordinator; the next round's samples arrive meanwhile."""
    config, port = write_served_tokens(tmp_path)
    location = {"Server": f"127.0.0.1:{port}"}
    overrides = {"config__total_steps": ROUNDS, "model__LLM__data_location": location}
    async with real_run(tmp_path / "run", **overrides) as run:
        await run.start_server("data", "data-server", str(config), "--coordinator", run.url)
        near_port = int(run.url.rpartition(":")[2])
        async with (
            delaying_relay(port, ROUND_TRIP_S) as far_data,
            delaying_relay(near_port, ROUND_TRIP_S) as far_coordinator,
        ):
            near, run.url = run.url, f"http://127.0.0.1:{far_coordinator}"
            client = await run.start_client("--data", f"tcp://127.0.0.1:{far_data}")
            run.url = near
            await run.until(in_training(ROUNDS - 1))
            (member,) = (await run.status()).members
            report = await run.finish()
        trained = run.events(client, "round_trained")
    assert report.rounds == len(trained) == ROUNDS
    waits = [line["data_wait_s"] for line in trained]
    assert waits[0] >= ROUND_TRIP_S, "the data are far"
    assert statistics.median(waits[1:]) < ROUND_TRIP_S / 4, waits
    batches = [line["batch_count"] for line in trained]
    assert [line["ahead_samples"] for line in trained[1:]] == batches[1:]
    assert sum(line["dropped_samples"] for line in trained) == 0
    assert member.data_wait is not None
    assert 0 < member.data_wait < 1
