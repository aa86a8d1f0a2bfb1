"""The description of the API is true: generated requests, valid by it and not, are answered as it says."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from epochal.coordinator.api.app import create_app
from epochal.coordinator.serve import ServeOptions, Serving, serving
from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.http.http_server import Endpoint
from epochal.runtime.retry import RetryPolicy
from tests.support.data.states import state_file
from tests.support.drive.hand_client import HandClient
from tests.support.drive.served import Served
from tests.support.heavy import need_module

MAX_TIME_S = 10
"""Time for each run of generated requests."""
SLOW_START_S = 60
"""Time for the generator to start and end, on a machine that does other things."""
HOOKS = Path(__file__).parents[3] / "support" / "schemathesis_hooks.py"
CONFIG = """
[parameters]
"path.run_id" = "test-run"

[checks.negative_data_rejection]  # by default 413 is missing: an invalid body may as well be too large
expected-statuses = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "428", "429", "5xx"]

[[operations]]  # that the bytes have the digest in the path, and are a checkpoint, no schema can say
include-path = "/v1/runs/{run_id}/genesis/{sha256}"
checks.positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "413", "422", "429", "5xx"]

[[operations]]  # nor under which names the coordinator is reached
include-path = ["/v1/runs/{run_id}/clients", "/v1/runs/{run_id}/clients/receipt"]
checks.positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "421", "429", "5xx"]

[[operations]]  # nor that a line of them is a commitment to the others, and what the run's settings and data allow
include-path = ["/v1/runs/{run_id}/deliveries", "/v1/runs/{run_id}/changes"]
checks.positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "413", "422", "429", "5xx"]
"""


@asynccontextmanager
async def served_run(folder: Path) -> AsyncIterator[Serving]:
    state = state_file(config__client_timeout_s=3.0)  # bounds the time of a long poll
    async with serving(state, ServeOptions(str(folder / "run"), Endpoint(port=0))) as running:
        yield running


async def token_of(who: str, running: Serving) -> str | None:
    if who == "admin":
        return running.admin_token
    if who == "nobody":
        return None
    async with await CoordinatorClient.connect(running.url, RetryPolicy(), True) as coordinator:
        client = HandClient(coordinator, 1)
        await client.join()
        return client.token


@pytest.mark.nightly
@pytest.mark.parametrize("who", ["nobody", "member", "admin"])
async def test_generated_requests_are_answered_as_described(tmp_path: Path, who: str) -> None:
    need_module("schemathesis")
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    async with served_run(tmp_path) as running:
        token = await token_of(who, running)
        command = ["-m", "schemathesis.cli", "--config-file", str(config), "run", f"{running.url}/openapi.json"]
        command += ["--checks", "all", "--phases", "coverage,fuzzing", "--max-time", str(MAX_TIME_S), "--workers", "1"]
        command += ["--exclude-path", "/v1/runs/{run_id}/events"]  # it answers without end
        command += ["--generation-deterministic", "--no-shrink", "--warnings", "off"]
        command += [] if token is None else ["--header", f"Authorization: Bearer {token}"]
        command += ["--exclude-method", "DELETE"] if who == "member" else []  # its session would be over
        generator = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            cwd=tmp_path,
            env={**os.environ, "SCHEMATHESIS_HOOKS": str(HOOKS)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(MAX_TIME_S + SLOW_START_S):
                said, _ = await generator.communicate()
        finally:
            if generator.returncode is None:
                generator.kill()
                await generator.wait()
    assert generator.returncode == 0, said.decode(errors="replace")[-8_000:]
    assert b"Coverage" in said


async def test_every_route_of_the_api_is_described_once(coordinator: Served) -> None:
    description = (await coordinator.http.get("/openapi.json")).json()
    routes = create_app(coordinator.handlers, "test").routes
    served = {
        (route.path, method)
        for route in routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in route.methods or ()
    }
    paths = description["paths"]
    assert {(path, method.upper()) for path in paths for method in paths[path]} == served
    for path, methods in paths.items():
        for operation in methods.values():
            assert operation["summary"], path
            problem = operation["responses"]["default"]["content"]["application/problem+json"]["schema"]
            assert problem == {"$ref": "#/components/schemas/Problem"}
    assert {"HTTPValidationError", "ValidationError"}.isdisjoint(description["components"]["schemas"])


async def test_description_names_parameters_bounds_and_tokens(coordinator: Served) -> None:
    paths = (await coordinator.http.get("/openapi.json")).json()["paths"]
    document = paths["/v1/runs/{run_id}"]["get"]
    after, wait_s = (next(one for one in document["parameters"] if one["name"] == name) for name in ("after", "wait_s"))
    assert (after["schema"]["minimum"], after["schema"]["maximum"]) == (-1, 2**63 - 1)
    assert (wait_s["schema"]["minimum"], wait_s["schema"]["maximum"]) == (0, 10**9)
    assert "security" not in document
    assert set(paths["/readyz"]["get"]["responses"]["503"]["content"]) == {"text/plain"}
    assert paths["/v1/runs/{run_id}/pause"]["post"]["security"] == [{"admin token": []}]
    assert paths["/v1/runs/{run_id}/ready"]["post"]["security"] == [{"session token": []}]
    assert paths["/v1/blobs/{sha256}"]["get"]["security"] == [{"session token": []}, {"admin token": []}]
