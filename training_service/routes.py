"""The routes `/v1/sessions/…`."""

import hmac
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request, Security
from fastapi.security import HTTPBearer
from starlette.responses import Response

from epochal.runtime.connections.shedding import vouch_for
from epochal.runtime.http.bodies import bearer_token, read_body, steady_body_pieces
from epochal.runtime.http.openapi import BYTES, BytesResponse, DescribedRoute, Number, in_query, takes
from epochal.runtime.http.parameters import Query, parse_whole
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import canonical_json, parse_document
from epochal.trainers.remote.service_messages import (
    IDEMPOTENCY_KEY,
    SESSIONS,
    ChunkAnswer,
    OptimStepAnswer,
    OptimStepRequest,
    SessionOpened,
    SessionRequest,
    decode_examples,
)
from epochal.training_service.service import TrainingService
from epochal.training_service.sessions import TrainingSession

MAX_MESSAGE_BYTES = 64 * 1024
MAX_KEY_CHARACTERS = 128
TOKEN = Security(
    HTTPBearer(scheme_name="token", description="The service's token, if it was started with one.", auto_error=False)
)
"""The token for the description; the routes check it themselves."""
_TENSORS = takes(body=BYTES, media_type=BytesResponse.media_type)
_KEEP_LAST = in_query("keep_last", {"type": "boolean"}, default=False)

IdempotencyKey = Annotated[str, Header(alias=IDEMPOTENCY_KEY, min_length=1, max_length=MAX_KEY_CHARACTERS)]


class SessionRoutes:
    """Requests to the sessions of one training service."""

    def __init__(self, service: TrainingService) -> None:
        self._service = service

    def router(self) -> APIRouter:
        """Return the routes; each checks the token first."""
        router = APIRouter(
            route_class=DescribedRoute, prefix=SESSIONS, dependencies=[TOKEN, Depends(self._check_token)]
        )
        one, rounds = "/{session_id}", "/{session_id}/rounds/{round_key}"
        step = rounds + "/steps/{local_step}"
        takes_session, takes_step = takes(body=SessionRequest), takes(body=OptimStepRequest)
        begins = {**_TENSORS, "parameters": [_KEEP_LAST]}
        router.post("", status_code=201, response_model=SessionOpened, openapi_extra=takes_session)(self.open)
        router.delete(one, status_code=204)(self.close)
        router.put(rounds, response_model=dict, openapi_extra=begins)(self.begin_round)
        router.post(f"{step}/forward_backward", response_model=ChunkAnswer, openapi_extra=_TENSORS)(
            self.forward_backward
        )
        router.get(f"{step}/parameters", response_class=BytesResponse)(self.parameters)
        router.post(f"{one}/optim_step", response_model=OptimStepAnswer, openapi_extra=takes_step)(self.optim_step)
        router.post(f"{one}/discard", response_model=dict)(self.discard)
        return router

    async def open(self, request: Request) -> Response:
        """Open a session."""
        message = parse_document(SessionRequest, await _read_message(request))
        opened = self._service.open(message)
        return _json(canonical_json(opened), 201)

    async def close(self, session_id: str) -> Response:
        """Close a session if it is open."""
        self._service.sessions.close(session_id)
        return Response(status_code=204)

    async def begin_round(self, session_id: str, round_key: str, request: Request, key: IdempotencyKey) -> Response:
        """Begin a round at the parameters in the body."""
        keep_last = Query(request.scope["query_string"]).flag("keep_last")
        with self._service.sessions.using(session_id) as used:
            async with self._service.bodies.body(request, used.max_parameters_bytes) as body:

                def act(session: TrainingSession) -> bytes:
                    session.begin_round(round_key, body, keep_last)
                    return b"{}"

                return await self._once(session_id, request, key, act)

    async def forward_backward(
        self, session_id: str, round_key: str, local_step: Number, request: Request, key: IdempotencyKey
    ) -> Response:
        """Add the gradient of the examples in the body to the local step's."""
        number = parse_whole("local_step", local_step)
        limits = self._service.options.limits
        with self._service.sessions.using(session_id):
            async with self._service.bodies.body(request, limits.wire_bytes) as body:
                examples = decode_examples(body, limits.items)

                def act(session: TrainingSession) -> bytes:
                    answer = session.forward_backward(round_key, number, examples)
                    self._service.metrics.count_examples(answer.items, answer.tokens)
                    return canonical_json(answer)

                return await self._once(session_id, request, key, act)

    async def optim_step(self, session_id: str, request: Request, key: IdempotencyKey) -> Response:
        """Take the optimizer step."""
        self._service.sessions.use(session_id)
        step = parse_document(OptimStepRequest, await _read_message(request))

        def act(session: TrainingSession) -> bytes:
            return canonical_json(session.optim_step(step))

        return await self._once(session_id, request, key, act)

    async def discard(self, session_id: str) -> Response:
        """Discard the current round."""
        await self._service.run(session_id, TrainingSession.discard)
        return _json(b"{}")

    async def parameters(self, session_id: str, round_key: str, local_step: Number) -> Response:
        """Return the parameters after this number of local steps, as a tensor file."""
        number = parse_whole("local_step", local_step)
        data = await self._service.run(session_id, lambda session: session.parameters(round_key, number))
        return BytesResponse(data)

    async def _check_token(self, request: Request) -> None:
        token, shown = self._service.options.token, bearer_token(request.headers) or ""
        if token is None:
            return
        if not hmac.compare_digest(shown.encode(), token.encode()):
            raise Refused(Refusal.UNAUTHORIZED, "this training service asks for its token")
        session_id = request.path_params.get("session_id", "")
        if session_id in self._service.sessions:
            vouch_for(request.scope, session_id)

    async def _once(
        self, session_id: str, request: Request, key: str, act: Callable[[TrainingSession], bytes]
    ) -> Response:
        return _json(await self._service.run_once(session_id, (request.url.path, key), act))


async def _read_message(request: Request) -> bytes:
    return await read_body(request, MAX_MESSAGE_BYTES, steady_body_pieces(request))


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")
