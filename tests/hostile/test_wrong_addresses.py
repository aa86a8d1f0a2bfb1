"""A wrong URL ends a client at once with what to do; a coordinator that is not up yet is waited for, aloud."""

import asyncio
import socket
from pathlib import Path

import pytest

from epochal.coordinator_client.http import CoordinatorClient
from epochal.coordinator_client.wrong_address import mistake_in
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import CoordinatorUnreachable
from tests.support.bounds import BOUND_S
from tests.support.data.token_files import write_served_tokens
from tests.support.drive.cli import run_main
from tests.support.drive.processes import prepared_run, real_run, run_command
from tests.support.servers.certificates import self_signed
from tests.support.servers.ports import free_port

PATIENT = ("--reconnect", "3600", "--trainer", "null")
"""A client that would wait for an hour for a coordinator that does not answer."""


async def test_wrong_scheme_path_or_run_ends_at_once_with_the_right_one(tmp_path: Path) -> None:
    async with real_run(tmp_path) as run:
        for url, message in {
            run.url.replace("http:", "https:"): f"the server may be at {run.url}",
            f"{run.url}/status": f"give its address alone, such as {run.url}/",
            f"{run.url}/v1/runs/another": "does not serve run 'another'; it serves test-run",
            f"{run.url}/?run=test-run": "give the address alone, without ? and #",
        }.items():
            (await run_command("client", url, *PATIENT)).expect(2, message)


async def test_port_of_the_data_server_is_no_coordinator(tmp_path: Path) -> None:
    data_config, port = write_served_tokens(tmp_path)
    async with prepared_run(tmp_path, model__LLM__data_location={"Server": f"127.0.0.1:{port}"}) as run:
        arguments = ("coordinator", str(run.state_path), "--store", str(run.run_dir), "--port", "0")
        await run.start_server("coordinator", *arguments, "--data-config", str(data_config))
        (await run_command("client", f"http://127.0.0.1:{port}", *PATIENT)).expect(2, "does not speak HTTP")


async def test_http_on_a_tls_port_names_https(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    async with prepared_run(tmp_path / "run") as run:
        await run.start_coordinator("--tls-cert", str(certificate), "--tls-key", str(key), verify=str(certificate))
        plain = run.url.replace("https:", "http:")
        (await run_command("client", plain, *PATIENT)).expect(2, f"{plain} serves HTTPS; use {run.url}")
        (await run_command("status", plain)).expect(2, f"use {run.url}")


async def test_server_that_is_no_coordinator_is_said(tmp_path: Path) -> None:
    async with prepared_run(tmp_path) as run:
        _, url = await run.start_server("trainers", "trainer-service", "--port", "0")
        (await run_command("client", url, *PATIENT)).expect(2, "does not answer as a coordinator does")


async def unreachable_because(cause: Exception) -> CoordinatorUnreachable:
    """Return the error of a request that failed for this cause."""
    try:
        raise CoordinatorUnreachable("no answer") from cause
    except CoordinatorUnreachable as error:
        return error


async def test_host_that_does_not_exist_is_a_mistake_an_unresolved_one_is_not() -> None:
    url = "http://coordinator.exmaple:8000"
    unknown = await unreachable_because(socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
    assert await mistake_in(url, unknown) == f"there is no host 'coordinator.exmaple'; check the name in {url}"
    not_now = await unreachable_because(socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"))
    assert await mistake_in(url, not_now) is None


@pytest.mark.nightly
async def test_coordinator_that_comes_up_later_is_waited_for_aloud(tmp_path: Path) -> None:
    async with prepared_run(tmp_path, config__total_steps=2) as run:
        port = str(free_port())
        run.url = f"http://127.0.0.1:{port}"
        client = await run.start_client("--reconnect", "600", trainer="null")
        async with asyncio.timeout(BOUND_S):
            while not run.events(client, "coordinator_does_not_answer_yet"):
                await asyncio.wait([asyncio.create_task(client.process.wait())], timeout=0.1)
        (warned,) = run.events(client, "coordinator_does_not_answer_yet")
        assert (warned["level"], warned["goes_on_trying_for_s"]) == ("warning", 600)
        assert "connection refused" in warned["reason"]
        await run.children.start(
            "coordinator", *("coordinator", str(run.state_path), "--store", str(run.run_dir), "--port", port)
        )
        assert await client.wait(BOUND_S) == 0, client.log_tail()


@pytest.mark.nightly
async def test_coordinator_that_goes_away_is_said_with_how_long_it_is_tried(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__total_steps=100_000) as run:
        client = await run.start_client("--reconnect", "2", trainer="null")
        await run.until(lambda document: document.step > 1)
        await run.kill_coordinator()
        assert await client.wait(BOUND_S) == 1
        (lost,) = run.events(client, "coordinator_unreachable")
        assert (lost["level"], lost["goes_on_trying_for_s"]) == ("warning", 2)


async def test_operators_command_does_not_wait(tmp_path: Path) -> None:
    del tmp_path
    with pytest.raises(CoordinatorUnreachable, match="connection refused"):
        await CoordinatorClient.connect(f"http://127.0.0.1:{free_port()}", RetryPolicy(attempts=1))


def test_data_server_waits_as_long_as_it_is_told_for_its_coordinator(tmp_path: Path) -> None:
    (tmp_path / "data.toml").write_text('dir = "data"\nseq_len = 16\ntoken_size = "TwoBytes"\n')
    server = ("data-server", str(tmp_path / "data.toml"), "--coordinator", f"http://127.0.0.1:{free_port()}")
    ran = run_main(*server, "--reconnect", "0.05")
    ran.expect(1, "coordinator_does_not_answer_yet", "goes_on_trying_for_s=0.05", "connection refused")
