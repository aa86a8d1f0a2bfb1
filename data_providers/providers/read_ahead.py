"""Reads samples before they are requested, because their order is known: large units hide a server's latency.

Who knows which data indices follow says so (`expecting`). The rules kept here:

- what is held and not yet requested has one bound for the process, `READ_AHEAD_BYTES`, of which nobody takes more than
  half of what is free, so that the sources of a mix share it;
- a unit begins with one request's samples and doubles up to `FETCH_UNIT_BYTES` while units come quickly, so that a slow
  server sends what is needed first;
- an error is raised only for the samples that are requested: what failed ahead is requested again, by itself.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from epochal.data_providers.protocol import DatasetSpec, Tokens
from epochal.state.intervals import DataIds

READ_AHEAD_BYTES = 64 * 1024**2
"""Maximum number of bytes that a process holds, or fetches, ahead of requests."""
FETCH_UNIT_BYTES = 4 * 1024**2
"""A unit does not grow beyond this, unless one request is larger."""
MAX_UNITS_UNDER_WAY = 4
QUICK_S, SLOW_S = 0.5, 2.0
"""After a unit that took less time than the first the next ones are larger, after more than the second smaller."""
CLOSE_TIMEOUT_S = 10.0


class Budget:
    """Bytes that may be held at a time."""

    def __init__(self, limit_bytes: int) -> None:
        self._left_bytes = limit_bytes

    def take(self, size_bytes: int) -> bool:
        """Take so many bytes and return True, or return False if they are more than half of what is left."""
        if size_bytes > self._left_bytes // 2:
            return False
        self._left_bytes -= size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """Return bytes that were taken."""
        self._left_bytes += size_bytes


_SHARED = Budget(READ_AHEAD_BYTES)


class _Unit:
    """Samples that are fetched together, ahead; each is handed out once."""

    def __init__(self, data_ids: DataIds, tokens: Tokens, task: asyncio.Task[None], begun_s: float) -> None:
        self.data_ids = data_ids
        self.tokens = tokens
        self.task = task
        self.begun_s = begun_s
        self.next = data_ids.start


@dataclass(slots=True)
class _Plan:
    """The requests to come: `units` that are fetched already, then the data indices `left`."""

    left: deque[DataIds]
    step: int
    unit_samples: int
    units: deque[_Unit] = field(default_factory=deque)

    @property
    def next(self) -> int | None:
        """The data index that is expected next; None at the end."""
        if self.units:
            return self.units[0].next
        return self.left[0].start if self.left else None

    def skip(self, data_ids: DataIds) -> None:
        """Note that the first of `left` were requested by themselves."""
        if self.left and self.left[0].start == data_ids.start:
            self.replace_first(data_ids.end + 1)

    def replace_first(self, start: int) -> None:
        """Let the first of `left` begin at `start`; remove it if nothing remains."""
        first = self.left.popleft()
        if start <= first.end:
            self.left.appendleft(DataIds(start, first.end))


class ReadAhead:
    """Fetches samples ahead of requests.

    Args:
        fill: fills an array with the samples of these data indices. Raises `DataError`.
        spec: the samples' shape.
        budget: shared with others; by default by the whole process.
    """

    def __init__(
        self, fill: Callable[[DataIds, Tokens], Coroutine[Any, Any, None]], spec: DatasetSpec, budget: Budget = _SHARED
    ) -> None:
        self._fill = fill
        self._spec = spec
        self._budget = budget
        self._told: list[_Plan] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._closed = False

    async def get(self, data_ids: DataIds) -> Tokens:
        """Return the samples of these data indices, `(count · sequence_length,)`. Raises as `fill`."""
        plan = next((plan for plan in self._told if plan.next == data_ids.start), None)
        if plan is None:
            tokens = self._spec.empty_tokens(data_ids)
            await self._fill(data_ids, tokens)
            return tokens
        pieces, direct = self._taken(plan, data_ids)
        plan.step = data_ids.count
        self._extend(plan)
        try:
            if direct is None and len(pieces) == 1:
                found = await self._piece(*pieces[0])
                if found is not None:
                    return found
            tokens = self._spec.empty_tokens(data_ids)
            length, at = self._spec.sequence_length, 0
            if direct is not None:  # begun first: nobody fetches it yet
                await self._fill(direct, tokens[len(tokens) - direct.count * length :])
                self._extend(plan)
            for unit, part in pieces:
                into = tokens[at : at + part.count * length]
                found = await self._piece(unit, part)
                if found is None:
                    await self._fill(part, into)
                else:
                    into[:] = found
                at += part.count * length
            return tokens
        finally:
            for unit, part in pieces:
                if part.end == unit.data_ids.end:
                    self._release(unit)

    @contextmanager
    def expecting(self, data_ids: Sequence[DataIds], samples_per_request: int) -> Iterator[None]:
        """Fetch ahead within the context: these data indices are going to be requested, in this order.

        Args:
            data_ids: what is going to be requested.
            samples_per_request: about how many at a time.
        """
        plan = _Plan(deque(data_ids), samples_per_request, samples_per_request)
        self._told.append(plan)
        self._extend(plan)
        try:
            yield
        finally:
            self._told.remove(plan)
            self._discard(plan)

    async def aclose(self) -> None:
        """Fetch nothing more."""
        self._closed = True
        for plan in self._told:
            self._discard(plan)
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=CLOSE_TIMEOUT_S)

    def _taken(self, plan: _Plan, data_ids: DataIds) -> tuple[list[tuple[_Unit, DataIds]], DataIds | None]:
        """Return the parts that are fetched already, in order, and the rest."""
        pieces: list[tuple[_Unit, DataIds]] = []
        at = data_ids.start
        while at <= data_ids.end and plan.units and plan.units[0].next == at:
            unit = plan.units[0]
            part = DataIds(at, min(data_ids.end, unit.data_ids.end))
            pieces.append((unit, part))
            unit.next = at = part.end + 1
            if unit.next > unit.data_ids.end:
                plan.units.popleft()
        if at > data_ids.end:
            return pieces, None
        direct = DataIds(at, data_ids.end)
        if not plan.units:
            plan.skip(direct)
        return pieces, direct

    def _extend(self, plan: _Plan) -> None:
        """Begin to fetch what the plan expects, as far as the bounds allow."""
        loop = asyncio.get_running_loop()
        while plan.left and not self._closed:
            under_way = sum(not unit.task.done() for unit in plan.units)
            first = plan.left[0]
            count = max(plan.unit_samples, plan.step)
            wanted = DataIds(first.start, min(first.end, first.start + count - 1))
            if under_way >= MAX_UNITS_UNDER_WAY or not self._budget.take(wanted.count * self._spec.sequence_bytes):
                return
            tokens = self._spec.empty_tokens(wanted)
            task = loop.create_task(self._fill(wanted, tokens))
            unit = _Unit(wanted, tokens, task, loop.time())
            plan.units.append(unit)
            plan.replace_first(wanted.end + 1)
            self._under_way.add(task)
            task.add_done_callback(partial(self._fetched, plan, unit))

    def _fetched(self, plan: _Plan, unit: _Unit, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if task.cancelled() or task.exception() is not None:
            return
        took_s = asyncio.get_running_loop().time() - unit.begun_s
        if took_s < QUICK_S:
            most = max(FETCH_UNIT_BYTES // self._spec.sequence_bytes // plan.step, 1) * plan.step
            plan.unit_samples = min(max(plan.unit_samples, plan.step) * 2, most)
        elif took_s > SLOW_S:
            plan.unit_samples = max(plan.unit_samples // 2, plan.step)
        if plan in self._told:
            self._extend(plan)

    async def _piece(self, unit: _Unit, part: DataIds) -> Tokens | None:
        """Return a part of a unit, or None if fetching it ahead has failed."""
        await asyncio.wait({unit.task})
        if unit.task.cancelled() or unit.task.exception() is not None:
            return None
        length = self._spec.sequence_length
        first = (part.start - unit.data_ids.start) * length
        return unit.tokens[first : first + part.count * length]

    def _release(self, unit: _Unit) -> None:
        """End a unit of which everything was requested."""
        unit.task.cancel()
        self._budget.give_back(unit.tokens.nbytes)

    def _discard(self, plan: _Plan) -> None:
        """End the units of a plan that are no longer requested."""
        plan.left.clear()
        while plan.units:
            self._release(plan.units.popleft())
