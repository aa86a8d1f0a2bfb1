"""A client in this process, as `epochal client` makes it, and what it opens, connects, imports and starts."""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from epochal.cli.options.client_trainer import ClientTrainer
from epochal.coordinator_client.client_key import ClientKey
from epochal.coordinator_client.http import CoordinatorClient
from epochal.coordinator_client.session import ClientProfile
from epochal.data_providers.open_data import open_provider
from epochal.data_providers.protocol import DataProvider
from epochal.data_providers.tcp.client_connection import DataServerAccess
from epochal.run_manager.agent import Agent, ClientEnd
from epochal.run_manager.context import ClientDependencies, RunAccess
from epochal.run_manager.events import ignore
from epochal.runtime.permissions import Permissions
from epochal.runtime.retry import RetryPolicy
from epochal.runtime.worker_thread import WorkerThread
from epochal.state.codecs.codecs_by_name import SPOKEN
from epochal.state.messages.requests import Capabilities
from epochal.trainers.registry import TrainerOptions
from tests.support.servers.plain_http import PLAIN

PUBLIC_ADDRESS = "93.184.216.34"
"""An address of the internet, at which the coordinators of these tests were met as far as clients know."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_STARTS = frozenset({"subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "os.system"})
_IN_FOLDERS = frozenset({"os.chmod", "os.mkdir", "os.remove", "os.rmdir"})
"""Events whose last value is the descriptor of the folder that the path begins in, or -1."""
_CHANGES = _IN_FOLDERS | {"os.rename", "os.truncate", "os.symlink", "os.link"}


@dataclass
class Watched:
    """Events of this process, as the interpreter's audit hook reports them (PEP 578).

    Attributes:
        connected: host and port of each connection that was attempted.
        bound: hosts and ports at which the process began to listen.
        read, written: absolute paths of files that were opened to be read, and made or changed.
        imported: names of modules.
        started: programs.
    """

    connected: set[tuple[str, int]] = field(default_factory=set)
    bound: set[tuple[str, int]] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    imported: set[str] = field(default_factory=set)
    started: list[str] = field(default_factory=list)

    def saw(self, event: str, args: tuple[Any, ...]) -> None:
        """Take an event of the audit hook."""
        if event == "open" and isinstance(args[0], str | bytes | os.PathLike):
            is_written = bool(args[2] & _WRITING) if isinstance(args[2], int) else False
            (self.written if is_written else self.read).add(os.path.abspath(os.fsdecode(args[0])))
        elif event == "socket.connect" and args[0].family in (socket.AF_INET, socket.AF_INET6):
            self.connected.add((str(args[1][0]), int(args[1][1])))
        elif event == "socket.bind" and args[0].family in (socket.AF_INET, socket.AF_INET6):
            self.bound.add((str(args[1][0]), int(args[1][1])))
        elif event == "import":
            self.imported.add(str(args[0]))
        elif event in _STARTS:
            self.started.append(f"{event} {args[0]!r}")
        elif event in _CHANGES and isinstance(args[0], str | bytes | os.PathLike):
            holder = args[-1] if event in _IN_FOLDERS else -1
            folder = os.getcwd() if holder == -1 else os.readlink(f"/proc/self/fd/{holder}")
            self.written.add(os.path.normpath(os.path.join(folder, os.fsdecode(args[0]))))


_watching: list[Watched] = []


@cache
def _add_hook() -> None:
    """Let the interpreter report its events; a hook can never be removed, so there is one for all tests."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        for watched in _watching:
            watched.saw(event, args)

    sys.addaudithook(hook)


@contextlib.contextmanager
def watching() -> Iterator[Watched]:
    """Record the events of this process until the context is left."""
    _add_hook()
    watched = Watched()
    _watching.append(watched)
    try:
        yield watched
    finally:
        _watching.remove(watched)


async def take_part(url: str, folder: Path, permissions: Permissions, policy: RetryPolicy) -> ClientEnd:
    """Join the run at a coordinator that seems to be on the internet, and train with NumPy until it ends.

    Args:
        url: where the coordinator is.
        folder: for what the client writes.
        permissions: as the client's options allow; by `Permissions.of_volunteer`.
        policy: for what fails.
    """
    assert permissions.reach is not None
    permissions.reach.meet(PUBLIC_ADDRESS)
    trainer = ClientTrainer("numpy", TrainerOptions(), None)

    async def open_data(access: RunAccess) -> DataProvider:
        servers = DataServerAccess(access.ticket, access.document_version, True, False)
        return await open_provider(access.state, servers, permissions)

    dependencies = ClientDependencies(
        retry_policy=policy,
        new_worker=WorkerThread,
        open_provider=open_data,
        open_trainer=trainer.open,
        observer=ignore,
        spool_folder=folder,
        permissions=permissions,
        check_trainer=trainer.check,
    )
    profile = ClientProfile(ClientKey.ephemeral(), Capabilities(trainer="numpy", codecs=SPOKEN))
    async with await CoordinatorClient.connect(url, policy, PLAIN, permissions.reach) as api:
        return await Agent(api, profile, dependencies).run()
