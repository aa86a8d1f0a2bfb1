"""A real Prometheus on loopback that reads targets each second; it ends with its context."""

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import yaml

from tests.support.bounds import BOUND_S
from tests.support.deployment import DEPLOY
from tests.support.heavy import need_program
from tests.support.servers.ports import free_port

SCRAPE_S = 1
"""Seconds from one reading of the targets to the next; nothing that Prometheus tells changes more often."""


@dataclass(frozen=True, slots=True)
class Prometheus:
    """Its HTTP API."""

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
