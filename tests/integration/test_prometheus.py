"""Grafana's dashboard and the alerts over a real Prometheus that reads a real run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from epochal.tools.testnet.child_processes import Child
from tests.support.deployment import DEPLOY
from tests.support.drive.processes import RealRun, in_training, prepared_run
from tests.support.servers.prometheus import Prometheus, prometheus

VALUES = {"$coordinators": "epochal-coordinator-a", "$data_servers": "epochal-data-a", "$__rate_interval": "4s"}
"""Of the dashboard's variables, as Grafana would fill them in."""
QUIET = {"Refusals"}
"""Panels that have no series where nothing goes wrong."""
DATA_SERVER_DOWN = "EpochalDataServerDown"
SEQ_LEN = 16
SAMPLES = 5000
METRICS_LINE = "metrics at "


async def serve_data(run: RealRun) -> tuple[Child, str, str]:
    """Start a data server; return it, its location and where its metrics are."""
    (run.folder / "data").mkdir()
    (np.arange(SEQ_LEN * SAMPLES) % 251).astype("<u2").tofile(run.folder / "data" / "tokens.bin")
    config = run.folder / "data.toml"
    config.write_text(tomli_w.dumps({"dir": "data", "token_size": "TwoBytes", "seq_len": SEQ_LEN}), encoding="utf-8")
    server = ("data-server", str(config), "--coordinator", run.url, "--port", "0", "--metrics-port", "0")
    child, address = await run.start_server("data-server", *server)
    (line,) = [line for line in run.printed if line.startswith(METRICS_LINE)]
    return child, f"tcp://{address}", line.removeprefix(METRICS_LINE)


def queries() -> dict[str, list[str]]:
    """Return the queries of each panel, with the variables filled in, by the panel's number and title."""
    panels: list[dict[str, Any]] = json.loads((DEPLOY / "grafana/epochal.json").read_text("utf-8"))["panels"]
    found = {}
    for panel in panels:
        texts = [target["expr"] for target in panel.get("targets", ())]
        for name, value in VALUES.items():
            texts = [text.replace(name, value) for text in texts]
        if texts and panel["title"] not in QUIET:
            found[f"{panel['id']} {panel['title']}"] = texts
    return found


async def empty_panels(read: Prometheus) -> list[str]:
    """Return the panels of which no query has a series."""
    return [name for name, texts in queries().items() if not any([await read.query(text) for text in texts])]


@pytest.mark.nightly
async def test_each_panel_shows_a_run_and_alerts_are_evaluated(tmp_path: Path) -> None:
    overrides = {
        "config__init_min_clients": 2,
        "config__total_steps": 5000,
        "model__LLM__data_location": {"Server": "127.0.0.1:1"},  # each client is told where it is
    }
    async with prepared_run(tmp_path, **overrides) as run:
        await run.start_coordinator()
        data_server, location, data_url = await serve_data(run)
        for _ in range(2):
            await run.start_client("--data", location)
        await run.until(in_training(2))
        jobs = {VALUES["$coordinators"]: [f"{run.url}/metrics"], VALUES["$data_servers"]: [data_url]}
        async with prometheus(tmp_path, jobs) as read:

            async def every_panel_shows_something() -> bool:
                return await empty_panels(read) == []

            await read.until(every_panel_shows_something)
            rules = await read.rules()
            assert {name: rule for name, rule in rules.items() if rule["health"] != "ok"} == {}
            assert rules[DATA_SERVER_DOWN]["state"] == "inactive"
            data_server.kill()

            async def alert_is_raised() -> bool:
                state: str = (await read.rules())[DATA_SERVER_DOWN]["state"]
                return state != "inactive"

            await read.until(alert_is_raised)
