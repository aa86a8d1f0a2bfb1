"""A run over real sockets that a browser looks at: its clients by hand, its page's address, and its admin token."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from epochal.coordinator.serve import ServeOptions, serving
from epochal.runtime.http.http_server import Endpoint
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.drive.played_rounds import play_round
from tests.support.drive.served import GENESIS, Served, WireClient, training
from tests.support.servers.plain_http import PLAIN

if TYPE_CHECKING:
    from playwright.async_api import Page

LASTING = {"config__total_steps": 1000, "config__max_round_train_time": 200, "config__client_timeout_s": BOUND_S}
"""A run that waits for what a test does."""


@dataclass
class ShownRun:
    """A run that a browser can look at."""

    coordinator: Served
    clients: list[WireClient]
    url: str
    admin_token: str

    async def asked(self, place: str, token: str | None = None) -> Any:
        """Return the API's own answer."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = await self.coordinator.http.get(f"{self.coordinator.run_url}/{place}", headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def play(self, rounds: int = 1) -> None:
        """Play that many rounds with all clients."""
        for _ in range(rounds):
            await play_round(self.coordinator, self.clients)

    async def open(self, page: "Page", place: str) -> None:
        """Go to a part of the page, such as "members"."""
        await page.goto(f"{self.url}#/{place}")


@asynccontextmanager
async def shown_run(folder: Path, client_count: int = 3, rounds: int = 0, **overrides: Any) -> AsyncIterator[ShownRun]:
    """Serve a run in which some rounds have ended; `overrides` replace fields of its state file."""
    state = state_file(config__waiting_for_members_extra_time=0.001, **(LASTING | overrides))
    async with (
        serving(state, ServeOptions(str(folder), Endpoint(port=0), genesis=GENESIS)) as running,
        httpx.AsyncClient(base_url=running.url, timeout=BOUND_S, verify=PLAIN) as http,
    ):
        coordinator = Served(running.handlers.service, running.handlers, http, f"/v1/runs/{state.run_id}")
        clients = await training(coordinator, client_count) if client_count else []
        assert running.admin_token is not None, "a new run has one"
        run = ShownRun(coordinator, clients, f"{running.url}/", running.admin_token)
        await run.play(rounds)
        yield run
