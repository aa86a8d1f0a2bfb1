"""A run under attack, beside the same run without it: rounds a second, refused handshakes, memory, logs, the journal.

Each row starts a coordinator, a data server and honest clients as processes of their own, measures the run as it is,
lets an attacker (`benchmarks/attacks.py`) loose, and measures again.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import tomli_w

from benchmarks.attacks import ATTACKING
from benchmarks.figures import Figure
from benchmarks.servers import RUN_ID, CoordinatorProcess, coordinator_process
from epochal.cli.options.shared import DATA_SERVER_TOKEN_VARIABLE
from epochal.coordinator.auth.program_tokens import program_token_from
from epochal.coordinator_client.http import CoordinatorClient
from epochal.data_providers.tcp.client_connection import DataServerAddress
from epochal.data_providers.tcp.data_client import TcpDataProvider
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import DataError, EpochalError
from epochal.tools.testnet.child_processes import Child
from epochal.tools.testnet.demo_data import write_demo_data
from tests.support.drive.hand_client import HandClient
from tests.support.servers.ports import free_port

HONEST_CLIENTS = 3
HONEST_HANDSHAKES = 50
BASELINE_S = 60.0
"""Long beside an epoch: whether one more of them ends within it must not matter."""
ATTACKED_S = 60.0
WATCHED_S = 30.0
"""Time for which a size that grows is watched."""
FIRST_MINUTE_S = 60.0
SETTLING_S = 5.0
"""Seconds between an attack's beginning and the measurement, where the figure is not for after the first minute."""
ATTACK_STARTS_S = 120.0
ATTACKERS_LEAVE_S = 300.0
ALTERNATIONS = 3
TURN_S = 20.0
"""Duration of each measurement where calm and attack alternate."""
WARM_ROUNDS = 400
"""Until then the coordinator keeps fewer results from round to round, and rounds are a little faster."""
MAX_ROUND_TRAIN_S = 10
BATCHES_PER_ROUND = 12
BATCHES_FOR_MANY = 320
"""So many that each of 70 newcomers, which get a quarter of them together, has work."""
SHARD_BYTES = 4 * 1024 * 1024
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Site:
    """A run under way."""

    process: CoordinatorProcess
    data_server: Child
    data_port: int
    clients: tuple[Child, ...]
    folder: Path

    def rounds_between(self, start_s: float, end_s: float) -> int:
        """Return how many rounds were applied in this time (seconds since 1970), from the coordinator's log."""
        count = 0
        with self.process.child.log_path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if '"outcome_decided"' in line and line.endswith("\n"):  # the last one may be half written
                    event = json.loads(line)
                    count += bool(event["applied_results"]) and start_s <= event["time_s"] < end_s
        return count

    async def rate(self, duration_s: float) -> float:
        """Return the rounds applied per second from now on."""
        start_s = time.time()
        await asyncio.sleep(duration_s)
        return self.rounds_between(start_s, start_s + duration_s) / duration_s

    async def warm_up(self) -> None:
        """Wait until the run has applied its first rounds."""
        async with asyncio.timeout(ATTACK_STARTS_S):
            while self.rounds_between(0, time.time()) < WARM_ROUNDS:  # noqa: ASYNC110 - it reads a log
                await asyncio.sleep(0.2)

    async def alone_again(self) -> None:
        """Wait until the attacker's members have left the run."""
        async with await CoordinatorClient.connect(self.process.url, RetryPolicy(attempts=3)) as api:
            async with asyncio.timeout(ATTACKERS_LEAVE_S):
                while (await api.status()).member_count > HONEST_CLIENTS:  # noqa: ASYNC110 - nothing tells it
                    await asyncio.sleep(1.0)


@contextlib.asynccontextmanager
async def _site(folder: Path, batches_per_round: int = BATCHES_PER_ROUND) -> AsyncIterator[Site]:
    port = free_port()
    await asyncio.to_thread(write_demo_data, folder / "data", SHARD_BYTES)
    data = {"dir": "data", "token_size": "TwoBytes", "seq_len": 256, "shuffle_seed": list(range(32))}
    (folder / "data.toml").write_text(tomli_w.dumps(data))
    config = {
        "init_min_clients": HONEST_CLIENTS,
        "total_steps": 1_000_000,
        "max_round_train_time": MAX_ROUND_TRAIN_S,
        "round_witness_time": 5,
        "warmup_time": 10,
        "epoch_time": 12,
        "global_batch_size_start": batches_per_round,
        "global_batch_size_end": batches_per_round,
    }
    async with coordinator_process(folder, server=f"127.0.0.1:{port}", **config) as process:
        data_server, _ = await process.children.start_server(
            *("data-server", "data-server", str(folder / "data.toml"), "--coordinator", process.url),
            *("--host", "127.0.0.1", "--port", str(port)),
            environment={DATA_SERVER_TOKEN_VARIABLE: await program_token_from(str(process.run_dir), "data-server")},
        )
        clients = [
            await process.children.start(f"client-{number}", "client", process.url, "--trainer", "null")
            for number in range(HONEST_CLIENTS)
        ]
        site = Site(process, data_server, port, tuple(clients), folder)
        await site.warm_up()
        yield site


@contextlib.asynccontextmanager
async def _attack(name: str, *arguments: str) -> AsyncIterator[int]:
    """Run an attacker until the context is left; yield, once it attacks, how much it has opened."""
    attacker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.attacks", name, *arguments), stdout=asyncio.subprocess.PIPE
    )
    assert attacker.stdout is not None
    try:
        async with asyncio.timeout(ATTACK_STARTS_S):
            line = (await attacker.stdout.readline()).decode().strip()
        if not line.startswith(ATTACKING):
            raise EpochalError(f"the attacker {name!r} ended with {await attacker.wait()}")
        yield int(line.removeprefix(ATTACKING))
    finally:
        with contextlib.suppress(ProcessLookupError):
            attacker.kill()
        await attacker.wait()


async def _rounds_row(folder: Path, row: "Row") -> list[Figure]:
    async with _site(folder, row.batches_per_round) as site:
        baseline = await site.rate(BASELINE_S)
        async with _attack(row.attack, *row.arguments(site)) as opened:
            await asyncio.sleep(row.settling_s)
            attacked = await site.rate(ATTACKED_S)
        await site.alone_again()
        again = await site.rate(BASELINE_S)
    around = f"the run before ({baseline:.1f}) and after ({again:.1f}); {opened} opened"
    mean = (baseline + again) / 2
    return [Figure(f"rounds a second, {row.name}", attacked, "/s", f"≥ {row.least} x", mean, around)]


@dataclass(frozen=True, slots=True)
class Row:
    """An attack that could slow the rounds down."""

    name: str
    attack: str
    arguments: Callable[[Site], tuple[str, ...]]
    least: float
    settling_s: float = SETTLING_S
    batches_per_round: int = BATCHES_PER_ROUND


ROWS = (
    Row("one silent member of four", "silent", lambda site: (site.process.url,), 0.8, FIRST_MINUTE_S),
    Row("one claiming a million", "silent", lambda site: (site.process.url, "1000000"), 0.8, FIRST_MINUTE_S),
    Row("280 dripping uploads", "drip", lambda site: (site.process.url, "70", "4"), 0.9, SETTLING_S, BATCHES_FOR_MANY),
    Row("2,300 anonymous polls", "polls", lambda site: (site.process.url, RUN_ID, "2300"), 0.9),
)


FLOODS = (
    Row(
        "12,000 sockets opened anew, 1,600 a second",
        *("fresh_sockets", lambda site: (site.process.url, "12000", "1600"), 0.8),
    ),
)


async def _alternating_row(folder: Path, row: Row) -> list[Figure]:
    """Measure a run in turns: without strangers, beside the same ones at a port where nobody listens, and with them.

    What the strangers take of the processors themselves is seen in the second.
    """
    calm, beside, attacked = list[float](), list[float](), list[float]()
    async with _site(folder) as site:
        elsewhere = replace(site, process=replace(site.process, url=f"http://127.0.0.1:{free_port()}"))
        for _ in range(ALTERNATIONS):
            calm.append(await site.rate(TURN_S))
            for attacked_site, rates in ((elsewhere, beside), (site, attacked)):
                async with _attack(row.attack, *row.arguments(attacked_site)):
                    rates.append(await site.rate(TURN_S))
                await asyncio.sleep(row.settling_s)
        lost = sum(_refusals(client) for client in site.clients)
    turns = [", ".join(f"{one:.1f}" for one in rates) for rates in (calm, beside, attacked)]
    source = (
        f"in turns, of {TURN_S:.0f} s each, beside strangers at a dead port ({turns[1]}) and with them ({turns[2]}); "
        f"without any {median(calm):.1f} ({turns[0]}); clients lost it {lost} times; load {os.getloadavg()[0]:.1f}"
    )
    return [Figure(f"rounds a second, {row.name}", median(attacked), "/s", f"≥ {row.least} x", median(beside), source)]


async def _handshakes(folder: Path) -> list[Figure]:
    """Count honest handshakes that a data server refuses while strangers hold 1,100 connections."""
    async with _site(folder) as site:
        arguments = ("127.0.0.1", str(site.data_port), "1100")
        lost_before = await _lost_handshakes(site)
        async with _attack("half_open", *arguments):
            await asyncio.sleep(SETTLING_S)
            lost = await _lost_handshakes(site)
    name = f"honest handshakes lost of {HONEST_HANDSHAKES}, 1,100 half-open data connections"
    return [Figure(name, lost, "", "0", lost_before, "the same without them")]


async def _lost_handshakes(site: Site) -> int:
    lost = 0
    async with await CoordinatorClient.connect(site.process.url, RetryPolicy(attempts=3)) as api:
        member = HandClient(api, 204)
        await member.join()
        address = DataServerAddress("127.0.0.1", site.data_port, RUN_ID)
        for _ in range(HONEST_HANDSHAKES):
            try:
                provider = await TcpDataProvider.open(address, lambda: member.ticket)
                await provider.aclose()
            except DataError:
                lost += 1
        await api.withdraw()
    return lost


async def _many_sockets(folder: Path) -> list[Figure]:
    """Measure the run, the coordinator's memory and its log while strangers hold 20,000 connections."""
    async with _site(folder) as site:
        baseline = await site.rate(BASELINE_S)
        log, memory = site.process.child.log_path, _memory_bytes(site.process.child)
        log_bytes = log.stat().st_size
        async with contextlib.AsyncExitStack() as attackers:
            opened = [
                await attackers.enter_async_context(_attack("sockets", site.process.url, "5000")) for _ in range(4)
            ]
            await asyncio.sleep(SETTLING_S)
            attacked = await site.rate(ATTACKED_S)
            grown = _memory_bytes(site.process.child) - memory
            per_round = log_bytes / max(1, site.rounds_between(0, time.time()))
            logged = log.stat().st_size - log_bytes
        refused = sum(_refusals(client) for client in site.clients)
    return [
        Figure(
            "rounds a second, 20,000 anonymous sockets",
            *(attacked, "/s", "", baseline, f"the same run before; {sum(opened)} opened at first"),
        ),
        Figure("refusals for members meanwhile", refused, "", "0"),
        Figure("the coordinator's memory grew by", grown / MIB, "MiB", "bounded"),
        Figure("the coordinator's log grew by", logged / MIB, "MiB", "bounded", None, f"{per_round:.0f} bytes a round"),
    ]


def _refusals(client: Child) -> int:
    """Return how often a client lost the coordinator, or its step failed."""
    lines = client.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
    return sum('"coordinator_unreachable"' in line or '"step_failed"' in line for line in lines)


async def _slow_readers(folder: Path) -> list[Figure]:
    """Measure both servers' memory while members ask for much and read nothing."""
    async with _site(folder) as site:
        data_server, coordinator = _memory_bytes(site.data_server), _memory_bytes(site.process.child)
        place = (site.process.url, "127.0.0.1", str(site.data_port), "4", "160")
        async with _attack("unread_samples", *place):
            data_grown = await _most_memory(site.data_server) - data_server
        async with _attack("unread_blobs", site.process.url, "800"):
            grown = await _most_memory(site.process.child) - coordinator
    return [
        Figure("the data server's memory grew by, 640 slow readers", data_grown / MIB, "MiB", "bounded"),
        Figure("the coordinator's memory grew by, 800 unread blobs", grown / MIB, "MiB", "bounded"),
    ]


async def _most_memory(child: Child) -> int:
    most = 0
    end_s = time.monotonic() + WATCHED_S
    while time.monotonic() < end_s:
        most = max(most, _memory_bytes(child))
        await asyncio.sleep(0.5)
    return most


def _memory_bytes(child: Child) -> int:
    statm = Path(f"/proc/{child.process.pid}/statm")
    if not statm.exists():
        raise EpochalError("the memory of a process is read from /proc, which this system does not have")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _journal_growth(folder: Path) -> list[Figure]:
    """Measure what a member that talks without end adds to the journal, beyond the same rounds with a silent one."""
    async with _site(folder) as site:
        async with _attack("silent", site.process.url):
            await asyncio.sleep(SETTLING_S)
            quiet, quiet_rounds = await _journal_bytes(site)
        async with _attack("chatty", site.process.url):
            loud, loud_rounds = await _journal_bytes(site)
    beyond = max(0.0, loud - quiet / max(1, quiet_rounds) * loud_rounds)
    per_hour = beyond / WATCHED_S * 3600 / MIB
    base = f"{quiet / max(1, quiet_rounds):.0f} bytes a round with a silent member instead"
    return [Figure("the journal grew, by one chatty member, beyond its rounds", per_hour, "MiB/h", "≤ 1", None, base)]


async def _journal_bytes(site: Site) -> tuple[int, int]:
    """Return how much the journal grows in `WATCHED_S`, and the number of rounds applied in that time."""
    start_s = time.time()
    before = _folder_bytes(site.process.run_dir / "journal")
    await asyncio.sleep(WATCHED_S)
    return _folder_bytes(site.process.run_dir / "journal") - before, site.rounds_between(start_s, time.time())


def _folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


async def measure(folder: Path) -> list[Figure]:
    """Measure every attack, each on a run of its own."""
    rest: tuple[Callable[[Path], Awaitable[list[Figure]]], ...] = (
        _handshakes,
        _many_sockets,
        _slow_readers,
        _journal_growth,
    )
    figures = [
        figure
        for number, row in enumerate(FLOODS)
        for figure in await _alternating_row(folder / f"flood-{number}", row)
    ]
    figures += [
        figure for number, row in enumerate(ROWS) for figure in await _rounds_row(folder / f"row-{number}", row)
    ]
    for number, attack in enumerate(rest):
        figures += await attack(folder / f"attack-{number}")
    return figures
