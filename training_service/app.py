"""The training service's HTTP side: sessions with their bounds, and errors as `application/problem+json` (RFC 9457)."""

import hmac
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from runtime.clock import Clock
from runtime.metrics import MeasuredRequests, metrics_route, new_registry
from runtime.problem_json import handle_error
from runtime.worker_thread import Worker
from state.errors import InvalidInput, Refused
from state.refusals import Refusal
from state.wire import canonical_json, parse_document
from trainers.remote.wire import (
    IDEMPOTENCY_KEY,
    MAX_PARAMETERS_BYTES,
    SESSIONS,
    OptimStepRequest,
    ServiceLimits,
    SessionOpened,
    SessionRequest,
    decode_examples,
)
from training_service.bodies import read_body
from training_service.metrics import MeasuredWorker, TrainingMetrics
from training_service.sessions import TrainingSession, check_model_size

log = logging.getLogger(__name__)

MAX_SESSIONS = 256
MAX_MESSAGE_BYTES = 64 * 1024
IDLE_SESSION_S = 3600.0
"""A session that nobody used for so long makes room for another."""
MAX_WAITING = 512
"""Requests that may wait for the arithmetic at a time."""
MAX_KEY_CHARACTERS = 128
RETRY_AFTER_S = 1
DEFAULT_LIMITS = ServiceLimits()

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServiceParts:
    """What a training service is made of.

    Attributes:
        worker: where the arithmetic runs, one request after the other.
        limits: what one request of examples may hold.
        token: clients show it as a bearer token; None asks nobody.
        tinker: whether the `tinker` SDK's own clients are served too, which needs the extra of that name.
        weights_dir: where those clients' weights are saved; None saves none.
    """

    worker: Worker
    clock: Clock
    limits: ServiceLimits = DEFAULT_LIMITS
    token: str | None = None
    max_sessions: int = MAX_SESSIONS
    idle_session_s: float = IDLE_SESSION_S
    tinker: bool = False
    weights_dir: Path | None = None


class TrainingService:
    """The sessions that there are, and whose turn it is."""

    def __init__(self, parts: ServiceParts, metrics: TrainingMetrics) -> None:
        self.parts = parts
        self.metrics = metrics
        self._sessions: dict[str, TrainingSession] = {}
        self._waiting = 0

    def open(self, request: SessionRequest) -> SessionOpened:
        """A new session. Raises `Refused`: `overloaded`, when there are as many as may be; `body-too-large`."""
        check_model_size(request.model)
        self._forget_idle()
        if len(self._sessions) >= self.parts.max_sessions:
            raise Refused(Refusal.OVERLOADED, f"{self.parts.max_sessions} sessions are open, the maximum")
        session_id = secrets.token_hex(16)
        self._sessions[session_id] = TrainingSession(request, self.parts.clock.monotonic_s())
        log.info("session_opened", extra={"sessions": len(self._sessions)})
        return SessionOpened(session_id, self.parts.limits, self.parts.idle_session_s)

    @property
    def session_count(self) -> int:
        """How many sessions are open."""
        return len(self._sessions)

    def close(self, session_id: str) -> None:
        """Forgets a session, if there is one."""
        self._sessions.pop(session_id, None)

    async def run(self, session_id: str, act: Callable[[TrainingSession], T]) -> T:
        """What `act` makes of the session, in the worker, in the order of the requests.

        Raises:
            Refused: `unknown-session`; `overloaded`; and what `act` raises.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise Refused(Refusal.UNKNOWN_SESSION, "no such session; it may have expired, or the service started anew")
        if self._waiting >= MAX_WAITING:
            raise Refused(Refusal.OVERLOADED, "too many requests wait already")
        self._waiting += 1
        try:
            session.used_at_s = self.parts.clock.monotonic_s()
            return await self.parts.worker.run(partial(act, session))
        finally:
            self._waiting -= 1

    async def run_once(self, session_id: str, key: tuple[str, str], act: Callable[[TrainingSession], bytes]) -> bytes:
        """As `run`, but a request that comes again under the same path and key gets the answer of then."""
        return await self.run(session_id, lambda session: session.once(key, lambda: act(session)))

    def check_token(self, authorization: str | None) -> None:
        """Raises `Refused`: `unauthorized`."""
        wanted = self.parts.token
        if wanted is not None and not hmac.compare_digest((authorization or "").encode(), f"Bearer {wanted}".encode()):
            raise Refused(Refusal.UNAUTHORIZED, "this training service asks for its token")

    def _forget_idle(self) -> None:
        oldest_s = self.parts.clock.monotonic_s() - self.parts.idle_session_s
        for session_id in [key for key, session in self._sessions.items() if session.used_at_s < oldest_s]:
            self.close(session_id)


def create_app(parts: ServiceParts) -> FastAPI:
    """The service's routes; its OpenAPI page is at `/docs`."""
    metrics = TrainingMetrics(new_registry())
    parts = replace(parts, worker=MeasuredWorker(parts.worker, metrics))
    service = TrainingService(parts, metrics)
    metrics.watch_sessions("epochal", lambda: service.session_count)
    app = FastAPI(title="Epochal training service")
    app.add_middleware(MeasuredRequests, metrics=metrics.http)
    app.router.routes.append(metrics_route(metrics.registry))
    for kind in (Refused, InvalidInput, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, handle_error)
    _add_routes(app, service)
    if parts.tinker:
        from training_service.tinker.routes import TinkerParts, add_tinker_routes

        add_tinker_routes(
            app,
            TinkerParts(
                parts.worker,
                parts.clock,
                parts.limits,
                parts.token,
                parts.max_sessions,
                parts.idle_session_s,
                parts.weights_dir,
            ),
            metrics,
        )
    return app


def _add_routes(app: FastAPI, service: TrainingService) -> None:
    limits = service.parts.limits

    @app.get("/healthz")
    async def healthz() -> dict[str, bool]:
        return {"ok": True}

    @app.post(SESSIONS, status_code=201)
    async def open_session(request: Request) -> Response:
        service.check_token(request.headers.get("Authorization"))
        body = await read_body(request, MAX_MESSAGE_BYTES)
        return _json(service.open(parse_document(SessionRequest, body)), 201)

    @app.delete(SESSIONS + "/{session_id}", status_code=204)
    async def close_session(session_id: str, request: Request) -> Response:
        service.check_token(request.headers.get("Authorization"))
        service.close(session_id)
        return Response(status_code=204)

    @app.put(SESSIONS + "/{session_id}/rounds/{round_key}")
    async def begin_round(
        session_id: str,
        round_key: str,
        request: Request,
        keep_last: bool = False,
        key: str = Header(alias=IDEMPOTENCY_KEY, min_length=1, max_length=MAX_KEY_CHARACTERS),
    ) -> Response:
        service.check_token(request.headers.get("Authorization"))
        body = await read_body(request, MAX_PARAMETERS_BYTES)

        def act(session: TrainingSession) -> bytes:
            session.begin_round(round_key, body, keep_last)
            return b"{}"

        return _answer(await service.run_once(session_id, (request.url.path, key), act))

    @app.post(SESSIONS + "/{session_id}/rounds/{round_key}/steps/{local_step}/forward_backward")
    async def forward_backward(
        session_id: str,
        round_key: str,
        local_step: int,
        request: Request,
        key: str = Header(alias=IDEMPOTENCY_KEY, min_length=1, max_length=MAX_KEY_CHARACTERS),
    ) -> Response:
        service.check_token(request.headers.get("Authorization"))
        documents = decode_examples(await read_body(request, limits.wire_bytes), limits.items)

        def act(session: TrainingSession) -> bytes:
            answer = session.forward_backward(round_key, local_step, documents)
            service.metrics.learnt(answer.items, int(answer.metrics["tokens:sum"]))
            return canonical_json(answer)

        return _answer(await service.run_once(session_id, (request.url.path, key), act))

    @app.post(SESSIONS + "/{session_id}/optim_step")
    async def optim_step(
        session_id: str,
        request: Request,
        key: str = Header(alias=IDEMPOTENCY_KEY, min_length=1, max_length=MAX_KEY_CHARACTERS),
    ) -> Response:
        service.check_token(request.headers.get("Authorization"))
        step = parse_document(OptimStepRequest, await read_body(request, MAX_MESSAGE_BYTES))

        def act(session: TrainingSession) -> bytes:
            return canonical_json(session.optim_step(step))

        return _answer(await service.run_once(session_id, (request.url.path, key), act))

    @app.post(SESSIONS + "/{session_id}/discard")
    async def discard(session_id: str, request: Request) -> Response:
        service.check_token(request.headers.get("Authorization"))
        await service.run(session_id, TrainingSession.discard)
        return _answer(b"{}")

    @app.get(SESSIONS + "/{session_id}/rounds/{round_key}/steps/{local_step}/parameters")
    async def parameters(session_id: str, round_key: str, local_step: int, request: Request) -> Response:
        service.check_token(request.headers.get("Authorization"))
        data = await service.run(session_id, lambda session: session.parameters(round_key, local_step))
        return Response(data, media_type="application/octet-stream")


def _answer(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _json(document: Any, status: int = 200) -> Response:
    return Response(canonical_json(document), status, media_type="application/json")
