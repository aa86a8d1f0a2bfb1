"""A served run whose coordinator stops and starts again at the same address, also from an older copy of its folder."""

import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from epochal.coordinator.serve import ServeOptions, serving
from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.http.http_server import Endpoint
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.drive.played_rounds import play_round
from tests.support.drive.served import GENESIS, Served, WireClient, training
from tests.support.servers.plain_http import PLAIN
from tests.support.servers.ports import free_port

PATIENT = {"config__total_steps": 1000, "config__max_round_train_time": 500, "config__client_timeout_s": BOUND_S}
"""State file of a run that does not end, in which silence drops nobody and a round waits: only a test makes its members
speak."""


class RestartedRun:
    """One run in a folder, served at one address whenever it is.

    Args:
        folder: new; keeps the run.
        overrides: replace fields of its state file.
    """

    def __init__(self, folder: Path, **overrides: Any) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._state = state_file(config__waiting_for_members_extra_time=0.001, **(PATIENT | overrides))
        self._stack: contextlib.AsyncExitStack | None = None
        self._served: Served | None = None
        self._clients: list[WireClient] = []

    @property
    def served(self) -> Served:
        assert self._served is not None, "the coordinator was started"
        return self._served

    @property
    def member_token(self) -> str:
        """The session token of one of its members, once a round was played."""
        return self._clients[0].token

    @property
    def admin_token(self) -> str:
        """The admin token, which the first start printed."""
        return self._admin_token

    async def start(self, *, is_restored: bool = False) -> None:
        """Start the coordinator."""
        self._stack = contextlib.AsyncExitStack()
        options = ServeOptions(str(self.folder), Endpoint(port=self.port), genesis=GENESIS, is_restored=is_restored)
        running = await self._stack.enter_async_context(serving(self._state, options))
        http = await self._stack.enter_async_context(
            httpx.AsyncClient(base_url=running.url, timeout=BOUND_S, verify=PLAIN)
        )
        self._served = Served(running.handlers.service, running.handlers, http, f"/v1/runs/{self._state.run_id}")
        if running.admin_token is not None:
            self._admin_token = running.admin_token
        for client in self._clients:  # their sessions hold
            client.served, client.api = self._served, CoordinatorClient(http, self._state.run_id)
        await self.served.insight.history.is_read.wait()

    async def stop(self) -> None:
        """Stop the coordinator, if it runs."""
        if self._stack is not None:
            stack, self._stack = self._stack, None
            await stack.aclose()

    async def play(self, rounds: int) -> None:
        """Play so many rounds."""
        self._clients = self._clients or await training(self.served)
        for _ in range(rounds):
            await play_round(self.served, self._clients)

    def copy_to(self, folder: Path) -> None:
        """Copy the run, while nobody serves it."""
        shutil.copytree(self.folder, folder)

    def go_back_to(self, folder: Path) -> None:
        """Put an earlier copy in the run's place."""
        shutil.rmtree(self.folder)
        shutil.copytree(folder, self.folder)


@contextlib.asynccontextmanager
async def restarted_run(folder: Path, **overrides: Any) -> AsyncIterator[RestartedRun]:
    """Yield a run whose coordinator was started; stop it at the end."""
    run = RestartedRun(folder, **overrides)
    await run.start()
    try:
        yield run
    finally:
        await run.stop()
