"""A burst of messages of all members at once is taken in turn: none is refused for their number."""

import asyncio

from coordinator.machine import stimuli
from tests.support.served import served
from tests.support.states import state_file

BURST = 10_000


async def test_burst_of_many_messages_is_taken_in_turn() -> None:
    taken = 0

    async with served(state_file()) as run:

        async def send() -> None:
            nonlocal taken
            await run.service.submit(stimuli.PauseRequested())
            taken += 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(BURST):
                tasks.create_task(send())
    assert taken == BURST
