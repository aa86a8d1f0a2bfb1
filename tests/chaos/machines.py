"""The processes of a chaos run: each can be killed, stopped and started again with the same command."""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import tomli_w

from epochal.state.config.state_file import dump_state
from epochal.tools.testnet.demo_data import write_demo_data
from tests.chaos.network import FillableDisk, Group
from tests.support.data.states import state_file
from tests.support.servers.postgres_server import PostgresServer

HOST = "127.0.0.1"
COORDINATOR_PORT = 18231
DATA_PORT = 18232
LINE_PORTS = (18233, 18234)
CLIENTS_PER_GROUP = 2
DATA_BYTES = 2 * 1024 * 1024
STOP_TIMEOUT_S = 60.0
"""Seconds for a process to end after a signal; a client finishes its round first."""


@dataclass
class Machine:
    """One process, with its command, its log and the step of its clock."""

    name: str
    command: tuple[str, ...]
    log_path: Path
    clock: Path
    process: asyncio.subprocess.Process | None = None
    is_stopped: bool = False
    wanted_ends: int = 0
    """How often it was told to end and has not been seen to have ended."""
    surprises: list[str] = field(default_factory=list)
    """How it ended without having been told to."""

    async def start(self) -> None:
        """Start the process."""
        environment = os.environ | {"PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with self.log_path.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    @property
    def is_running(self) -> bool:
        """Whether the process lives, stopped or not."""
        return self.process is not None and self.process.returncode is None

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        if self.process is not None and self.is_running:
            self.process.send_signal(number)

    def stop(self) -> None:
        """Suspend the process."""
        self.is_stopped = True
        self.send(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a suspended process continue."""
        self.is_stopped = False
        self.send(signal.SIGCONT)

    async def end(self, number: signal.Signals) -> int | None:
        """Send a signal that ends the process, and return its exit code; kill it after `STOP_TIMEOUT_S`."""
        process = self.process
        if process is None:
            return None
        self.wanted_ends += 1
        try:
            self.go_on()
            self.send(number)
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    return await process.wait()
            except TimeoutError:
                self.surprises.append(f"{self.name} did not end within {STOP_TIMEOUT_S:.0f} s of {number.name}")
                process.kill()
                return await process.wait()
        finally:
            self.wanted_ends -= 1

    def set_clock(self, wrong_by_s: float) -> None:
        """Step the process's wall clock."""
        self.clock.write_text(str(wrong_by_s))


@dataclass
class Site:
    """Every machine of a run, in a folder, behind the lines of the groups, and on a disk or beside a database."""

    folder: Path
    groups: list[Group]
    disk: FillableDisk
    database: PostgresServer | None = None
    """Has the run; without it the run is on the disk."""
    machines: list[Machine] = field(default_factory=list)

    @property
    def store(self) -> str:
        """URL of the run's store."""
        return str(self.disk.folder / "run") if self.database is None else self.database.url()

    @property
    def coordinator(self) -> Machine:
        """The coordinator."""
        return self.machines[0]

    @property
    def clients(self) -> list[Machine]:
        """The clients."""
        return [machine for machine in self.machines if machine.name.startswith("client")]

    @property
    def lines(self) -> list[Machine]:
        """The forwarding processes, which are never hurt."""
        return [machine for machine in self.machines if machine.name.startswith("line")]

    def prepare(self) -> None:
        """Write the data and both configuration files."""
        write_demo_data(self.folder / "data", DATA_BYTES)
        state = state_file(
            config__total_steps=10_000_000,
            config__epoch_time=12,
            config__warmup_time=8,
            config__cooldown_time=10,
            config__max_round_train_time=8,
            config__round_witness_time=4,
            config__waiting_for_members_extra_time=0.2,
            config__init_min_clients=2,
            config__min_clients=1,
            config__client_timeout_s=6.0,
            config__global_batch_size_start=16,
            config__global_batch_size_end=16,
            model__LLM__max_seq_len=64,
            model__LLM__ngram={"context": 4, "embedding": 8, "hidden": 16},
            model__LLM__data_location={"Server": f"{HOST}:{DATA_PORT}"},
        )
        (self.folder / "state.toml").write_text(dump_state(state))
        shard = {"dir": "data", "token_size": "TwoBytes", "seq_len": 64, "shuffle_seed": list(range(32))}
        (self.folder / "data.toml").write_text(tomli_w.dumps(shard))

    async def start(self) -> None:
        """Start the servers, then the lines and the clients."""
        place = ("--host", HOST, "--port")
        store: tuple[str, ...] = ("--store", self.store)
        if self.database is not None:
            blobs = self.disk.folder / "blobs"
            blobs.mkdir()
            store = (*store, "--blobs", str(blobs))
        self._add("coordinator", "coordinator", str(self.folder / "state.toml"), *store, *place, str(COORDINATOR_PORT))
        serve = ("--coordinator", f"http://{HOST}:{COORDINATOR_PORT}", *place, str(DATA_PORT))
        self._add("data-server", "data-server", str(self.folder / "data.toml"), *serve)
        for group, ports in zip(self.groups, (LINE_PORTS, tuple(port + 2 for port in LINE_PORTS)), strict=True):
            self._add_group(group, ports)
        for machine in self.machines:
            await machine.start()

    def _add_group(self, group: Group, ports: tuple[int, ...]) -> None:
        routes = (f"{ports[0]}={HOST}:{COORDINATOR_PORT}", f"{ports[1]}={HOST}:{DATA_PORT}")
        command = (sys.executable, "-m", "tests.chaos.bad_line", str(group.control), *routes)
        log = self.folder / f"line-{group.name}.log"
        self.machines.append(Machine(f"line-{group.name}", command, log, self.folder / "line.clock"))
        url, data = f"http://{HOST}:{ports[0]}", f"tcp://{HOST}:{ports[1]}"
        for number in range(1, CLIENTS_PER_GROUP + 1):
            name = f"client-{group.name}-{number}"
            key = self.folder / f"{name}.key"
            key.write_bytes(os.urandom(32))
            key.chmod(0o600)
            self._add(name, "client", url, "--data", data, "--key", str(key), "--insecure")

    def _add(self, name: str, *arguments: str) -> None:
        clock = self.folder / f"{name}.clock"
        clock.write_text("0")
        program = (sys.executable, "-m", "tests.chaos.stepped_clock", str(clock))
        command = (*program, *arguments, "--log-format", "json")
        self.machines.append(Machine(name, command, self.folder / f"{name}.log", clock))
