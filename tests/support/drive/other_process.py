"""A process of its own for packages that keep state, threads or connections of theirs."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

from tests.support.bounds import BOUND_S

T = TypeVar("T")


class OtherProcess:
    """Calls functions of a module, with arguments and results that can be pickled, always in the same process."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    async def ask(self, call: Callable[..., T], *arguments: Any) -> T:
        """What the call returns, or what it raises."""
        async with asyncio.timeout(BOUND_S):
            return await asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)


@contextlib.contextmanager
def other_process() -> Iterator[OtherProcess]:
    """A new process, which has inherited nothing."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield OtherProcess(pool)
