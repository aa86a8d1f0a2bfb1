"""What a coordinator waits for before it serves: its store, and coordinators of older rules.

A newer coordinator waits while those serve the run, and tells whoever asks. It does not meet them, so it never holds
the lease. In a rolling upgrade the older ones go on meanwhile: a probe of `/readyz` finds the newer one not ready, and
nothing takes their place.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from epochal.coordinator.run.service import CoordinatorService
from epochal.coordinator.store.store import Store
from epochal.runtime.http.http_server import SHUTDOWN_TIMEOUT_S, Endpoint
from epochal.runtime.http.problem_json import problem_response
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import OtherRules, Refused, StoreBlocked
from epochal.state.refusals import Refusal

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_STORE_DELAY_S = 2.0
"""Maximum time between two attempts to open a store that keeps nothing now."""
LOOK_AGAIN_S = 1.0
"""Time between two looks whether the older coordinators are there."""
GONE_FOR_S = 5.0
"""Time without any of them after which they have ended: longer than a database that restarted needs to know of them."""


async def open_when_kept(open_all: Callable[[], Awaitable[T]], wait_s: float) -> T:
    """Return what `open_all` returns, which is called again while the store keeps nothing, for up to `wait_s` seconds.

    Raises:
        StoreBlocked: the store still keeps nothing after that time.
        EpochalError: as `open_all`.
    """
    backoff, is_said = RetryPolicy(bound_s=wait_s).begin(MAX_STORE_DELAY_S), False
    while True:
        try:
            return await open_all()
        except StoreBlocked as blocked:
            if not wait_s:
                raise
            if not is_said:
                log.warning("waiting_for_store", extra={"reason": blocked.message, "at_most_s": wait_s})
            is_said = True
            await backoff.wait(blocked)


async def open_in_turn(
    open_service: Callable[[], Awaitable[CoordinatorService]], store: Store, endpoint: Endpoint
) -> CoordinatorService:
    """Return the service of a run, once no coordinators of older rules serve it.

    Args:
        open_service: opens it; called again after a wait.
        store: the run's.
        endpoint: where `/readyz` says meanwhile why it waits.

    Raises:
        OtherRules: the run was kept under other rules, and nobody serves it; or they are newer than this program's.
        EpochalError: as `open_service`.
    """
    try:
        return await open_service()
    except OtherRules as other:
        if not other.is_older or not await store.place.is_served():
            raise
        await _wait(other, store, endpoint)
    return await open_service()


async def _wait(other: OtherRules, store: Store, endpoint: Endpoint) -> None:
    """Return once nobody has served the run for `GONE_FOR_S`."""
    reason = f"waits for the coordinators of older rules that serve the run in {store.name}: {other.message}"
    log.warning("waiting_for_older_coordinators", extra={"reason": reason})
    absent_s = 0.0
    async with _saying(reason, endpoint):
        while absent_s < GONE_FOR_S:
            await asyncio.sleep(LOOK_AGAIN_S)
            absent_s = 0.0 if await _may_be_served(store) else absent_s + LOOK_AGAIN_S
    log.warning("older_coordinators_gone", extra={"absent_s": absent_s})


async def _may_be_served(store: Store) -> bool:
    try:
        return await store.place.is_served()
    except StoreBlocked:
        return True


@contextlib.asynccontextmanager
async def _saying(reason: str, endpoint: Endpoint) -> AsyncIterator[None]:
    """Answer every request with the reason, until the context is left."""

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        return PlainTextResponse(f"not accepting: {reason}\n", 503)

    async def refuse(_: Request) -> Response:
        return problem_response(Refused(Refusal.STORE_FAILED, f"the coordinator {reason}"))

    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/{path:path}", refuse, methods=methods)]
    with endpoint.bind() as listener:
        server = endpoint.server(Starlette(routes=routes))
        async with asyncio.TaskGroup() as tasks:
            http = tasks.create_task(server.serve([listener]))
            try:
                yield
            finally:
                server.should_exit = True
                await asyncio.wait([http], timeout=SHUTDOWN_TIMEOUT_S + 1)
