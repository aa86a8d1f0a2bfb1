"""Routes of a speed test, for machines that want to join: `epochal doctor URL` measures its way to the coordinator.

Anybody may use them, so they are bounded: a few transfers at a time, each of a bounded size and time, and a few in a
minute from one address. Nothing of them is kept.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from epochal.runtime.clock import SystemClock
from epochal.runtime.connections.loopback import is_loopback
from epochal.runtime.connections.per_address import sender_of
from epochal.runtime.connections.shedding import end_connection
from epochal.runtime.connections.token_buckets import TokenBuckets
from epochal.runtime.http.bodies import document_response, has_gone, steady_body_pieces
from epochal.runtime.http.openapi import BYTES, WHOLE, BytesResponse, in_query, takes
from epochal.runtime.http.parameters import Query
from epochal.runtime.http.problem_json import problem_response
from epochal.state.errors import Refused
from epochal.state.messages.probe import MAX_PROBE_BYTES, ProbeReport
from epochal.state.refusals import Refusal

PROBE = "/v1/probe"
MAX_PROBES = 2
"""Maximum number of transfers at a time: they share the coordinator's network with the run."""
PROBES_OF_ADDRESS_AT_ONCE = 8
PROBE_PERIOD_S = 15.0
"""After them, an address may make one in each period: about 1 MiB/s at most."""
MAX_PROBE_S = 60.0
"""Maximum time of a transfer."""
PIECE_BYTES = 64 * 1024
RETRY_S = 5.0


class Probes:
    """The transfers under way, and those of each address lately."""

    def __init__(self) -> None:
        self._count = 0
        self._buckets = TokenBuckets[str](PROBES_OF_ADDRESS_AT_ONCE, PROBE_PERIOD_S)
        self._clock = SystemClock()

    @contextmanager
    def place(self, host: str) -> Iterator[None]:
        """Hold a place for a transfer with a host. Raise `Refused` (`rate-limited`, `overloaded`) if there is none."""
        if not is_loopback(host):
            wait_s = self._buckets.take(sender_of(host), self._clock.monotonic_s())
            if wait_s:
                message = f"too many speed tests from this address; one more is allowed in {wait_s:.0f} s"
                raise Refused(Refusal.RATE_LIMITED, message, retry_after_s=wait_s)
        if self._count >= MAX_PROBES:
            message = f"other machines test their speed; allowed: {MAX_PROBES} at a time"
            raise Refused(Refusal.OVERLOADED, message, retry_after_s=RETRY_S)
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


class ProbeResponse(BytesResponse):
    """Bytes of a speed test, with a place among the transfers while they are sent."""

    def __init__(self, probes: Probes, piece: bytes, count: int) -> None:
        super().__init__(None, 200, {"Cache-Control": "no-store", "Content-Length": str(count)})
        self._probes = probes
        self._piece = piece
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host, _ = scope.get("client") or ("", 0)
        try:
            with self._probes.place(host):
                await self._send(scope, receive, send)
        except Refused as refusal:
            await problem_response(refusal)(scope, receive, send)

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with asyncio.timeout(MAX_PROBE_S):
                for sent in range(0, self._count, PIECE_BYTES):
                    body, more = self._piece[: self._count - sent], sent + PIECE_BYTES < self._count
                    await send({"type": "http.response.body", "body": body, "more_body": more})
                    if more and has_gone(receive):
                        return
        except TimeoutError:
            await end_connection(scope, receive)


def probe_routes() -> APIRouter:
    """Return the routes of the speed test."""
    router, probes, clock = APIRouter(), Probes(), SystemClock()
    piece = os.urandom(PIECE_BYTES)  # which nothing on the way compresses

    @router.get(
        PROBE,
        summary="Bytes for a speed test",
        response_class=BytesResponse,
        openapi_extra=takes(in_query("bytes", {**WHOLE, "minimum": 1, "maximum": MAX_PROBE_BYTES}, "Their number.")),
    )
    async def download(request: Request) -> Response:
        count = Query(request.scope["query_string"]).whole("bytes", MAX_PROBE_BYTES)
        if not 1 <= count <= MAX_PROBE_BYTES:
            raise Refused(Refusal.INVALID_PARAMETER, f"bytes={count}; allowed: 1 to {MAX_PROBE_BYTES}")
        return ProbeResponse(probes, piece, count)

    @router.post(
        PROBE,
        summary="Take the bytes of a speed test",
        response_model=ProbeReport,
        openapi_extra=takes(body={**BYTES, "minLength": 1}, media_type=BytesResponse.media_type),
    )
    async def upload(request: Request) -> Response:
        received = 0
        with probes.place("" if request.client is None else request.client.host):
            async for found in steady_body_pieces(request):
                received += len(found)
                if received > MAX_PROBE_BYTES:
                    raise Refused(Refusal.BODY_TOO_LARGE, f"the body has more than {MAX_PROBE_BYTES} bytes")
        if not received:
            raise Refused(Refusal.BODY_INCOMPLETE, f"the body is empty; allowed: 1 to {MAX_PROBE_BYTES} bytes")
        return document_response(ProbeReport(received, clock.wall_s()), "no-store")

    return router
