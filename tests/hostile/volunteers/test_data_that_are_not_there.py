"""Data that a client cannot open: a wrong path ends it at once with what to do; a server that is away is waited for."""

from pathlib import Path

import pytest

from tests.support.bounds import BOUND_S
from tests.support.data.token_files import write_served_tokens
from tests.support.drive.processes import prepared_run, real_run, run_command
from tests.support.servers.ports import free_port

LONG = {"config__total_steps": 100_000}


async def test_mistyped_data_path_ends_a_client_before_it_asks_anybody(tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    ran = await run_command("client", nobody, "--data", str(tmp_path / "nope.bin"))
    ran.expect(2, f"--data {tmp_path}/nope.bin: there is no such file or folder")


async def test_data_path_of_the_run_that_a_machine_lacks_ends_its_client(tmp_path: Path) -> None:
    location = {"Local": str(tmp_path / "tokens")}
    async with real_run(tmp_path, 1, model__LLM__data_location=location, **LONG) as run:
        (client,) = run.clients
        assert await client.wait(BOUND_S) == 1
        assert f"{tmp_path}/tokens cannot be read: No such file or directory; check the path" in client.log_tail()
        assert "names it with --data" in client.log_tail()


@pytest.mark.nightly
async def test_data_server_that_comes_up_later_is_waited_for_with_one_warning(tmp_path: Path) -> None:
    data_config, port = write_served_tokens(tmp_path)
    location = {"Server": f"127.0.0.1:{port}"}
    async with prepared_run(tmp_path, model__LLM__data_location=location, config__total_steps=2) as run:
        await run.start_coordinator()
        client = await run.start_client("--reconnect", "600")
        await run.until_logged(client, "data_not_available_yet")
        await run.start_server("data-server", "data-server", str(data_config), "--coordinator", run.url)
        assert await client.wait(BOUND_S) == 0, client.log_tail()
        (warned,) = run.events(client, "data_not_available_yet")
        assert (warned["level"], warned["goes_on_trying_for_s"]) == ("warning", 600)
        assert f"tcp://127.0.0.1:{port} cannot be reached" in warned["reason"]
