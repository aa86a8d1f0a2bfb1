"""`runtime/task_errors.py`: one error out of a group."""

import asyncio
from contextlib import suppress

import pytest

from epochal.runtime.task_errors import error_of_work, first_error

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


async def test_task_that_is_cancelled_while_its_work_fails_ends() -> None:
    async def tried() -> str:
        task = asyncio.current_task()
        assert task is not None

        async def fail() -> None:
            task.cancel()
            raise LookupError("no such thing")

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
        except BaseExceptionGroup as errors:
            with suppress(LookupError):
                raise error_of_work(errors) from None
        return "goes on"

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(tried())
