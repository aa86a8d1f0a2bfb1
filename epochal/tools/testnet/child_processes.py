"""Child processes of a local run: each a real `epochal` command with its own log file, all stopped at the end."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeAlias

from epochal.cli.output.printing import LISTENING
from epochal.state.errors import EpochalError

STOP_TIMEOUT_S = 10.0
START_TIMEOUT_S = 120.0
"""Time limit for a server's start; the longest part of it is the first import of PyTorch on a machine."""
LOG_TAIL_BYTES = 2000
JSON_LOGS = ("--log-format", "json")


StartProcess: TypeAlias = Callable[[Sequence[str], Mapping[str, str], IO[bytes]], Awaitable[asyncio.subprocess.Process]]


async def start_epochal(
    arguments: Sequence[str], environment: Mapping[str, str], errors: IO[bytes]
) -> asyncio.subprocess.Process:
    """Return `epochal ARGUMENTS…` as a process that ends with this one; Ctrl-C here does not reach it."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epochal.tools.testnet.bound_process", str(os.getpid()), *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=errors,
        env=environment,
        start_new_session=True,
    )


@dataclass
class Child:
    """One running `epochal` command.

    Attributes:
        log_path: file with what it writes to standard error: log lines as JSON, of a command that has them.
        printed: lines that a server printed before its address.
    """

    name: str
    process: asyncio.subprocess.Process
    log_path: Path
    printed: list[str] = field(default_factory=list)

    @property
    def running(self) -> bool:
        return self.process.returncode is None

    def kill(self) -> None:
        """Kill the process without warning, like a crash."""
        if self.running:
            self.process.send_signal(signal.SIGKILL)

    async def stop(self) -> None:
        """Ask the process to end, and kill it if it does not."""
        if self.running:
            self.process.send_signal(signal.SIGINT)
        if await self.wait(STOP_TIMEOUT_S) is None:
            self.kill()
            await self.process.wait()

    async def wait(self, timeout_s: float) -> int | None:
        """Return the exit code, or None if the process still runs after the time."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self.process.wait()
        except TimeoutError:
            return None

    def log_tail(self) -> str:
        """Return the end of the process's log, for a message."""
        return self.log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")


@dataclass
class Children:
    """Every child of a local run. Leaving the context stops them all, newest first.

    Attributes:
        start_process: starts `epochal ARGUMENTS…` with these variables as its environment and this file as standard
            error; its standard output is a pipe.
    """

    log_dir: Path
    started: list[Child] = field(default_factory=list)
    start_process: StartProcess = start_epochal

    async def __aenter__(self) -> "Children":
        self.log_dir.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        for child in reversed(self.started):
            await child.stop()

    def check(self, killed: Child | None = None) -> None:
        """Raise `EpochalError` if a child has failed, other than one that was killed on purpose."""
        for child in self.started:
            if child is not killed and child.process.returncode:
                raise EpochalError(f"{child.name} ended with code {child.process.returncode}:\n{child.log_tail()}")

    async def start(
        self,
        name: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        log_format: Sequence[str] = JSON_LOGS,
    ) -> Child:
        """Start `epochal ARGUMENTS…` with `log_dir/NAME.log` as standard error, and with more variables if given.

        Args:
            name: of the child.
            arguments: the command and its arguments.
            environment: variables besides those of this process.
            log_format: more arguments; none for a command that keeps no log.
        """
        log_path = self.log_dir / f"{name}.log"
        fixed = {"PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        variables = {**os.environ, **fixed, **(environment or {})}
        with log_path.open("ab") as log_file:
            process = await self.start_process((*arguments, *log_format), variables, log_file)
        child = Child(name, process, log_path)
        self.started.append(child)
        return child

    async def start_server(
        self, name: str, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> tuple[Child, str]:
        """Start a command that serves, and wait for the address that it prints.

        Raises:
            EpochalError: the command ended, or printed no address in `START_TIMEOUT_S`; the message ends with its log.
        """
        child = await self.start(name, *arguments, environment=environment)
        assert child.process.stdout is not None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while line := await child.process.stdout.readline():
                    text = line.decode().strip()
                    if LISTENING in text:
                        return child, text.partition(LISTENING)[2].split()[0]
                    child.printed.append(text)
        except TimeoutError:
            pass
        raise EpochalError(f"{name} did not start within {START_TIMEOUT_S:.0f} s:\n{child.log_tail()}")
