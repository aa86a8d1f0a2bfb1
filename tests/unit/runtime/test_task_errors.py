"""`runtime/task_errors.py`: one error out of a group."""

import asyncio
from contextlib import suppress

import pytest

from epochal.runtime.task_errors import first_error, one_error

INNER = LookupError("inner")
GROUP = BaseExceptionGroup(
    "outer", [BaseExceptionGroup("first", [ValueError("first")]), ExceptionGroup("second", [INNER])]
)


def test_first_error_is_looked_for_depth_first() -> None:
    assert str(first_error(GROUP)) == "first"


def test_first_error_of_the_wanted_type_goes_before_others() -> None:
    assert first_error(GROUP, LookupError) is INNER


def test_first_error_is_any_where_none_is_wanted() -> None:
    assert str(first_error(GROUP, OSError)) == "first"


async def tried(is_cancelled: bool) -> str:
    """Return once the error of a group's task was handled."""
    task = asyncio.current_task()
    assert task is not None

    async def fail() -> None:
        if is_cancelled:
            task.cancel()
        raise LookupError("no such thing")

    with suppress(LookupError), one_error():
        async with asyncio.TaskGroup() as group:
            await asyncio.wait([group.create_task(fail())])
    return "goes on"


async def test_task_that_is_cancelled_while_its_work_fails_ends() -> None:
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(tried(is_cancelled=True))


async def test_task_whose_work_fails_may_go_on() -> None:
    assert await asyncio.create_task(tried(is_cancelled=False)) == "goes on"
    found = [await tried(is_cancelled=False) for _ in range(2)]
    assert found == ["goes on"] * 2
