"""The SDK's routes on a training service: `/api/v1/…`, as the `tinker` package of version 0.38 uses them.

Sessions, models and the results of their requests live in memory. What this service does not do (sampling, losses of
its own, other optimizers) is refused by name.
"""

import hmac
import json
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.background import BackgroundTask
from starlette.responses import Response

from runtime.clock import Clock
from runtime.worker_thread import Worker
from state.config.model import AdamW
from state.errors import Refused
from state.refusals import Refusal
from trainers.remote.wire import ServiceLimits
from training_service.bodies import read_body
from training_service.metrics import TrainingMetrics
from training_service.tinker.examples import decode_request
from training_service.tinker.models import BASE_MODEL, TinkerModel, parse_base_model, saved_base_model
from training_service.tinker.requests import Request, RequestQueue

log = logging.getLogger(__name__)

PREFIX = "/api/v1"
KEY_PREFIX = "tml-"
"""The SDK takes no key that begins otherwise."""
MAX_MODELS_PER_SESSION = 16
MAX_NUMBER_DIGITS = 19
MAX_MESSAGE_BYTES = 64 * 1024
MAX_TELEMETRY_BYTES = 8 * 1024**2
RETRIEVE_WAIT_S = 20.0
"""How long a request for a result waits for it; the SDK asks again."""
MAX_IN_FLIGHT_CHUNKS = 8
PROTOBUF, JSON = "application/x-protobuf", "application/json"

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class TinkerParts:
    """What the SDK's routes are made of; as in `ServiceParts`, and where weights are saved."""

    worker: Worker
    clock: Clock
    limits: ServiceLimits
    token: str | None
    max_sessions: int
    idle_session_s: float
    weights_dir: Path | None = None


class _Message(BaseModel):
    """A request's JSON; what the SDK says beyond this service's needs is left alone."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, protected_namespaces=())


class _Lora(_Message):
    seed: int | None = None


class _Optimizer(_Message):
    type: str = "adamw"


class _CreateModel(_Message):
    session_id: str
    model_seq_id: int = Field(ge=0, lt=MAX_MODELS_PER_SESSION)
    base_model: str
    lora_config: _Lora | None = None
    optimizer_config: _Optimizer = _Optimizer()


class _LoadWeights(_Message):
    model_id: str | None = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: int | None = Field(default=None, ge=0, lt=MAX_MODELS_PER_SESSION)
    path: str
    optimizer: bool


class _SaveWeights(_Message):
    model_id: str
    path: str | None = None
    seq_id: int
    overwrite: bool = False


class _AdamParams(_Message):
    learning_rate: float = 0.0001
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class _SaveForSampler(_Message):
    model_id: str
    seq_id: int


class _OptimStep(_Message):
    adam_params: _AdamParams
    model_id: str
    seq_id: int


class _OfModel(_Message):
    model_id: str


class _OfSession(_Message):
    session_id: str


class _Retrieve(_Message):
    request_id: str


@dataclass
class _Served:
    """A model, and its requests."""

    model: TinkerModel
    queue: RequestQueue


@dataclass
class _Session:
    """A client's session. `used_at_s`: of its last request, for expiry."""

    used_at_s: float
    models: dict[int, _Served] = field(default_factory=dict)


class TinkerService:
    """The SDK's sessions and models."""

    def __init__(self, parts: TinkerParts) -> None:
        self.parts = parts
        self._sessions: dict[str, _Session] = {}

    def open(self) -> str:
        """A new session. Raises `Refused`: `overloaded`."""
        oldest_s = self.parts.clock.monotonic_s() - self.parts.idle_session_s
        for session_id in [key for key, session in self._sessions.items() if session.used_at_s < oldest_s]:
            self.close(session_id)
        if len(self._sessions) >= self.parts.max_sessions:
            raise Refused(Refusal.OVERLOADED, f"{self.parts.max_sessions} sessions are open, the maximum")
        session_id = secrets.token_hex(16)
        self._sessions[session_id] = _Session(self.parts.clock.monotonic_s())
        log.info("tinker_session_opened", extra={"sessions": len(self._sessions)})
        return session_id

    @property
    def session_count(self) -> int:
        """How many sessions are open."""
        return len(self._sessions)

    def close(self, session_id: str) -> None:
        """Forgets a session and its models, if there is one."""
        self._sessions.pop(session_id, None)

    def session(self, session_id: str) -> _Session:
        """A session. Raises `Refused`: `gone`, after which the SDK stops its heartbeat."""
        found = self._sessions.get(session_id)
        if found is None:
            raise Refused(Refusal.GONE, "no such session; it may have expired, or the service started anew")
        found.used_at_s = self.parts.clock.monotonic_s()
        return found

    def create(self, session_id: str, number: int, base_model: str) -> tuple[str, _Served]:
        """A session's model by its number, made if it is not there; with its id."""
        session = self.session(session_id)
        served = session.models.get(number)
        if served is None:
            model = TinkerModel(base_model)
            served = _Served(model, RequestQueue(self.parts.worker, self.parts.clock, model.fail))
            session.models[number] = served
        return f"{session_id}:train:{number}", served

    def model(self, model_id: str) -> _Served:
        """A model. Raises `Refused`: `unknown-model`, `gone`."""
        session_id, _, number = model_id.partition(":train:")
        found = self.session(session_id).models.get(_number_of(number))
        if found is None:
            raise Refused(Refusal.UNKNOWN_MODEL, f"no model {model_id!r}")
        return found

    def check_key(self, key: str | None) -> None:
        """Raises `Refused`: `unauthorized`."""
        wanted = self.parts.token
        if wanted is None:
            return
        shown = (key or "").encode()
        if not hmac.compare_digest(shown.removeprefix(KEY_PREFIX.encode()), wanted.encode()):
            raise Refused(
                Refusal.UNAUTHORIZED, f"this training service needs its token as the API key {KEY_PREFIX}TOKEN"
            )

    def weights_dir(self) -> Path:
        """Raises `Refused`: `not-saved`."""
        if self.parts.weights_dir is None:
            raise Refused(Refusal.NOT_SAVED, "this service saves no weights; start it with --weights-dir DIR")
        return self.parts.weights_dir


def add_tinker_routes(app: FastAPI, parts: TinkerParts, metrics: TrainingMetrics) -> None:
    """Adds the SDK's routes to a training service."""
    service = TinkerService(parts)
    metrics.watch_sessions("tinker", lambda: service.session_count)
    _add_session_routes(app, service)
    _add_model_routes(app, service, metrics)


def _add_session_routes(app: FastAPI, service: TinkerService) -> None:
    limits = service.parts.limits

    @app.get(PREFIX + "/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get(PREFIX + "/get_server_capabilities")
    async def capabilities(request: HttpRequest) -> Response:
        service.check_key(request.headers.get("X-API-Key"))
        return _json({"supported_models": [{"model_name": BASE_MODEL, "trainable": True, "sampleable": False}]})

    @app.post(PREFIX + "/client/config")
    async def client_config(request: HttpRequest) -> Response:
        service.check_key(request.headers.get("X-API-Key"))
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

    @app.post(PREFIX + "/client/dynamic_config")
    async def dynamic_config(request: HttpRequest) -> Response:
        service.check_key(request.headers.get("X-API-Key"))
        return _json({})

    @app.post(PREFIX + "/create_session")
    async def create_session(request: HttpRequest) -> Response:
        service.check_key(request.headers.get("X-API-Key"))
        return _json({"type": "create_session", "session_id": service.open()})

    @app.post(PREFIX + "/session_heartbeat")
    async def heartbeat(request: HttpRequest) -> Response:
        message = await _message(service, request, _OfSession)
        service.session(message.session_id)
        return _json({"type": "session_heartbeat"})

    @app.post(PREFIX + "/sessions/{session_id}/finish")
    async def finish(session_id: str, request: HttpRequest) -> Response:
        service.check_key(request.headers.get("X-API-Key"))
        service.close(session_id)
        return _json({})

    @app.post(PREFIX + "/telemetry")
    async def telemetry(request: HttpRequest) -> Response:
        service.check_key(request.headers.get("X-API-Key"))
        await read_body(request, MAX_TELEMETRY_BYTES)  # nobody here reads it
        return _json({"status": "accepted"})


def _add_model_routes(app: FastAPI, service: TinkerService, metrics: TrainingMetrics) -> None:
    limits = service.parts.limits

    @app.post(PREFIX + "/create_model")
    async def create_model(request: HttpRequest) -> Response:
        message = await _message(service, request, _CreateModel)
        if message.optimizer_config.type != "adamw":
            raise Refused(Refusal.INVALID_BODY, f"the optimizer {message.optimizer_config.type!r}; allowed: adamw")
        parse_base_model(message.base_model)
        model_id, served = service.create(message.session_id, message.model_seq_id, message.base_model)
        seed = message.lora_config.seed if message.lora_config is not None else None

        def act() -> bytes:
            served.model.initialise(seed)
            return _encoded({"type": "create_model", "model_id": model_id})

        return _accepted(served, model_id, 0, Request(act))

    @app.post(PREFIX + "/load_weights")
    async def load_weights(request: HttpRequest) -> Response:
        message = await _message(service, request, _LoadWeights)
        if message.session_id is not None and message.model_seq_id is not None:
            folder, name = _parse_path(service, message.path)
            base_model = await service.parts.worker.run(partial(saved_base_model, folder, name))
            model_id, served = service.create(message.session_id, message.model_seq_id, base_model)
            number = 0
        elif message.model_id is not None and message.seq_id is not None:
            model_id, served, number = message.model_id, service.model(message.model_id), message.seq_id
        else:
            raise Refused(Refusal.INVALID_BODY, "a load names session_id and model_seq_id, or model_id and seq_id")

        def act() -> bytes:
            served.model.load(*_parse_path(service, message.path), optimizer=message.optimizer)
            return _encoded({"type": "load_weights", "model_id": model_id, "path": message.path})

        return _accepted(served, model_id, number, Request(act))

    @app.post(PREFIX + "/save_weights")
    async def save_weights(request: HttpRequest) -> Response:
        message = await _message(service, request, _SaveWeights)
        served = service.model(message.model_id)
        name = message.path or f"request-{message.seq_id}"

        def act() -> bytes:
            served.model.save(_folder_of(service.weights_dir(), message.model_id), name, overwrite=message.overwrite)
            return _encoded({"type": "save_weights", "path": f"tinker://{message.model_id}/weights/{name}"})

        return _accepted(served, message.model_id, message.seq_id, Request(act))

    @app.post(PREFIX + "/save_weights_for_sampler")
    async def save_weights_for_sampler(request: HttpRequest) -> Response:
        message = await _message(service, request, _SaveForSampler)
        served = service.model(message.model_id)
        return _accepted(served, message.model_id, message.seq_id, Request(_refuse_to_sample))

    @app.post(PREFIX + "/create_sampling_session")
    async def create_sampling_session(request: HttpRequest) -> Response:
        service.check_key(request.headers.get("X-API-Key"))
        _refuse_to_sample()

    @app.post(PREFIX + "/get_info")
    async def get_info(request: HttpRequest) -> Response:
        message = await _message(service, request, _OfModel)
        name = service.model(message.model_id).model.base_model
        data = {"arch": "EpochalNgram", "model_name": name}
        return _json(
            {"type": "get_info", "model_id": message.model_id, "model_data": data, "model_name": name, "is_lora": False}
        )

    @app.post(PREFIX + "/forward_backward")
    async def forward_backward(request: HttpRequest) -> Response:
        service.check_key(request.headers.get("X-API-Key"))
        body = await read_body(request, limits.wire_bytes)
        sent = await service.parts.worker.run(partial(decode_request, body))
        served = service.model(sent.model_id)

        def act() -> bytes:
            examples = sent.examples()
            if len(examples) > limits.items:
                raise Refused(Refusal.BODY_TOO_LARGE, f"{len(examples)} examples; at most {limits.items} a request")
            answer = served.model.forward(examples, backward=not sent.forward_only)
            if not sent.forward_only:
                metrics.learnt(len(examples), sum(example.targets.size for example in examples))
            return answer

        return _accepted(served, sent.model_id, sent.seq_id, Request(act, PROTOBUF, len(body), not sent.forward_only))

    @app.post(PREFIX + "/optim_step")
    async def optim_step(request: HttpRequest) -> Response:
        message = await _message(service, request, _OptimStep)
        served = service.model(message.model_id)

        def act() -> bytes:
            params = message.adam_params
            return _encoded({"metrics": served.model.optim_step(_adamw(params), params.learning_rate)})

        return _accepted(served, message.model_id, message.seq_id, Request(act))

    @app.post(PREFIX + "/retrieve_future")
    async def retrieve_future(request: HttpRequest) -> Response:
        message = await _message(service, request, _Retrieve)
        model_id, _, number = message.request_id.rpartition("/")
        if _number_of(number) < 0:
            raise Refused(Refusal.UNKNOWN_FUTURE, f"no request {message.request_id!r}")
        result = await service.model(model_id).queue.result(_number_of(number), RETRIEVE_WAIT_S)
        if result is None:
            return _json({"type": "try_again", "request_id": message.request_id, "queue_state": "active"}, 408)
        if result.error is not None:
            return _json({"error": result.error, "category": result.category})
        return Response(result.data, media_type=result.media_type)


def _refuse_to_sample() -> NoReturn:
    raise Refused(Refusal.NOT_FOUND, "this service does not sample; train, save the weights, and sample elsewhere")


def _number_of(text: str) -> int:
    """The number that a client gave back as text; −1 for what cannot be one."""
    return int(text) if text.isdecimal() and len(text) <= MAX_NUMBER_DIGITS else -1


async def _message(service: TinkerService, request: HttpRequest, kind: type[M]) -> M:
    """A request's message. Raises `Refused`: `unauthorized`, `body-too-large`, `invalid-body`."""
    service.check_key(request.headers.get("X-API-Key"))
    try:
        return kind.model_validate_json(await read_body(request, MAX_MESSAGE_BYTES))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise Refused(Refusal.INVALID_BODY, f"{where or 'the message'}: {problem['msg']}") from error


def _accepted(served: _Served, model_id: str, number: int, request: Request) -> Response:
    """Takes a request and answers with its future; it is carried out once the answer is on its way.

    What is wrong with a request is said there too, since those after it wait for its number.
    """
    served.queue.submit(number, request)
    return _json({"request_id": f"{model_id}/{number}", "model_id": model_id}, then=served.queue.run)


def _adamw(params: _AdamParams) -> AdamW:
    if params.learning_rate < 0:
        raise Refused(Refusal.INVALID_BODY, f"the learning rate {params.learning_rate:g}; allowed: 0 or more")
    try:
        return AdamW(
            betas=(params.beta1, params.beta2),
            weight_decay=params.weight_decay,
            eps=params.eps,
            clip_grad_norm=params.grad_clip_norm if params.grad_clip_norm > 0 else None,
        )
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        raise Refused(Refusal.INVALID_BODY, f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error


def _parse_path(service: TinkerService, path: str) -> tuple[Path, str]:
    """The folder and the name in `tinker://MODEL/weights/NAME`."""
    model_id, _, name = path.removeprefix("tinker://").partition("/weights/")
    return _folder_of(service.weights_dir(), model_id), name


def _folder_of(weights_dir: Path, model_id: str) -> Path:
    session_id, _, number = model_id.partition(":train:")
    if not session_id.isalnum() or not number.isdecimal():
        raise Refused(Refusal.NOT_SAVED, f"there are no weights of a model {model_id!r}")
    return weights_dir / f"{session_id}-{number}"


def _encoded(document: Any) -> bytes:
    return json.dumps(document).encode()


def _json(document: Any, status: int = 200, then: Callable[[], Any] | None = None) -> Response:
    background = None if then is None else BackgroundTask(then)
    return Response(_encoded(document), status, media_type=JSON, background=background)
