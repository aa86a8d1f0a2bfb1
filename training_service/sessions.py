"""Sessions of a training service: the table of those that are open, and the training in each.

Nothing here waits or speaks HTTP; calls of one session come one after the other. A session remembers its answers by
idempotency key, so a request that is repeated because its answer was lost gets the same answer and changes nothing.
"""

import math
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from epochal.batching.micro_batches import Example
from epochal.runtime.clock import Clock
from epochal.state.config.model_table import Architecture, ModelSpec
from epochal.state.errors import InvalidInput, Refused, TrainerFailed, Unsupported
from epochal.state.model.tensors import InvalidTensorFile, encode_tensor_file, parse_tensor_file
from epochal.state.model.value_checks import check_values
from epochal.state.refusals import Refusal
from epochal.trainers.architectures import open_model
from epochal.trainers.learner import NO_INNER_STATE, Learner, Model
from epochal.trainers.remote.service_messages import (
    FRAME_BYTES,
    MAX_PARAMETERS_BYTES,
    ChunkAnswer,
    OptimStepAnswer,
    OptimStepRequest,
    SessionRequest,
)

MAX_SESSIONS = 256
IDLE_SESSION_S = 3600.0
GIVE_WAY_IDLE_S = 60.0
"""Time without a request after which a session gives way to a new one, if there is no place for it otherwise."""
TENSOR_HEADER_BYTES = 1024
"""Room for one tensor's name and shape in the body of a round's parameters."""
MAX_REMEMBERED_ANSWERS = 4096
"""Maximum number of answers that a session remembers; the oldest is dropped first. A round has far fewer requests."""


@dataclass(frozen=True, slots=True)
class SessionBounds:
    """Bounds of the sessions.

    Attributes:
        most: maximum number of open sessions.
        idle_s: time without a request after which a session may be closed.
    """

    most: int = MAX_SESSIONS
    idle_s: float = IDLE_SESSION_S


@dataclass(slots=True)
class _Place:
    session: "TrainingSession"
    used_at_s: float
    request_count: int = 0
    """Requests under way, during which the session is not idle."""

    def is_idle(self, since_s: float) -> bool:
        return not self.request_count and self.used_at_s < since_s


class SessionTable:
    """Open sessions by their secret ids; idle ones are closed when another is opened.

    If there is no place for a new session, the longest idle one gives way, unless it was used within `GIVE_WAY_IDLE_S`.
    """

    def __init__(self, bounds: SessionBounds, clock: Clock) -> None:
        self._bounds = bounds
        self._clock = clock
        self._places: dict[str, _Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._places

    def open(self, session: "TrainingSession") -> str:
        """Add a session and return its id, which cannot be guessed. Raise `Refused`: `overloaded`."""
        now_s = self._clock.monotonic_s()
        expired_s = now_s - self._bounds.idle_s
        for session_id in [key for key, place in self._places.items() if place.is_idle(expired_s)]:
            self.close(session_id)
        if len(self) >= self._bounds.most:
            given_way_s = now_s - GIVE_WAY_IDLE_S
            idle = [(place.used_at_s, key) for key, place in self._places.items() if place.is_idle(given_way_s)]
            if not idle:
                raise Refused(Refusal.OVERLOADED, f"{len(self)} sessions are open, the maximum")
            self.close(min(idle)[1])
        session_id = secrets.token_hex(16)
        self._places[session_id] = _Place(session, now_s)
        return session_id

    def use(self, session_id: str) -> "TrainingSession":
        """Return a session, and note that it is in use. Raise `Refused` if no such session is open."""
        if session_id not in self._places:
            raise Refused(Refusal.UNKNOWN_SESSION, "no such session; it may have expired, or the service was restarted")
        place = self._places[session_id]
        place.used_at_s = self._clock.monotonic_s()
        return place.session

    @contextmanager
    def using(self, session_id: str) -> Iterator["TrainingSession"]:
        """Keep a session in use until the context is left. Raise `Refused` if no such session is open."""
        session = self.use(session_id)
        place = self._places[session_id]
        place.request_count += 1
        try:
            yield session
        finally:
            place.request_count -= 1
            place.used_at_s = self._clock.monotonic_s()

    def close(self, session_id: str) -> None:
        """Close a session if it is open."""
        self._places.pop(session_id, None)


def open_served_model(spec: ModelSpec) -> Model:
    """Return a model that this service can train.

    Raises:
        Refused: `invalid-body` for a model that is not trained here; `body-too-large` for parameters that do
            not fit in a message.
    """
    if spec.architecture is Architecture.CUSTOM:  # it would import what a stranger names
        message = f"architecture {spec.architecture} is trained by clients themselves, not by a training service"
        raise Refused(Refusal.INVALID_BODY, message)
    if spec.adapter is not None:
        raise Refused(Refusal.INVALID_BODY, "an adapter, whose base each client reads itself")
    if spec.dummy:
        raise Refused(Refusal.INVALID_BODY, "a model without arithmetic, which nothing trains")
    try:
        model = open_model(spec)
    except (InvalidInput, Unsupported) as error:
        raise Refused(Refusal.INVALID_BODY, error.message) from error
    size = 4 * sum(math.prod(shape) for shape in model.shapes.values())
    if size > MAX_PARAMETERS_BYTES:
        raise Refused(Refusal.BODY_TOO_LARGE, f"a model of {size} bytes; at most {MAX_PARAMETERS_BYTES}")
    return model


class TrainingSession:
    """One client's model on the service.

    Raises:
        Refused: as `open_served_model` does.
    """

    def __init__(self, request: SessionRequest) -> None:
        self._request = request
        self._model = open_served_model(request.model)
        shapes = self._model.shapes
        self.max_parameters_bytes = (
            4 * sum(math.prod(shape) for shape in shapes.values()) + TENSOR_HEADER_BYTES * len(shapes) + FRAME_BYTES
        )
        """Maximum size of a file of the model's parameters."""
        self._committed = NO_INNER_STATE
        self._learner = self._model.learner()
        self.computed = self._learner.computed
        self._round_key: str | None = None
        self._local_step = self._items = self._tokens = 0
        self._answers: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def once(self, key: tuple[str, str], act: Callable[[], bytes]) -> bytes:
        """Return the remembered answer under this path and key, or else that of `act`. Failures are not remembered."""
        if key in self._answers:
            return self._answers[key]
        answer = act()
        self._answers[key] = answer
        while len(self._answers) > MAX_REMEMBERED_ANSWERS:
            self._answers.popitem(last=False)
        return answer

    def begin_round(self, round_key: str, parameters: bytes, keep_last: bool) -> None:
        """Start a round at these parameters; those of the last round are forgotten.

        Args:
            round_key: the client's name for the round.
            parameters: a tensor file.
            keep_last: whether to continue with the optimizer's state of the last round (its result counts).

        Raises:
            Refused: `invalid-tensors`.
        """
        try:
            tensors = parse_tensor_file(parameters).tensors()
        except InvalidTensorFile as error:
            raise Refused(Refusal.INVALID_TENSORS, error.message) from error
        shapes = {name: values.shape for name, values in tensors.items()}
        if shapes != self._model.shapes:
            raise Refused(Refusal.INVALID_TENSORS, f"tensors {shapes}; allowed: {dict(self._model.shapes)}")
        for name, values in tensors.items():
            if check_values(values.reshape(-1), math.inf) is not None:
                raise Refused(Refusal.INVALID_TENSORS, f"{name!a} has values that are not finite")
        if keep_last and self._round_key is not None and self._request.inner_state == "keep":
            self._committed = self._learner.inner_state
        self._round_key = None  # what is committed is not asked of the learner again, should the next line fail
        self._learner.load(tensors, self._committed)
        self._round_key, self._local_step, self._items, self._tokens = round_key, 0, 0, 0

    def forward_backward(self, round_key: str, local_step: int, examples: list[Example]) -> ChunkAnswer:
        """Add the examples' gradient to that of the local step.

        Raises:
            Refused: `stale-step`; `untrainable`, the examples' fault: the local step's gradient is discarded.
        """
        learner = self._at(round_key, local_step)
        try:
            loss = learner.accumulate(examples)
            nats = loss.finite_nats()
        except TrainerFailed as error:
            learner.discard()
            self._items = self._tokens = 0
            raise Refused(Refusal.UNTRAINABLE, error.message, **error.context) from error
        self._items += len(examples)
        self._tokens += loss.token_count
        return ChunkAnswer(len(examples), nats, loss.token_count)

    def optim_step(self, request: OptimStepRequest) -> OptimStepAnswer:
        """Take the optimizer step, and return the norm of its gradient if that is finite.

        Raises:
            Refused: `stale-step`; `incomplete-step` if not exactly `items` examples arrived: discard the round.
        """
        learner = self._at(request.round_key, request.local_step)
        if self._items != request.items:
            raise Refused(
                Refusal.INCOMPLETE_STEP, f"{self._items} examples arrived of the {request.items} that the step is for"
            )
        norm = None
        if self._tokens and self._request.optimizer is not None:
            norm = learner.step(self._request.optimizer, request.learning_rate, self._tokens)
        learner.discard()
        self._local_step, self._items, self._tokens = self._local_step + 1, 0, 0
        found = math.nan if norm is None else float(norm)
        return OptimStepAnswer(found if math.isfinite(found) else None)

    def discard(self) -> None:
        """Forget the round; the optimizer's state is that of the last round that counted."""
        self._round_key = None

    def parameters(self, round_key: str, local_steps: int) -> bytes:
        """Return the parameters after this number of local steps, a tensor file. Raise `Refused`: `stale-step`."""
        return encode_tensor_file(self._at(round_key, local_steps).parameters, {})

    def _at(self, round_key: str, local_step: int) -> Learner:
        if self._round_key is None or (self._round_key, self._local_step) != (round_key, local_step):
            at = "no round" if self._round_key is None else f"round {self._round_key}, local step {self._local_step}"
            asked = f"round {round_key}, local step {local_step}"
            raise Refused(Refusal.STALE_STEP, f"{asked}; the session is at {at}")
        return self._learner
