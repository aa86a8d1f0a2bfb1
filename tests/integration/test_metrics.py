"""A real run, scraped: what coordinator, data server and clients count agrees."""

import asyncio
from pathlib import Path

import numpy as np
import tomli_w

from epochal.state.phase_names import RunState
from epochal.tools.testnet.child_processes import Child
from tests.support.bounds import BOUND_S
from tests.support.drive.processes import RealRun, in_phase, in_training, prepared_run
from tests.support.scraping import Scrape, scrape

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


async def start_measured_client(run: RealRun, location: str) -> str:
    """Start a client that shows its metrics, and return where they are."""
    child = await run.start_client("--data", location, *ANY_PORT)
    return (await run.line_of(child, METRICS_LINE)).removeprefix(METRICS_LINE)


async def settled(coordinator_url: str, client_urls: list[str]) -> tuple[Scrape, list[Scrape]]:
    """The metrics of a run that holds, once its clients have applied its last outcome."""
    async with asyncio.timeout(BOUND_S):
        while True:
            coordinator, clients = await scrape(coordinator_url), [await scrape(url) for url in client_urls]
            step = coordinator.total("epochal_run_step")
            if all(client.total("epochal_client_replica_step") == step - 1 for client in clients):
                return coordinator, clients


async def test_numbers_of_coordinator_data_server_and_clients_agree(tmp_path: Path) -> None:
    overrides = {
        "config__init_min_clients": 2,
        "config__total_steps": 500,
        "model__LLM__data_location": {"Server": "127.0.0.1:1"},  # each client is told where it is
    }
    async with prepared_run(tmp_path, **overrides) as run:
        await run.start_coordinator()
        _, location, data_url = await serve_data(run)
        client_urls = [await start_measured_client(run, location) for _ in range(2)]
        await run.until(in_training(5))
        await run.command_here("pause", run.url, EPOCHAL_ADMIN_TOKEN=run.admin_token)
        document = await run.until(in_phase(RunState.PAUSED))
        coordinator, clients = await settled(f"{run.url}/metrics", client_urls)
        data_server = await scrape(data_url)

    def summed(sample: str, **labels: str) -> float:
        return sum(client.total(sample, **labels) for client in clients)

    assert coordinator.total("epochal_run_phase", phase="Paused") == 1
    assert coordinator.total("epochal_run_rounds_total", outcome="applied") == document.step - 1 >= 4
    assert summed("epochal_client_results_settled_total", fate="applied") > 0
    assert coordinator.total("epochal_run_round_duration_seconds_count") >= document.step - 1

    assert data_server.total("epochal_data_server_samples_total") >= document.data_indices_applied
    sent_bytes = data_server.total("epochal_data_server_sent_bytes_total")
    assert sent_bytes == data_server.total("epochal_data_server_samples_total") * SEQ_LEN * 2
    assert data_server.total("epochal_data_server_connections_open") == 2
    assert data_server.total("epochal_data_server_document_version") <= document.version

    def of_routes(sample: str, *routes: str) -> float:
        return sum(coordinator.total(sample, route=route) for route in ("/v1/blobs/{sha256}", *routes))

    received = of_routes("epochal_http_request_body_bytes_total", "/v1/runs/{run_id}/deliveries")
    assert 0 < summed("epochal_client_uploaded_bytes_total") <= received
    sent = of_routes("epochal_http_response_body_bytes_total", "/v1/runs/{run_id}/rounds/{step}/results")
    assert 0 < summed("epochal_client_downloaded_bytes_total") <= sent
    assert summed("epochal_client_data_wait_duration_seconds_sum") <= summed(
        "epochal_client_train_duration_seconds_sum"
    )
    assert summed("epochal_client_merge_duration_seconds_count") >= document.step - 1
