"""A run from the files that `epochal init` wrote: coordinator, data server and client start from them and train."""

import shlex
from pathlib import Path

import numpy as np
import pytest

from tests.support.drive.processes import in_training, prepared_run
from tests.support.servers.ports import free_port


@pytest.mark.nightly
async def test_written_files_start_a_run_whose_work_a_verifier_repeats(tmp_path: Path) -> None:
    folder, port = tmp_path / "tokens", free_port()
    folder.mkdir()
    (np.arange(200_000) % 251).astype("<u2").tofile(folder / "train.bin")
    async with prepared_run(tmp_path / "run") as run:
        run.state_path.unlink()
        ran = await run.command_here(
            *("init", str(run.state_path.parent), "--run-id", "test-run", "--data", str(folder), "--verify", "100"),
            *("--data-address", f"127.0.0.1:{port}", "--seq-len", "64", "--clients", "1 x 1gbit/1gbit 1ms 1M tokens/s"),
        )
        ran.expect(0)
        data_file = str(run.state_path.with_name("data.toml"))
        await run.start_coordinator()
        served = ("data-server", data_file, "--coordinator", run.url)
        await run.start_server("data-server", *served, "--port", str(port))
        await run.start_client()
        await run.until(in_training(3))
        token = await run.command_here("token", "verifier", run.store)
        printed = next(line for line in ran.out.splitlines() if " epochal verifier " in line)
        command = shlex.split(printed, comments=True)[2:]
        command[1:2] = [run.url, "--token", token.out.strip()]
        verifier = await run.children.start("verifier", *command)
        await run.line_of(verifier, "up to 0.0000 apart")
        await run.line_of(verifier, "excess distance 0.0000, ")
