"""The error to report when several tasks of a group have failed."""

import asyncio
import contextlib
from collections.abc import Iterator


def first_error(group: BaseExceptionGroup[BaseException], wanted: type[BaseException] = BaseException) -> BaseException:
    """Return the first error of type `wanted`, in depth-first order, else the first error of any type.

    A task group cancels its other tasks after the first failure, so later errors mostly follow from the first.
    """
    found = (group.subgroup(wanted) or group).exceptions[0]
    return first_error(found, wanted) if isinstance(found, BaseExceptionGroup) else found


@contextlib.contextmanager
def one_error() -> Iterator[None]:
    """Raise the first error of the task group that this block holds, or its task's cancellation, if both came together.

    A task group that is cancelled while one of its tasks fails raises the error alone (Python below 3.13). Who handles
    that and goes on would never end. The group's body must wait for its tasks: in Python 3.11 one that fails later
    leaves a mark on the task, as if that had been cancelled.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        yield
    except BaseExceptionGroup as errors:
        is_cancelled = task is not None and task.cancelling() > before
        raise (asyncio.CancelledError() if is_cancelled else first_error(errors)) from None
