"""The error to report when several tasks of a group have failed."""

import asyncio


def first_error(group: BaseExceptionGroup[BaseException], wanted: type[BaseException] = BaseException) -> BaseException:
    """Return the first error of type `wanted`, in depth-first order, else the first error of any type.

    A task group cancels its other tasks after the first failure, so later errors mostly follow from the first.
    """
    found = (group.subgroup(wanted) or group).exceptions[0]
    return first_error(found, wanted) if isinstance(found, BaseExceptionGroup) else found


def error_of_work(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group, or the cancellation of this task, if it came together with one.

    A task group that is cancelled while one of its tasks fails raises the error alone (Python below 3.13). Who handles
    that and goes on would never end.
    """
    task = asyncio.current_task()
    return asyncio.CancelledError() if task is not None and task.cancelling() else first_error(group)
