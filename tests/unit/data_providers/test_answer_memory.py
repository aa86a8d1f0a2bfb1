"""Memory of a data server's answers: bounded, shared fairly, given back."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from epochal.data_providers.protocol import SourceUnavailable
from epochal.data_providers.tcp.answer_memory import AnswerMemory
from epochal.state.wire import ClientId
from tests.support.simulate.virtual_time import run_virtually

GREEDY, MODEST = ClientId("a" * 32), ClientId("b" * 32)


class Order:
    """The names of the requests in the order in which they got their memory, and how each gives it back."""

    def __init__(self, memory: AnswerMemory) -> None:
        self.memory = memory
        self.served: list[str] = []
        self.done: dict[str, asyncio.Event] = {}

    async def ask(self, name: str, client_id: ClientId, size_bytes: int) -> None:
        self.done[name] = asyncio.Event()
        async with self.memory.hold(client_id, size_bytes):
            self.served.append(name)
            await self.done[name].wait()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def memory_of(most_bytes: int, wait_s: float = 60.0) -> AnswerMemory:
    return AnswerMemory(most_bytes, wait_s, lambda: None)


def test_who_holds_the_least_is_served_first() -> None:
    async def main() -> None:
        order = Order(memory_of(20))
        async with asyncio.TaskGroup() as tasks:
            for number in range(4):
                tasks.create_task(order.ask(f"greedy {number}", GREEDY, 10))
            await settle()
            tasks.create_task(order.ask("modest", MODEST, 10))
            await settle()
            assert order.served == ["greedy 0", "greedy 1"]
            assert (order.memory.held_bytes, order.memory.waiting_count) == (20, 3)
            order.done["greedy 0"].set()
            await settle()
            assert order.served[2:] == ["modest"]
            for done in order.done.values():
                done.set()
        assert order.served[3:] == ["greedy 2", "greedy 3"]
        assert (order.memory.held_bytes, order.memory.waiting_count) == (0, 0)

    run_virtually(main())


def test_large_answer_is_not_passed_over_and_may_exceed_the_bound_alone() -> None:
    async def main() -> None:
        order = Order(memory_of(10))
        async with asyncio.TaskGroup() as tasks:
            for name, size_bytes in (("small", 4), ("large", 50), ("late", 1)):
                tasks.create_task(order.ask(name, ClientId(name), size_bytes))
                await settle()
            assert order.served == ["small"]
            order.done["small"].set()
            await settle()
            assert order.served == ["small", "large"]
            for done in order.done.values():
                done.set()

    run_virtually(main())


def test_request_that_waits_too_long_gives_its_place_back() -> None:
    looked = 0

    def make_room() -> None:
        nonlocal looked
        looked += 1

    async def main() -> None:
        memory = AnswerMemory(10, 3.0, make_room)
        async with memory.hold(GREEDY, 10):
            with pytest.raises(SourceUnavailable, match="busy"):
                async with memory.hold(MODEST, 1):
                    raise AssertionError("there is no room")
            assert memory.waiting_count == 0
            assert looked >= 4, "it looked for slow readers meanwhile"
        async with AsyncExitStack() as stack:
            for _ in range(10):
                await stack.enter_async_context(memory.hold(MODEST, 1))
        assert memory.held_bytes == 0

    run_virtually(main())


def test_request_that_is_cancelled_holds_nothing() -> None:
    async def main() -> None:
        order = Order(memory_of(10))
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(order.ask("first", GREEDY, 10))
            second = tasks.create_task(order.ask("second", GREEDY, 10))
            await settle()
            second.cancel()
            await settle()
            assert order.memory.waiting_count == 0
            first.cancel()
        assert order.memory.held_bytes == 0

    run_virtually(main())


def test_answer_smaller_than_its_bound_gives_the_rest_back_at_once() -> None:
    async def main() -> None:
        order = Order(memory_of(20))
        async with asyncio.TaskGroup() as tasks, order.memory.hold(GREEDY, 20) as shrink:
            tasks.create_task(order.ask("modest", MODEST, 10))
            await settle()
            assert order.served == []
            shrink(30)
            assert (order.memory.held_bytes, order.memory.waiting_count) == (20, 1), "it never grows"
            shrink(4)
            await settle()
            assert (order.served, order.memory.held_bytes) == (["modest"], 14)
            order.done["modest"].set()
        assert (order.memory.held_bytes, order.memory.waiting_count) == (0, 0)

    run_virtually(main())
