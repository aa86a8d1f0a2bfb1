"""The faults of a chaos run, drawn from a seed: who is hurt, how, for how long, and how it is healed."""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable

from tests.chaos.machines import Machine, Site
from tests.chaos.network import SLOW_BYTES_PER_S, Group
from tests.support.servers.postgres_server import PostgresServer

DRAW = {"kill": 10, "stop": 7, "interrupt": 4, "pull": 3, "slow": 2, "reset": 2, "fill disk": 1, "step clock": 3}
"""How often each fault is drawn, relative to the others."""
DRAW_OF_DATABASE = {"kill database": 3, "stop database": 2}
"""The same where the run is in a database."""
RESTART_S = (0.1, 3.0)
STOPPED_S = (0.5, 9.0)
PULLED_S = (1.0, 20.0)
SLOW_S = (3.0, 12.0)
FULL_S = (2.0, 8.0)
CLOCK_STEPS_S = (-90_000.0, -3600.0, -61.0, 61.0, 3600.0, 90_000.0)


class Faults:
    """Hurts the machines of a site at random, and heals them."""

    def __init__(self, site: Site, chance: random.Random, tasks: asyncio.TaskGroup) -> None:
        self._site = site
        self._chance = chance
        self._tasks = tasks
        self._hurt: set[str] = set()
        self._healing = 0
        self._healed = asyncio.Event()
        self.counts: Counter[str] = Counter()

    async def play(self, duration_s: float, every_s: float) -> None:
        """Cause faults for a while, on average one per `every_s`, then wait until the last one is healed."""
        draw = DRAW if self._site.database is None else DRAW | DRAW_OF_DATABASE
        loop = asyncio.get_running_loop()
        end_s = loop.time() + duration_s
        while loop.time() < end_s:
            await asyncio.sleep(min(self._chance.expovariate(1 / every_s), max(0.0, end_s - loop.time())))
            self._cause(self._chance.choices(list(draw), list(draw.values()))[0])
        while self._healing:
            self._healed.clear()
            await self._healed.wait()

    def _cause(self, kind: str) -> None:
        if kind in ("pull", "slow", "reset"):
            group = self._chance.choice(self._site.groups)
            self._begin(kind, group.name, lambda: self._hurt_line(kind, group))
        elif kind == "fill disk":
            if self._site.disk.refused is None:
                self._begin(kind, "disk", self._fill_disk)
        elif self._site.database is not None and kind in DRAW_OF_DATABASE:
            database = self._site.database
            self._begin(kind, "database", lambda: self._hurt_database(kind, database))
        else:
            machine = self._chance.choice([one for one in self._site.machines if one not in self._site.lines])
            if kind != "interrupt" or machine in self._site.clients:
                self._begin(kind, machine.name, lambda: self._hurt_machine(kind, machine))

    def _begin(self, kind: str, victim: str, fault: Callable[[], Awaitable[None]]) -> None:
        """Begin a fault, unless its victim still suffers from another."""
        if victim in self._hurt:
            return
        self.counts[kind] += 1
        self._hurt.add(victim)
        self._healing += 1

        async def run() -> None:
            try:
                await fault()
            finally:
                self._hurt.discard(victim)
                self._healing -= 1
                self._healed.set()

        self._tasks.create_task(run())

    async def _hurt_machine(self, kind: str, machine: Machine) -> None:
        if kind == "step clock":
            machine.set_clock(self._chance.choice(CLOCK_STEPS_S))
        elif kind == "stop":
            machine.stop()
            await self._wait(STOPPED_S)
            machine.go_on()
        else:
            gently = self._chance.choice((signal.SIGTERM, signal.SIGINT))
            await machine.end(signal.SIGKILL if kind == "kill" else gently)
            await self._wait(RESTART_S)
            await machine.start()

    async def _hurt_database(self, kind: str, database: PostgresServer) -> None:
        if kind == "stop database":
            database.pause()
            await self._wait(STOPPED_S)
            database.go_on()
        else:
            await asyncio.to_thread(database.kill)
            await self._wait(RESTART_S)
            await asyncio.to_thread(database.start)

    async def _hurt_line(self, kind: str, group: Group) -> None:
        if kind == "reset":
            group.change(resets=group.line.resets + 1)
        elif kind == "pull":
            group.change(down=True)
            await self._wait(PULLED_S)
            group.change(down=False)
        else:
            group.change(bytes_per_s=SLOW_BYTES_PER_S)
            await self._wait(SLOW_S)
            group.change(bytes_per_s=None)

    async def _fill_disk(self) -> None:
        await asyncio.to_thread(self._site.disk.fill)
        await self._wait(FULL_S)
        await asyncio.to_thread(self._site.disk.make_room)

    async def _wait(self, between_s: tuple[float, float]) -> None:
        await asyncio.sleep(self._chance.uniform(*between_s))
