"""Reads samples before they are requested, because their order is known: large units hide a server's latency.

Who knows which data indices follow says so (`expecting`); without that, two requests one after the other in the order
are taken as the beginning of a sequence, which is read ahead by one request, or by `GUESSED_SHARE` of what it has used
so far if that is more. The rules kept here:

- what is held and not yet requested has one bound for the process, `READ_AHEAD_BYTES`, of which nobody takes more than
  half of what is free, so that the sources of a mix share it;
- a unit begins with one request's samples and doubles up to `FETCH_UNIT_BYTES` while units come quickly, so that a slow
  server sends what is needed first;
- where answers come at once, nothing is read ahead: there is nothing to hide, and memory that is used again at once is
  faster than more of it;
- where requests overlap that nobody announced, nothing is read ahead either: they hide the latency themselves, and one
  that overtakes another would be taken for a jump elsewhere;
- an error is raised only for the samples that are requested: what failed ahead is requested again, by itself.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from epochal.data_providers.protocol import DatasetSpec, Tokens
from epochal.state.intervals import MAX_INDEX, DataIds

READ_AHEAD_BYTES = 64 * 1024**2
"""Maximum number of bytes that a process holds, or fetches, ahead of requests."""
FETCH_UNIT_BYTES = 4 * 1024**2
"""A unit does not grow beyond this, unless one request is larger."""
GUESSED_SHARE = 0.1
"""Maximum number of bytes that are read ahead because they may follow, for each byte of the sequence so far."""
MAX_UNITS_UNDER_WAY = 4
AT_ONCE_S = 0.025
AT_ONCE_BYTES_PER_S = 250e6
"""An answer comes at once if it takes less than `AT_ONCE_S`, and its bytes at this rate."""
ANSWERS_REMEMBERED = 16
"""After an answer that did not come at once, so many that do must follow: some may be a cache's."""
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
    """The requests to come: `units` that are fetched already, then the data indices `left`.

    Attributes:
        step: samples of one request, as far as is known.
        unit_samples: samples of the next unit.
        window_bytes: maximum number of bytes of its units.
        used_bytes: number of bytes that were requested one after the other.
    """

    left: deque[DataIds]
    step: int
    unit_samples: int
    window_bytes: float = math.inf
    used_bytes: int = 0
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
        self, fill: Callable[[DataIds, Tokens], Awaitable[None]], spec: DatasetSpec, budget: Budget = _SHARED
    ) -> None:
        self._fill = fill
        self._spec = spec
        self._budget = budget
        self._told: list[_Plan] = []
        self._guessed: _Plan | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._closed = False
        self._slow_answers_left = 0
        self._requests_under_way = 0

    async def get(self, data_ids: DataIds) -> Tokens:
        """Return the samples of these data indices, `(count · sequence_length,)`. Raises as `fill`."""
        self._requests_under_way += 1
        try:
            return await self._get(data_ids)
        finally:
            self._requests_under_way -= 1

    async def _get(self, data_ids: DataIds) -> Tokens:
        plan = self._plan_for(data_ids)
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
                await self._timed(direct, tokens[len(tokens) - direct.count * length :])
                self._extend(plan)
            for unit, part in pieces:
                into = tokens[at : at + part.count * length]
                found = await self._piece(unit, part)
                if found is None:
                    await self._timed(part, into)
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
        self.forget_guess()
        self._extend(plan)
        try:
            yield
        finally:
            self._told.remove(plan)
            self._discard(plan)

    def forget_guess(self) -> None:
        """Drop what was fetched because it may follow, for example because it is of other files now."""
        if self._guessed is not None:
            self._discard(self._guessed)
            self._guessed = None

    async def aclose(self) -> None:
        """Fetch nothing more."""
        self._closed = True
        for plan in (*self._told, *filter(None, (self._guessed,))):
            plan.left.clear()
            self._discard(plan)
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=CLOSE_TIMEOUT_S)

    def _plan_for(self, data_ids: DataIds) -> _Plan:
        """Return the plan that expects these data indices next, or one for what may follow them."""
        for plan in self._told:
            if plan.next == data_ids.start:
                return plan
        guessed, overlaps = self._guessed, self._requests_under_way > 1
        if guessed is not None and guessed.next == data_ids.start:
            used_bytes = data_ids.count * self._spec.sequence_bytes
            guessed.used_bytes = 0 if overlaps else guessed.used_bytes + used_bytes
            guessed.window_bytes = 0 if overlaps else max(used_bytes, guessed.used_bytes * GUESSED_SHARE)
            return guessed
        if guessed is not None and not overlaps:
            self._discard(guessed)
        if self._told or data_ids.end >= MAX_INDEX or (guessed is not None and overlaps):
            return _Plan(deque(), data_ids.count, data_ids.count)
        after = DataIds(data_ids.end + 1, MAX_INDEX)
        self._guessed = _Plan(deque([after]), data_ids.count, data_ids.count, window_bytes=0)
        return self._guessed

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
        while plan.left and not self._closed and self._slow_answers_left:
            under_way = sum(not unit.task.done() for unit in plan.units)
            first = plan.left[0]
            most_bytes = plan.window_bytes - sum(unit.tokens.nbytes for unit in plan.units)
            count = max(plan.unit_samples, plan.step)
            if count * self._spec.sequence_bytes > most_bytes:
                count = plan.step
            wanted = DataIds(first.start, min(first.end, first.start + count - 1))
            size_bytes = wanted.count * self._spec.sequence_bytes
            if under_way >= MAX_UNITS_UNDER_WAY or size_bytes > most_bytes:
                return
            if not self._budget.take(size_bytes):
                return
            tokens = self._spec.empty_tokens(wanted)
            task = loop.create_task(self._timed(wanted, tokens))
            unit = _Unit(wanted, tokens, task, loop.time())
            plan.units.append(unit)
            plan.replace_first(wanted.end + 1)
            self._under_way.add(task)
            task.add_done_callback(partial(self._fetched, plan, unit))

    async def _timed(self, data_ids: DataIds, tokens: Tokens) -> None:
        begun_s = asyncio.get_running_loop().time()
        await self._fill(data_ids, tokens)
        took_s = asyncio.get_running_loop().time() - begun_s
        if took_s >= AT_ONCE_S + tokens.nbytes / AT_ONCE_BYTES_PER_S:
            self._slow_answers_left = ANSWERS_REMEMBERED
        elif self._slow_answers_left:
            self._slow_answers_left -= 1

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
        if plan is self._guessed or plan in self._told:
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
