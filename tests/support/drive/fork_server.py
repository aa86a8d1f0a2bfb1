"""A process that has imported the `epochal` commands and forks one whenever a test starts a process of it.

The imports cost a second of a core, which hundreds of processes of a test run would spend again. A forked process is a
process like any other, with an id, signals, descriptors and an exit code of its own. `tests/support/drive/forked.py`
is the other end; the requests come over the socket whose descriptor is the one argument.

Theory of operation. A request is a JSON document (`Request`) with three descriptors: the process's standard output and
standard error, and a socket on which the server answers with the process's id, and later with its wait status.
"""

import contextlib
import gc
import json
import os
import pkgutil
import resource
import runpy
import select
import signal
import socket
import struct
import sys
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import NoReturn

import epochal.commands

NUMBER = struct.Struct("!i")
MAX_REQUEST_BYTES = 200_000
HANDLED = {signal.SIGCHLD, signal.SIGINT}
"""Signals that a forked process handles in another way than the server."""
BESIDE_COMMANDS = (
    "epochal.cli.main",
    "aiohttp",
    "httpx",
    "epochal.trainers.ngram.learner",
    "epochal.trainers.registry",
    "uvicorn.lifespan.on",
    "uvicorn.loops.asyncio",
    "uvicorn.protocols.http.h11_impl",
)
"""Modules that commands import only when they need them."""


@dataclass(frozen=True, slots=True)
class Request:
    """A process to start.

    Attributes:
        arguments: of the command `epochal`.
        environment: all of its variables.
        folder: where it runs.
        open_files: soft and hard limit of its open files.
        leads_session: whether it leads a session of its own, in which its own processes are too.
    """

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    open_files: tuple[int, int]
    leads_session: bool

    def to_json(self) -> bytes:
        """Return it as a message."""
        return json.dumps(asdict(self)).encode()


def serve(control: socket.socket) -> tuple[Request, list[int]]:
    """Fork processes until the other end is closed. Return in each of them, with its descriptors, and nowhere else."""
    waking, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end this process
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([control, waking], [], [])
        if waking in ready:
            waking.recv(4096)
            _tell_ends(running)
        if control in ready:
            message, descriptors, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, 3)
            if not message:
                os._exit(0)
            signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for mine in (control, waking, wake, *running.values()):
                    mine.close()
                return Request(**json.loads(message)), descriptors
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
            for number in descriptors[:2]:
                os.close(number)
            running[pid] = socket.socket(fileno=descriptors[2])
            running[pid].sendall(NUMBER.pack(pid))


def _tell_ends(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as told, contextlib.suppress(OSError):  # the test may have ended
            told.sendall(NUMBER.pack(status))


def become(request: Request, descriptors: list[int]) -> NoReturn:
    """Run the command in this process, to its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    if request.leads_session:
        os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(descriptors[0], 1)
    os.dup2(descriptors[1], 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    soft, hard = request.open_files
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv = ["epochal", *request.arguments]
    runpy.run_module("epochal", run_name="__main__", alter_sys=True)
    sys.exit()


def command_modules() -> list[str]:
    """Return the names of the modules of all commands, which lie in folders by what they are for."""
    return [found.name for found in pkgutil.walk_packages(epochal.commands.__path__, "epochal.commands.")]


def main() -> NoReturn:
    """Import the commands, and serve."""
    control = socket.socket(fileno=int(sys.argv[1]))
    for name in (*command_modules(), *BESIDE_COMMANDS):
        import_module(name)
    gc.freeze()  # what is shared by the forked processes is not touched by their collectors
    become(*serve(control))


if __name__ == "__main__":
    main()
