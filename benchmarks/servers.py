"""The servers under measurement, each a process of its own: a real coordinator, and the bare one beside it."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochal.cli.output.printing import LISTENING
from epochal.state.errors import EpochalError
from epochal.tools.testnet.child_processes import STOP_TIMEOUT_S, Child, Children
from tests.support.data.states import state_text

RUN_ID = "benchmark"
ADMIN_LINE = "admin token (shown this once): "
START_TIMEOUT_S = 120.0
"""A coordinator of a torch model imports torch and makes the first parameters before it listens."""


LONG = dict.fromkeys(("warmup_time", "cooldown_time", "round_witness_time", "client_timeout_s"), 60)
"""Time limits that no measured run reaches."""


def run_state(server: str | None = None, **config: Any) -> str:
    """Return the state file of a run with dummy data, or a data server's; `config` replaces fields of `[config]`."""
    data = "Dummy" if server is None else {"Server": server}
    settings = LONG | {"epoch_time": 3000, "waiting_for_members_extra_time": 0.05} | config
    overrides: dict[str, Any] = {f"config__{name}": value for name, value in settings.items()}
    return state_text(
        run_id=RUN_ID,
        model__LLM__max_seq_len=256,
        model__LLM__optimizer="Dummy",
        model__LLM__data_location=data,
        **overrides,
    )


@dataclass(frozen=True, slots=True)
class CoordinatorProcess:
    """A coordinator that serves `run_dir` at `url`; `children` starts clients beside it."""

    child: Child
    children: Children
    url: str
    run_dir: Path
    admin_token: str


@contextlib.asynccontextmanager
async def coordinator_process(
    folder: Path, server: str | None = None, **config: Any
) -> AsyncIterator[CoordinatorProcess]:
    """Run a coordinator on a new run directory. Raise `EpochalError` if it does not start."""
    async with coordinator_of(run_state(server, **config), folder) as process:
        yield process


@contextlib.asynccontextmanager
async def coordinator_of(state: str, folder: Path) -> AsyncIterator[CoordinatorProcess]:
    """Run a coordinator of this state file, as `coordinator_process` does."""
    state_path = folder / "state.toml"
    state_path.write_text(state, encoding="utf-8")
    run_dir = folder / "run"
    async with Children(folder / "logs") as children:
        child = await children.start(
            "coordinator", "coordinator", str(state_path), "--store", str(run_dir), "--port", "0"
        )
        assert child.process.stdout is not None
        admin_token = url = ""
        async with asyncio.timeout(START_TIMEOUT_S):
            while not url and (line := (await child.process.stdout.readline()).decode().strip()):
                if line.startswith(ADMIN_LINE):
                    admin_token = line.removeprefix(ADMIN_LINE)
                if LISTENING in line:
                    url = line.partition(LISTENING)[2].split()[0]
        if not url:
            raise EpochalError(f"the coordinator did not start:\n{child.log_tail()}")
        yield CoordinatorProcess(child, children, url, run_dir, admin_token)


@contextlib.asynccontextmanager
async def bare_process(folder: Path) -> AsyncIterator[str]:
    """Run a bare server that stores what it receives in `folder`; yield its URL."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.bare_server", str(folder / "bare.log")),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            line = (await process.stdout.readline()).decode().strip()
        yield line.removeprefix(LISTENING)
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
