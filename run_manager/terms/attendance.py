"""When a client takes part by its owner's terms: it leaves after the round when they end, and returns when they hold.

`TermsWatch` looks at the clock and at the machine every `LOOK_S`, and says once for each reason why a client may not
take part. `attended` takes part again and again. The rule kept here: an absence by the terms is a clean leave, with the
own result delivered, for which the coordinator counts no miss.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from epochal.run_manager.agent import ClientEnd, EndReason
from epochal.run_manager.terms.hours import Hours
from epochal.run_manager.terms.idle_policy import IdleJudge, Observation
from epochal.runtime.clock import Clock
from epochal.runtime.task_errors import first_error
from epochal.runtime.worker_thread import Worker

log = logging.getLogger(__name__)

LOOK_S = 10.0
"""Time between two observations of the machine, and the longest after which the end of the hours is noticed."""


@dataclass(frozen=True, slots=True)
class Terms:
    """When a client takes part.

    Attributes:
        hours: of the day; None for all.
        when_idle: whether only while nobody else uses the machine.
    """

    hours: Hours | None = None
    when_idle: bool = False


class ObservedMachine(Protocol):
    """Observes the machine that a client is on."""

    def observe(self) -> Observation:
        """Return what is known of it now."""
        ...

    def unknown(self, seen: Observation) -> Sequence[str]:
        """Return what cannot be known, in sentences."""
        ...


class TermsWatch:
    """Follows the terms of a client.

    Args:
        terms: of its owner.
        machine: observed where the terms ask for an idle one.
        clock: the system's.
        worker: runs the observations, which block; closed by the caller.
    """

    def __init__(self, terms: Terms, machine: ObservedMachine, clock: Clock, worker: Worker) -> None:
        self._terms, self._machine, self._clock, self._worker = terms, machine, clock, worker
        self._judge = IdleJudge()
        self._said: set[str] = set()

    async def absence(self, *, is_training: bool) -> str | None:
        """Return why the client may not take part now, or None."""
        hours = self._terms.hours
        local = datetime.fromtimestamp(self._clock.wall_s(), UTC).astimezone()
        if hours is not None and not hours.hold(local):
            return f"outside of its hours, which begin at {hours.next_change(local):%H:%M}"
        if not self._terms.when_idle:
            return None
        seen = await self._worker.run(self._machine.observe)
        for sentence in self._machine.unknown(seen):
            if sentence not in self._said:
                self._said.add(sentence)
                log.warning("use_of_machine_not_known", extra={"reason": sentence})
        return self._judge.judge(seen, self._clock.monotonic_s(), is_training=is_training)

    async def until_absent(self) -> str:
        """Return why the client has to leave, once it has to."""
        while True:
            reason = await self.absence(is_training=True)
            if reason is not None:
                return reason
            await asyncio.sleep(LOOK_S)

    async def until_present(self) -> None:
        """Return once the client may take part; say once for each reason why it does not."""
        said = None
        while (reason := await self.absence(is_training=False)) is not None:
            if reason != said:
                log.info("takes_no_part_for_now", extra={"reason": reason})
                said = reason
            await asyncio.sleep(LOOK_S)
        if said is not None:
            log.info("takes_part_again")


Leave = Callable[[], None]
"""Asks a client to leave after its round."""


async def attended(
    watch: TermsWatch, attend: Callable[[Callable[[Leave], None]], Awaitable[ClientEnd]], is_over: Callable[[], bool]
) -> ClientEnd:
    """Take part in a run whenever the terms allow it, until the run ends or its owner wants the client to end.

    Args:
        watch: of the terms.
        attend: joins the run and takes part; it hands over how it is asked to leave, once it can be.
        is_over: whether the owner wants the client to end.

    Raises:
        EpochalError: as `attend` does.
    """
    while True:
        await watch.until_present()
        end, by_terms = await _part(watch, attend)
        if end.reason is EndReason.FINISHED or not by_terms or is_over():
            return end


async def _part(
    watch: TermsWatch, attend: Callable[[Callable[[Leave], None]], Awaitable[ClientEnd]]
) -> tuple[ClientEnd, bool]:
    """Take part once; return how that ended, and whether the terms have asked for it."""
    following: list[asyncio.Task[None]] = []
    try:
        async with asyncio.TaskGroup() as group:
            end = await attend(lambda leave: following.append(group.create_task(_follow(watch, leave))))
            by_terms = any(task.done() for task in following)
            for task in following:
                task.cancel()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return end, by_terms


async def _follow(watch: TermsWatch, leave: Leave) -> None:
    """Ask a client to leave once the terms want it."""
    reason = await watch.until_absent()
    log.info("leaves_after_this_round", extra={"reason": reason})
    leave()
