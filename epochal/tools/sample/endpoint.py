"""The HTTP application that answers prompts with a run's newest checkpoint, in the shapes of OpenAI's API."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from secrets import token_hex
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from epochal.runtime.clock import Clock
from epochal.runtime.http.allowed_hosts import CheckedHosts
from epochal.runtime.http.bodies import read_short_body
from epochal.runtime.http.problem_json import problem_of, problem_response
from epochal.state.errors import EpochalError, InvalidInput, Refused, TrainerFailed
from epochal.state.refusals import Refusal
from epochal.tools.sample.openai_messages import CompletionRequest, CompletionShape, completion_request
from epochal.tools.sample.sampler import ModelAnswer, Sampler

MAX_BODY_BYTES = 2 * 1024 * 1024
JSON_TYPE = "application/json"


def create_app(sampler: Sampler, run_id: str, clock: Clock, hosts: frozenset[str] | None) -> FastAPI:
    """Return the application.

    Args:
        sampler: answers.
        run_id: the name of the model.
        clock: of the times in answers.
        hosts: the names under which it answers.
    """
    app = FastAPI(title="Epochal", openapi_url=None, docs_url=None, redoc_url=None)
    app.add_middleware(CheckedHosts, allowed=hosts)
    for kind in (EpochalError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _error)
    routes = _Routes(sampler, run_id, clock)
    app.add_api_route("/healthz", routes.healthz, methods=["GET"])
    app.add_api_route("/v1/models", routes.models, methods=["GET"])
    app.add_api_route("/v1/completions", routes.completions, methods=["POST"])
    app.add_api_route("/v1/chat/completions", routes.chat, methods=["POST"])
    return app


class _Routes:
    def __init__(self, sampler: Sampler, run_id: str, clock: Clock) -> None:
        self._sampler = sampler
        self._run_id = run_id
        self._clock = clock

    async def healthz(self) -> dict[str, bool]:
        return {"ok": True}

    async def models(self) -> Response:
        step = self._sampler.step
        model = {"id": self._run_id, "object": "model", "created": 0, "owned_by": "epochal", "step": step}
        return JSONResponse({"object": "list", "data": [model]})

    async def completions(self, request: Request) -> Response:
        return await self._answered(request, chat=False)

    async def chat(self, request: Request) -> Response:
        return await self._answered(request, chat=True)

    async def _answered(self, request: Request, *, chat: bool) -> Response:
        asked = completion_request(await _json_of(request), chat=chat)
        if asked.model not in (None, self._run_id):
            raise Refused(Refusal.NOT_FOUND, f"no model {str(asked.model)[:64]!a}; allowed: {self._run_id}")
        prefix = "chatcmpl" if chat else "cmpl"
        shape = CompletionShape(f"{prefix}-{token_hex(12)}", int(self._clock.wall_s()), self._run_id, chat)
        async with AsyncExitStack() as stack:
            answer = await stack.enter_async_context(self._sampler.answering(asked.prompt))
            if asked.streams:
                return _EventStream(_events(answer, shape, asked), stack.pop_all())
            text = ""
            async for piece in answer.pieces():
                text += piece
                if await request.is_disconnected():
                    break
            return JSONResponse(shape.whole(answer, text))


class _EventStream(StreamingResponse):
    """Sends events. `held` is left when the last was sent, or nobody reads them any more."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str, None], held: AsyncExitStack) -> None:
        super().__init__(events, headers={"Cache-Control": "no-store"})
        self._events = events
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held, aclosing(self._events):
            await super().__call__(scope, receive, send)


async def _events(answer: ModelAnswer, shape: CompletionShape, asked: CompletionRequest) -> AsyncGenerator[str, None]:
    try:
        async for message in _messages(answer, shape, asked):
            yield _event(message)
    except TrainerFailed as error:
        yield _event(_error_body(_refusal_of(error)))
    yield "data: [DONE]\n\n"


async def _messages(
    answer: ModelAnswer, shape: CompletionShape, asked: CompletionRequest
) -> AsyncIterator[dict[str, Any]]:
    if shape.chat:
        yield shape.piece(answer, "", is_first=True)
    async for text in answer.pieces():
        if text:
            yield shape.piece(answer, text)
    yield shape.piece(answer, "")
    if asked.counts:
        yield shape.count(answer)


def _event(message: dict[str, Any]) -> str:
    return f"data: {json.dumps(message, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def _json_of(request: Request) -> Any:
    """Return the JSON in a body. Another type is refused: a page in a browser could send it to this machine unasked."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON_TYPE:
        raise InvalidInput(f"the body's type is another one; allowed: Content-Type: {JSON_TYPE}")
    try:
        return json.loads(await read_short_body(request, MAX_BODY_BYTES))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the body is not JSON: {error}") from error


async def _error(_: Request, error: Exception) -> Response:
    """Answer an error in OpenAI's shape, with the status and headers that it has everywhere."""
    headers = {
        name: value for name, value in problem_response(error).headers.items() if not name.startswith("content-")
    }
    refused = _refusal_of(error)
    return JSONResponse(_error_body(refused), refused.kind.status, headers)


def _refusal_of(error: Exception) -> Refused:
    return Refused(Refusal.INTERNAL, error.message) if isinstance(error, TrainerFailed) else problem_of(error)


def _error_body(refused: Refused) -> dict[str, Any]:
    is_fault_of_sender = refused.kind.status < 500
    kind = "invalid_request_error" if is_fault_of_sender else "server_error"
    return {"error": {"message": refused.message, "type": kind, "param": None, "code": refused.kind.value}}
