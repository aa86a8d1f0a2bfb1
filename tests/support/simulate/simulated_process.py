"""Processes in virtual time that can be stopped and continued, as SIGSTOP does: until then nothing of them goes on.

Every callback of the event loop belongs to the process in whose context it was asked for, if there is one. Timers go on
while a process is stopped, and their callbacks are executed when it is continued.
"""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar, TypeVarTuple, Unpack

from tests.support.simulate.virtual_time import VirtualLoop

Args = TypeVarTuple("Args")
T = TypeVar("T")


@dataclass(eq=False)
class Process:
    """One process.

    Attributes:
        is_stopped: nothing of it goes on.
        is_dead: it was killed; its tasks are being cancelled, and nobody hears of it any more.
    """

    is_stopped: bool = False
    is_dead: bool = False
    held: "list[_Step]" = field(default_factory=list)

    def context(self) -> contextvars.Context:
        """Return the context for a task of this process."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, self)
        return context

    def stop(self) -> None:
        """Let nothing of it go on."""
        self.is_stopped = True

    def go_on(self) -> None:
        """Let everything go on, in the order in which it would have."""
        self.is_stopped, held, self.held = False, self.held, []
        for step in held:
            step.go_on()

    def kill(self) -> None:
        """Note that it is dead. The caller cancels its tasks."""
        self.is_dead = True
        self.go_on()


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("PROCESS", default=None)
"""The process of the running task; None outside of all of them."""


@dataclass(slots=True, eq=False)
class _Step:
    """A callback of a process."""

    process: Process
    callback: Callable[..., object]
    args: tuple[Any, ...]
    context: contextvars.Context
    handle: asyncio.Handle | None = None

    def __call__(self) -> None:
        if self.process.is_stopped:
            self.process.held.append(self)
        else:
            self.callback(*self.args)

    def go_on(self) -> None:
        if self.handle is None or not self.handle.cancelled():
            asyncio.get_running_loop().call_soon(self.callback, *self.args, context=self.context)


class ProcessLoop(VirtualLoop):
    """A loop in virtual time whose processes can be stopped."""

    def call_soon(
        self, callback: Callable[[Unpack[Args]], object], *args: *Args, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        step = _step_of(callback, args, context)
        if step is None:
            return super().call_soon(callback, *args, context=context)
        step.handle = handle = super().call_soon(step, context=step.context)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        step = _step_of(callback, args, context)
        if step is None:
            return super().call_at(when, callback, *args, context=context)
        step.handle = handle = super().call_at(when, step, context=step.context)
        return handle


def _step_of(
    callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context | None
) -> _Step | None:
    """Return the callback as a step of its process; None if it has none."""
    process = PROCESS.get() if context is None else context.get(PROCESS)
    if process is None:
        return None
    return _Step(process, callback, args, context or contextvars.copy_context())


def spawn(tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, T], context: contextvars.Context) -> asyncio.Task[T]:
    """Start a task of a process in a group.

    Raises:
        Ended: the group's tasks are being cancelled.
    """
    try:
        return tasks.create_task(work, context=context)
    except RuntimeError as error:
        work.close()
        raise Ended from error


class Ended(Exception):
    """A process cannot do anything more."""
