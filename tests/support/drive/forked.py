"""Processes of `epochal` that a server forks (`tests/support/drive/fork_server.py`), as asyncio shows processes."""

import asyncio
import atexit
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from asyncio.base_subprocess import BaseSubprocessTransport
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

from tests.support.drive.fork_server import NUMBER, Request

FIXED = {"PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""The server's environment besides that of the tests: what is read at imports, and is the same for all processes."""
READ_AT_START = ("PYTHONPATH", "PYTHONWARNINGS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
"""Variables that have no effect any more in a forked process."""
STREAM_BYTES = 2**16
Output: TypeAlias = int | IO[bytes]
"""`asyncio.subprocess.PIPE`, or a file that is written to."""
ROOT = Path(__file__).parents[3]


def can_fork(environment: Mapping[str, str]) -> bool:
    """Return whether a forked process would be like one that is started with this interpreter and environment."""
    return sys.executable == _PROGRAM and all(
        environment.get(name, value) == value for name, value in _AT_START.items()
    )


async def start_forked(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdout: Output,
    stderr: Output,
    leads_session: bool = False,
) -> asyncio.subprocess.Process:
    """Return `epochal ARGUMENTS…`, started in this folder and with this environment and nothing to read.

    Args:
        arguments: the command and its arguments.
        environment: all of its variables.
        stdout, stderr: `asyncio.subprocess.PIPE`, or a file.
        leads_session: as `start_new_session` of asyncio's processes.
    """
    loop = asyncio.get_running_loop()
    protocol = asyncio.subprocess.SubprocessStreamProtocol(STREAM_BYTES, loop)
    started = loop.create_future()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    request = Request(list(arguments), dict(environment), os.getcwd(), limits, leads_session)
    transport = _ForkedTransport(_Forked(request, stdout, stderr), protocol, (stdout, stderr), started)
    await started
    return asyncio.subprocess.Process(transport, protocol, loop)


class _ForkedTransport(BaseSubprocessTransport):
    """asyncio's transport of a process, for one that is no child of this process."""

    def __init__(
        self, forked: "_Forked", protocol: asyncio.SubprocessProtocol, pipes: tuple[Output, Output], started: Any
    ) -> None:
        self._forked = forked
        loop = asyncio.get_running_loop()
        super().__init__(loop, protocol, "epochal", False, None, *pipes, 0, waiter=started)

    def _start(self, *_: Any, **__: Any) -> None:
        self._proc = cast("Any", self._forked)
        asyncio.get_running_loop().add_reader(self._forked.told, self._ended)

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._forked.told)
        self._process_exited(self._forked.end())


class _Forked:
    """As much of a `subprocess.Popen` as asyncio's transport uses."""

    stdin = None

    def __init__(self, request: Request, stdout: Output, stderr: Output) -> None:
        self.returncode: int | None = None
        self.told, answering = socket.socketpair()
        with answering:
            (out, self.stdout), (err, self.stderr) = _written(stdout), _written(stderr)
            socket.send_fds(_server(), [request.to_json()], [out, err, answering.fileno()])
            for mine, given in ((out, stdout), (err, stderr)):
                if given == asyncio.subprocess.PIPE:
                    os.close(mine)
        (self.pid,) = NUMBER.unpack(self.told.recv(NUMBER.size, socket.MSG_WAITALL))

    def end(self) -> int:
        """Return the exit code, negative after a signal; the server has told that it ended, or has ended itself."""
        status = self.told.recv(NUMBER.size, socket.MSG_WAITALL)
        self.told.close()
        self.returncode = os.waitstatus_to_exitcode(*NUMBER.unpack(status)) if status else -signal.SIGKILL
        return self.returncode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended just now, as for `subprocess.Popen`
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _written(given: Output) -> tuple[int, IO[bytes] | None]:
    """Return the descriptor that a process writes to, and the file that the tests read, if it is a new pipe."""
    if not isinstance(given, int):
        return given.fileno(), None
    assert given == asyncio.subprocess.PIPE
    reading, writing = os.pipe()
    return writing, os.fdopen(reading, "rb", 0)


_PROGRAM = sys.executable
_AT_START = {name: (os.environ | FIXED).get(name) for name in READ_AT_START}


@cache
def _server() -> socket.socket:
    """Return the socket of this process's server, which starts with the first call and ends with this process."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [_PROGRAM, "-m", "tests.support.drive.fork_server", str(its.fileno())],
            pass_fds=(its.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
            env=os.environ | FIXED,
        )

    def end() -> None:
        mine.close()
        process.wait()

    atexit.register(end)
    return mine
