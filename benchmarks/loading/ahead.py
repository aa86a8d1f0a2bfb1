"""A round of the demo's size, a long way from its data: the time that trainers wait for samples, with and without
fetching ahead.

Coordinator, data server and clients are processes of their own; a relay delays the bytes between clients and data.
"""

import asyncio
import contextlib
import json
import statistics
from collections.abc import AsyncIterator
from pathlib import Path

import tomli_w

from benchmarks.figures import Figure
from benchmarks.servers import START_TIMEOUT_S, CoordinatorProcess, coordinator_of
from epochal.state.errors import EpochalError
from epochal.tools.testnet.demo_data import write_demo_data
from epochal.tools.testnet.demos import EMBEDDED_DEMO
from tests.support.servers.delaying_relay import delaying_relay
from tests.support.servers.nginx import nginx
from tests.support.servers.ports import free_port

ROUND_TRIP_S = 0.1
CLIENTS = 2
ROUNDS = 16
FIRST_MEASURED = 4
"""The rounds before it warm the processes up; a client has work of its own ahead from its second round on."""
RUN_TIMEOUT_S = 240.0
SHUFFLE_SEED = [170] * 32


@contextlib.asynccontextmanager
async def _run_over_http(
    folder: Path, client: dict[str, int]
) -> AsyncIterator[tuple[CoordinatorProcess, tuple[str, ...]]]:
    """Yield a coordinator whose run's data are behind the relay, and further arguments of its clients."""
    data = folder / "data"
    with nginx(folder / "nginx", data) as server:
        async with delaying_relay(int(server.url.rpartition(":")[2]), ROUND_TRIP_S) as relayed:
            urls = [f"http://127.0.0.1:{relayed}/data/{file.name}" for file in sorted(data.glob("*.bin"))]
            shuffle = {"Seeded": SHUFFLE_SEED}
            location = {"location": {"Urls": urls}, "token_size_in_bytes": "TwoBytes", "shuffle": shuffle}
            async with coordinator_of(_state({"Http": location}, client), folder) as process:
                yield process, ()


@contextlib.asynccontextmanager
async def _run_over_tcp(
    folder: Path, client: dict[str, int]
) -> AsyncIterator[tuple[CoordinatorProcess, tuple[str, ...]]]:
    """Yield the same with a data server behind the relay."""
    config, port = folder / "data.toml", free_port()
    length = EMBEDDED_DEMO.tables()["model"]["LLM"]["max_seq_len"]
    described = {"dir": "data", "token_size": "TwoBytes", "seq_len": length, "shuffle_seed": SHUFFLE_SEED}
    config.write_text(tomli_w.dumps(described), encoding="utf-8")
    async with coordinator_of(_state({"Server": f"127.0.0.1:{port}"}, client), folder) as process:
        command = ("data-server", str(config), "--coordinator", process.url, "--port", str(port))
        server = await process.children.start("data-server", *command)
        assert server.process.stdout is not None
        async with asyncio.timeout(START_TIMEOUT_S):
            if not await server.process.stdout.readline():
                raise EpochalError(f"the data server did not start:\n{server.log_tail()}")
        async with delaying_relay(port, ROUND_TRIP_S) as relayed:
            yield process, ("--data", f"tcp://127.0.0.1:{relayed}")


RUNS = {"the TCP data server": _run_over_tcp, "HTTP (nginx)": _run_over_http}
"""By source of the data."""


def _state(location: object, client: dict[str, int]) -> str:
    """Return the demo's state file: its rounds, all in one epoch."""
    tables = EMBEDDED_DEMO.tables() | {"client": client}
    tables["config"] |= {
        "total_steps": ROUNDS,
        "epoch_time": 600,
        "max_round_train_time": 60,
        "warmup_time": 30,
        "round_witness_time": 30,
        "client_timeout_s": 60,
        "init_min_clients": CLIENTS,
    }
    tables["model"]["LLM"]["data_location"] = location
    return tomli_w.dumps(tables)


async def waits_of(folder: Path, source: str, limits: dict[str, int]) -> list[float]:
    """Return the seconds that each trainer waited for samples in each measured round.

    Args:
        folder: for everything; the data are in `folder / "data"`.
        source: a key of `RUNS`.
        limits: the state file's table `client`.
    """
    async with RUNS[source](folder, limits) as (process, further):
        clients = [
            await process.children.start(f"client-{number}", "client", process.url, *further)
            for number in range(CLIENTS)
        ]
        for client in clients:
            if await client.wait(RUN_TIMEOUT_S) != 0:
                raise EpochalError(f"{client.name} did not finish:\n{client.log_tail()}")
    lines = [line for client in clients for line in client.log_path.read_text(encoding="utf-8").splitlines()]
    rounds = [json.loads(line) for line in lines if line[:1] == "{" and '"round_trained"' in line]
    return [line["data_wait_s"] for line in rounds if line["step"] >= FIRST_MEASURED]


async def measure(folder: Path) -> list[Figure]:
    """Measure the mean wait of a round for both kinds of source."""
    figures = []
    for number, source in enumerate(RUNS):
        means_ms = []
        for name, limits in (("ahead", {}), ("not-ahead", {"ahead_bytes": 0})):
            own = folder / f"{number}-{name}"
            write_demo_data(own / "data")
            means_ms.append(statistics.mean(await waits_of(own, source, limits)) * 1000)
        ahead_ms, bare_ms = means_ms
        title = f"a round's wait for data, {source}, {ROUND_TRIP_S * 1000:.0f} ms away, fetched ahead"
        figures.append(Figure(title, ahead_ms, "ms", "", bare_ms, "the same with ahead_bytes = 0", 1))
    return figures
