"""The SDK's routes on a training service: `/api/v1/…`, as the `tinker` package of version 0.38 uses them.

Features that this service lacks (sampling, the SDK's other losses, other optimizers) are refused by name.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, NoReturn

from fastapi import APIRouter, Depends, Request, Security
from fastapi.security import APIKeyHeader
from starlette.background import BackgroundTask
from starlette.responses import Response

from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.training_service.body_room import sender_of_request
from epochal.training_service.tinker.examples import ForwardBackward, decode_request
from epochal.training_service.tinker.model_requests import QueuedRequest
from epochal.training_service.tinker.models import base_models, parse_base_model, saved_base_model
from epochal.training_service.tinker.sdk_messages import (
    ADAMW,
    AboutModel,
    AboutSession,
    CreateModel,
    LoadWeights,
    OptimStep,
    RetrieveFuture,
    SaveForSampler,
    SaveWeights,
    read_message,
)
from epochal.training_service.tinker.sdk_service import ServedModel, TinkerService, number_of

PREFIX = "/api/v1"
API_KEY = APIKeyHeader(name="X-API-Key", description="`tml-` and the service's token.", auto_error=False)
MAX_TELEMETRY_BYTES = 8 * 1024**2
RETRIEVE_WAIT_S = 20.0
"""Time that a request for a result waits for it; then the SDK repeats the request."""
MAX_IN_FLIGHT_CHUNKS = 8
PROTOBUF, JSON = "application/x-protobuf", "application/json"


def tinker_router(service: TinkerService) -> APIRouter:
    """Return the SDK's routes; all but `healthz` check the service's token."""

    async def check_key(key: Annotated[str | None, Security(API_KEY)]) -> None:
        service.check_key(key or "")

    router = APIRouter(prefix=PREFIX)
    router.add_api_route("/healthz", _healthz, methods=["GET"])
    guarded = APIRouter(dependencies=[Depends(check_key)])
    TinkerSessionRoutes(service).add_to(guarded)
    TinkerModelRoutes(service).add_to(guarded)
    router.include_router(guarded)
    return router


async def _healthz() -> dict[str, str]:
    return {"status": "ok"}


class TinkerSessionRoutes:
    """Requests about the service and a client's session."""

    def __init__(self, service: TinkerService) -> None:
        self._service = service

    def add_to(self, router: APIRouter) -> None:
        router.add_api_route("/get_server_capabilities", self.capabilities, methods=["GET"])
        router.add_api_route("/client/config", self.client_config, methods=["POST"])
        router.add_api_route("/client/dynamic_config", self.dynamic_config, methods=["POST"])
        router.add_api_route("/create_session", self.create_session, methods=["POST"])
        router.add_api_route("/session_heartbeat", self.heartbeat, methods=["POST"])
        router.add_api_route("/sessions/{session_id}/finish", self.finish, methods=["POST"])
        router.add_api_route("/telemetry", self.telemetry, methods=["POST"])
        router.add_api_route("/create_sampling_session", self.create_sampling_session, methods=["POST"])

    async def capabilities(self) -> Response:
        """List the models."""
        served = [{"model_name": name, "trainable": True, "sampleable": False} for name in base_models()]
        return _json({"supported_models": served})

    async def client_config(self) -> Response:
        """Return the limits of a request."""
        limits = self._service.options.limits
        return _json(
            {
                "pjwt_auth_enabled": False,
                "parallel_fwdbwd_chunks": True,
                "proto_compress_fwdbwd": False,
                "fwdbwd_max_chunk_len": limits.items,
                "fwdbwd_max_chunk_bytes_count": limits.size,
                "fwdbwd_dispatch_bytes_semaphore_size": MAX_IN_FLIGHT_CHUNKS * limits.size,
            }
        )

    async def dynamic_config(self) -> Response:
        """Leave the client's settings as they are."""
        return _json({})

    async def create_session(self, request: Request) -> Response:
        """Open a session."""
        return _json({"type": "create_session", "session_id": self._service.open(sender_of_request(request))})

    async def heartbeat(self, request: Request) -> Response:
        """Keep a session."""
        self._service.sessions.use((await read_message(request, AboutSession)).session_id)
        return _json({"type": "session_heartbeat"})

    async def finish(self, session_id: str) -> Response:
        """Close a session, and forget its models."""
        self._service.sessions.close(session_id)
        return _json({})

    async def telemetry(self, request: Request) -> Response:
        """Accept the SDK's telemetry, and ignore it."""
        async with self._service.bodies.body(request, MAX_TELEMETRY_BYTES):
            pass
        return _json({"status": "accepted"})

    async def create_sampling_session(self) -> Response:
        """Refuse: this service does not sample."""
        _refuse_to_sample()


class TinkerModelRoutes:
    """Requests to a client's models. Most answers name a future, which `retrieve_future` waits for."""

    def __init__(self, service: TinkerService) -> None:
        self._service = service

    def add_to(self, router: APIRouter) -> None:
        router.add_api_route("/create_model", self.create_model, methods=["POST"])
        router.add_api_route("/load_weights", self.load_weights, methods=["POST"])
        router.add_api_route("/save_weights", self.save_weights, methods=["POST"])
        router.add_api_route("/save_weights_for_sampler", self.save_weights_for_sampler, methods=["POST"])
        router.add_api_route("/get_info", self.get_info, methods=["POST"])
        router.add_api_route("/forward_backward", self.forward_backward, methods=["POST"])
        router.add_api_route("/optim_step", self.optim_step, methods=["POST"])
        router.add_api_route("/retrieve_future", self.retrieve_future, methods=["POST"])

    async def create_model(self, request: Request) -> Response:
        """Create a model."""
        message = await read_message(request, CreateModel)
        if message.optimizer_config.type != ADAMW:
            raise Refused(Refusal.INVALID_BODY, f"the optimizer {message.optimizer_config.type!r}; allowed: {ADAMW}")
        parse_base_model(message.base_model)
        served = self._service.create(message.session_id, message.model_seq_id, message.base_model)

        def act() -> bytes:
            served.model.initialise(message.seed)
            return _encoded({"type": "create_model", "model_id": served.model_id})

        return _accepted(served, 0, QueuedRequest(act))

    async def load_weights(self, request: Request) -> Response:
        """Load saved weights."""
        message = await read_message(request, LoadWeights)
        if message.session_id is not None and message.model_seq_id is not None:
            folder, name = self._service.saved_at(message.path)
            base_model = await self._service.worker.run(partial(saved_base_model, folder, name))
            served, number = self._service.create(message.session_id, message.model_seq_id, base_model), 0
        elif message.model_id is not None and message.seq_id is not None:
            served, number = self._service.model(message.model_id), message.seq_id
        else:
            raise Refused(Refusal.INVALID_BODY, "a load names session_id and model_seq_id, or model_id and seq_id")

        def act() -> bytes:
            served.model.load(*self._service.saved_at(message.path), optimizer=message.optimizer)
            return _encoded({"type": "load_weights", "model_id": served.model_id, "path": message.path})

        return _accepted(served, number, QueuedRequest(act))

    async def save_weights(self, request: Request) -> Response:
        """Save a model's weights."""
        message = await read_message(request, SaveWeights)
        served = self._service.model(message.model_id)
        name = message.path or f"request-{message.seq_id}"

        def act() -> bytes:
            served.model.save(self._service.folder_of(message.model_id), name, overwrite=message.overwrite)
            return _encoded({"type": "save_weights", "path": f"tinker://{message.model_id}/weights/{name}"})

        return _accepted(served, message.seq_id, QueuedRequest(act))

    async def save_weights_for_sampler(self, request: Request) -> Response:
        """Refuse at the request's turn, so that later requests are not delayed."""
        message = await read_message(request, SaveForSampler)
        return _accepted(self._service.model(message.model_id), message.seq_id, QueuedRequest(_refuse_to_sample))

    async def get_info(self, request: Request) -> Response:
        """Return a model's name and architecture."""
        message = await read_message(request, AboutModel)
        model = self._service.model(message.model_id).model
        data = {"arch": model.architecture, "model_name": model.base_model}
        info = {"type": "get_info", "model_id": message.model_id, "model_data": data}
        return _json({**info, "model_name": model.base_model, "is_lora": False})

    async def forward_backward(self, request: Request) -> Response:
        """Compute the loss of the examples in the body, and add its gradient unless only the loss is wanted."""
        async with self._service.bodies.body(request, self._service.options.limits.wire_bytes) as body:
            sent = await self._service.worker.run(partial(decode_request, body))
            served = self._service.model(sent.model_id)
            act = partial(self._forward, served, sent)
            return _accepted(served, sent.seq_id, QueuedRequest(act, PROTOBUF, len(body), not sent.forward_only))

    def _forward(self, served: ServedModel, sent: ForwardBackward) -> bytes:
        most = self._service.options.limits.items
        if sent.count > most:
            raise Refused(Refusal.BODY_TOO_LARGE, f"{sent.count} examples; at most {most} a request")
        examples = sent.examples(served.model.vocabulary)
        answer = served.model.forward(examples, backward=not sent.forward_only)
        if not sent.forward_only:
            self._service.metrics.count_examples(sent.count, sum(example.predicted for example in examples.examples))
        return answer

    async def optim_step(self, request: Request) -> Response:
        """Take an optimizer step."""
        message = await read_message(request, OptimStep)
        served, params = self._service.model(message.model_id), message.adam_params

        def act() -> bytes:
            return _encoded({"metrics": served.model.optim_step(params.optimizer(), params.learning_rate)})

        return _accepted(served, message.seq_id, QueuedRequest(act))

    async def retrieve_future(self, request: Request) -> Response:
        """Return a request's result, or ask the client to try again."""
        message = await read_message(request, RetrieveFuture)
        model_id, _, text = message.request_id.rpartition("/")
        number = number_of(text)
        if number < 0:
            raise Refused(Refusal.UNKNOWN_FUTURE, f"no request {message.request_id!r}")
        result = await self._service.model(model_id).queue.result(number, RETRIEVE_WAIT_S)
        if result is None:
            return _json({"type": "try_again", "request_id": message.request_id, "queue_state": "active"}, 408)
        if result.error is not None:
            return _json({"error": result.error, "category": result.category})
        return Response(result.data, media_type=result.media_type)


def _refuse_to_sample() -> NoReturn:
    raise Refused(Refusal.NOT_FOUND, "this service does not sample; train, save the weights, and sample elsewhere")


def _accepted(served: ServedModel, number: int, request: QueuedRequest) -> Response:
    """Queue a request and answer with its future; it is executed after the answer is sent.

    A faulty request is queued as well, and fails at its turn, because those after it wait for its number.
    """
    served.queue.submit(number, request)
    future = {"request_id": f"{served.model_id}/{number}", "model_id": served.model_id}
    return _json(future, then=served.queue.run)


def _encoded(document: Any) -> bytes:
    return json.dumps(document).encode()


def _json(document: Any, status: int = 200, then: Callable[[], Any] | None = None) -> Response:
    background = None if then is None else BackgroundTask(then)
    return Response(_encoded(document), status, media_type=JSON, background=background)
