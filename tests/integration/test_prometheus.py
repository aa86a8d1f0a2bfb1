"""Grafana's dashboard and the alerts over a real Prometheus that reads a real run."""

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
import tomli_w
import yaml

from epochal.tools.testnet.child_processes import Child
from tests.support.bounds import BOUND_S
from tests.support.deployment import DEPLOY
from tests.support.drive.processes import RealRun, in_training, prepared_run
from tests.support.heavy import need_program
from tests.support.servers.ports import free_port

SCRAPE_S = 1
"""Seconds from one reading of the targets to the next; nothing that Prometheus tells changes more often."""
VALUES = {"$coordinators": "epochal-coordinator-a", "$data_servers": "epochal-data-a", "$__rate_interval": "4s"}
"""Of the dashboard's variables, as Grafana would fill them in."""
QUIET = {"Refusals"}
"""Panels that have no series where nothing goes wrong."""
DATA_SERVER_DOWN = "EpochalDataServerDown"
SEQ_LEN = 16
SAMPLES = 5000
METRICS_LINE = "metrics at "


@dataclass(frozen=True, slots=True)
class Prometheus:
    """The HTTP API of a real Prometheus on loopback that reads targets each second."""

    http: httpx.AsyncClient

    async def until(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        """Return once something is so; ask after each reading of the targets."""
        async with asyncio.timeout(BOUND_S):
            while not await is_so():  # noqa: ASYNC110  # it tells nobody of its own accord
                await asyncio.sleep(SCRAPE_S)

    async def is_ready(self) -> bool:
        """Return whether it answers queries, which it refuses while it reads its folder."""
        return (await self.http.get("/-/ready")).is_success

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that an expression gives now."""
        answer = await self.http.get("/api/v1/query", params={"query": expression})
        body = answer.json()
        assert body["status"] == "success", f"{expression}: {body}"
        found: list[dict[str, Any]] = body["data"]["result"]
        return found

    async def rules(self) -> dict[str, dict[str, Any]]:
        """Return every alert's rule as Prometheus evaluated it, by name."""
        body = (await self.http.get("/api/v1/rules")).raise_for_status().json()
        return {rule["name"]: rule for group in body["data"]["groups"] for rule in group["rules"]}


@contextlib.asynccontextmanager
async def prometheus(folder: Path, jobs: Mapping[str, Sequence[str]]) -> AsyncIterator[Prometheus]:
    """Yield a Prometheus with the project's alerts that reads the URLs of `/metrics` of each job."""
    program = need_program("prometheus")
    config = {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": [str(DEPLOY / "prometheus/alerts.yml")],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [urlsplit(url).netloc for url in urls]}]}
            for job, urls in jobs.items()
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    options = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    with (folder / "prometheus.log").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            program, *options, f"--web.listen-address={address}", stdout=output, stderr=subprocess.STDOUT
        )
        try:
            async with httpx.AsyncClient(base_url=f"http://{address}", timeout=BOUND_S) as http:
                transport = httpx.AsyncHTTPTransport(retries=60)  # it backs off while nobody listens
                async with httpx.AsyncClient(
                    base_url=f"http://{address}", transport=transport, timeout=BOUND_S
                ) as first:
                    await first.get("/-/ready")
                read = Prometheus(http)
                await read.until(read.is_ready)
                yield read
        finally:
            process.terminate()
            async with asyncio.timeout(BOUND_S):
                await process.wait()


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
