"""The servers under measurement, each a process of its own: a real coordinator, and the bare one beside it."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from epochal.cli.run import LISTENING
from epochal.testnet.child_processes import STOP_TIMEOUT_S, Child, Children
from state.errors import EpochalError

RUN_ID = "benchmark"
ADMIN_LINE = "admin token (shown this once): "


def state_text(**config: Any) -> str:
    """The state file of a run over made-up data; `config` replaces fields of its `[config]`."""
    settings = {
        "warmup_time": 60,
        "cooldown_time": 60,
        "epoch_time": 3000,
        "max_round_train_time": 60,
        "round_witness_time": 60,
        "waiting_for_members_extra_time": 0.05,
        "min_clients": 1,
        "init_min_clients": 3,
        "witness_nodes": 0,
        "global_batch_size_start": 12,
        "global_batch_size_end": 12,
        "global_batch_size_warmup_tokens": 0,
        "total_steps": 100,
        "client_timeout_s": 60,
    }
    model = {
        "architecture": "EpochalNgram",
        "data_type": "Pretraining",
        "max_seq_len": 256,
        "checkpoint": "Ephemeral",
        "data_location": "Dummy",
        "lr_schedule": {"Constant": {"base_lr": 0.001, "warmup_init_lr": 0.0, "warmup_steps": 0}},
        "optimizer": "Dummy",
    }
    return tomli_w.dumps({"run_id": RUN_ID, "config": settings | config, "model": {"LLM": model}})


@dataclass(frozen=True, slots=True)
class CoordinatorProcess:
    """A coordinator that serves `run_dir` at `url`; `children` starts clients beside it."""

    child: Child
    children: Children
    url: str
    run_dir: Path
    admin_token: str


@contextlib.asynccontextmanager
async def coordinator_process(folder: Path, **config: Any) -> AsyncIterator[CoordinatorProcess]:
    """A coordinator on a fresh run directory, until the context is left.

    Raises:
        EpochalError: it did not start.
    """
    state_path = folder / "state.toml"
    state_path.write_text(state_text(**config), encoding="utf-8")
    run_dir = folder / "run"
    async with Children(folder / "logs") as children:
        child = await children.start(
            "coordinator", "coordinator", str(state_path), "--store", str(run_dir), "--port", "0"
        )
        assert child.process.stdout is not None
        admin_token = ""
        async with asyncio.timeout(30):
            while line := (await child.process.stdout.readline()).decode().strip():
                if line.startswith(ADMIN_LINE):
                    admin_token = line.removeprefix(ADMIN_LINE)
                if LISTENING in line:
                    url = line.partition(LISTENING)[2].split()[0]
                    yield CoordinatorProcess(child, children, url, run_dir, admin_token)
                    return
        raise EpochalError(f"the coordinator did not start:\n{child.log_tail()}")


@contextlib.asynccontextmanager
async def bare_process(folder: Path) -> AsyncIterator[str]:
    """The URL of a bare server that keeps what it is told in `folder`, until the context is left."""
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
