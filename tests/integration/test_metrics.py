"""A real run, scraped: what coordinator and data server count agrees."""

from pathlib import Path

import numpy as np
import pytest
import tomli_w

from epochal.state.phase_names import RunState
from epochal.tools.testnet.child_processes import Child
from tests.support.drive.processes import RealRun, in_phase, in_training, prepared_run
from tests.support.scraping import scrape

SEQ_LEN = 16
SAMPLES = 5000
METRICS_LINE = "metrics at "
ANY_PORT = ("--metrics-port", "0")


async def serve_data(run: RealRun) -> tuple[Child, str, str]:
    """Start a data server; return it, its location and where its metrics are."""
    (run.folder / "data").mkdir()
    (np.arange(SEQ_LEN * SAMPLES) % 251).astype("<u2").tofile(run.folder / "data" / "tokens.bin")
    config = run.folder / "data.toml"
    config.write_text(tomli_w.dumps({"dir": "data", "token_size": "TwoBytes", "seq_len": SEQ_LEN}), encoding="utf-8")
    arguments = ("data-server", str(config), "--coordinator", run.url, "--port", "0", *ANY_PORT)
    child, address = await run.start_server("data-server", *arguments)
    (line,) = [line for line in run.printed if line.startswith(METRICS_LINE)]
    return child, f"tcp://{address}", line.removeprefix(METRICS_LINE)


@pytest.mark.nightly
async def test_numbers_of_coordinator_and_data_server_agree(tmp_path: Path) -> None:
    overrides = {
        "config__init_min_clients": 2,
        "config__total_steps": 500,
        "model__LLM__data_location": {"Server": "127.0.0.1:1"},  # each client is told where it is
    }
    async with prepared_run(tmp_path, **overrides) as run:
        await run.start_coordinator()
        _, location, data_url = await serve_data(run)
        for _ in range(2):
            await run.start_client("--data", location)
        await run.until(in_training(5))
        await run.command_here("pause", run.url, EPOCHAL_ADMIN_TOKEN=run.admin_token)
        document = await run.until(in_phase(RunState.PAUSED))
        coordinator = await scrape(f"{run.url}/metrics")
        data_server = await scrape(data_url)

    assert coordinator.total("epochal_run_phase", phase="Paused") == 1
    assert coordinator.total("epochal_run_rounds_total", outcome="applied") == document.step - 1 >= 4
    assert coordinator.total("epochal_run_round_duration_seconds_count") >= document.step - 1

    assert data_server.total("epochal_data_server_samples_total") >= document.data_indices_applied
    sent_bytes = data_server.total("epochal_data_server_sent_bytes_total")
    assert sent_bytes == data_server.total("epochal_data_server_samples_total") * SEQ_LEN * 2
    assert data_server.total("epochal_data_server_connections_open") == 2
    assert data_server.total("epochal_data_server_document_version") <= document.version
