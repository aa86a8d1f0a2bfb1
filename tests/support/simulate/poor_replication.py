"""Meetings of coordinators that go wrong."""

import asyncio
from collections.abc import AsyncGenerator

from epochal.coordinator.store.replication import Heartbeats, MeetingResult
from tests.support.simulate.memory_store import MemoryDatabase, MemoryMeetings, MemoryReplication


class PoorReplication(MemoryReplication):
    """Meetings that may fail, or take as long as a process that is stopped; and nobody is told of any record."""

    problem: Exception | None = None

    def __init__(self, meetings: MemoryMeetings, database: MemoryDatabase) -> None:
        super().__init__(meetings, database)
        self.meetings = meetings
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def news(self) -> AsyncGenerator[int | None, None]:
        yield None
        await asyncio.Event().wait()

    async def meet(self, mine: Heartbeats) -> MeetingResult:
        await self.goes_on.wait()
        if self.problem is not None:
            raise self.problem
        return await super().meet(mine)
