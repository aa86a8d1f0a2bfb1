"""A viewer of a run by hand: it reads server-sent events as a browser does."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.drive.served import Served


@dataclass(frozen=True)
class Event:
    """One event: its name, its id, and its data as JSON."""

    kind: str
    id: str | None
    data: Any


class Viewer:
    """Reads the events of one stream, one after the other."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.aiter_lines()
        self.comments = 0
        self.retry_ms: int | None = None

    async def next(self) -> Event | None:
        """Return the next event; None at the end of the stream."""
        fields: dict[str, str] = {}
        async for line in self._lines:
            if line.startswith(":"):
                self.comments += 1
                return await self.next() if not fields else None
            if not line and "event" in fields:
                return Event(fields["event"], fields.get("id"), json.loads(fields["data"]))
            name, _, value = line.partition(": ")
            if name == "retry":
                self.retry_ms = int(value)
            elif name:
                fields[name] = value
        return None

    async def until(self, kind: str) -> Event:
        """Return the next event of this kind."""
        while (event := await self.next()) is not None:
            if event.kind == kind:
                return event
        raise AssertionError(f"the stream ended before an event {kind}")


@asynccontextmanager
async def viewing(coordinator: Served, last: str | None = None, token: str | None = None) -> AsyncIterator[Viewer]:
    """Open a stream, as after an event of this id."""
    headers = ({} if last is None else {"Last-Event-ID": last}) | (
        {} if token is None else {"Authorization": f"Bearer {token}"}
    )
    async with coordinator.http.stream("GET", f"{coordinator.run_url}/events", headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Viewer(answer)
