"""Sessions of a training service: what each has learnt, and what it has answered already.

Nothing here waits or speaks HTTP; calls of one session come one after the other. An answer is remembered under its
idempotency key, so that a request that is repeated because its answer was lost gets the same one and changes nothing.
"""

import math
from collections import OrderedDict
from collections.abc import Callable

from batching.micro_batches import Example
from state.config.model import ModelSpec
from state.errors import Refused, TrainerFailed, Unsupported
from state.refusals import Refusal
from state.tensors import InvalidTensorFile, check_values, encode_tensor_file, parse_tensor_file
from trainers.architectures import open_model
from trainers.learner import NO_INNER_STATE, Learner, Model
from trainers.remote.wire import MAX_PARAMETERS_BYTES, ChunkAnswer, OptimStepRequest, SessionRequest

MAX_REMEMBERED_ANSWERS = 4096
"""Of one session; the oldest goes first. A round has far fewer requests under way."""


def open_served_model(spec: ModelSpec) -> Model:
    """Return a model that this service can train.

    Raises:
        Refused: `invalid-body`, for an architecture that is not trained here; `body-too-large`, for parameters that no
            message could carry.
    """
    try:
        model = open_model(spec)
    except Unsupported as error:
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
        self._committed = NO_INNER_STATE
        self._learner = self._model.learner()
        self._round_key: str | None = None
        self._local_step = self._items = self._tokens = 0
        self._answers: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def once(self, key: tuple[str, str], act: Callable[[], bytes]) -> bytes:
        """Return the answer of `act`, or its answer under the same path and key before. A failure is not remembered."""
        if key in self._answers:
            return self._answers[key]
        answer = act()
        self._answers[key] = answer
        while len(self._answers) > MAX_REMEMBERED_ANSWERS:
            self._answers.popitem(last=False)
        return answer

    def begin_round(self, round_key: str, parameters: bytes, keep_last: bool) -> None:
        """Start a round at these parameters; what the last one learnt is forgotten.

        Args:
            round_key: the client's name for it.
            parameters: a tensor file.
            keep_last: whether the optimizer's state of the last round is the one to go on with (its result counts).

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
        self._learner.load(tensors, self._committed)
        self._round_key, self._local_step, self._items, self._tokens = round_key, 0, 0, 0

    def forward_backward(self, round_key: str, local_step: int, examples: list[Example]) -> ChunkAnswer:
        """Add the examples' gradient to that of the local step.

        Raises:
            Refused: `stale-step`, `untrainable` (the examples' fault; what was added of the local step is discarded).
        """
        learner = self._at(round_key, local_step)
        try:
            learnt = learner.accumulate(examples)
            loss_sum = learnt.finite_loss()
        except TrainerFailed as error:
            learner.discard()
            self._items = self._tokens = 0
            raise Refused(Refusal.UNTRAINABLE, error.message) from error
        self._items += len(examples)
        self._tokens += learnt.token_count
        per_example = loss_sum / len(examples) if examples else 0.0
        metrics = {
            "loss:sum": loss_sum,
            "tokens:sum": float(learnt.token_count),
            "loss_per_example:mean": per_example,
        }
        return ChunkAnswer(len(examples), metrics)

    def optim_step(self, request: OptimStepRequest) -> ChunkAnswer:
        """Take the optimizer step.

        Raises:
            Refused: `stale-step`; `incomplete-step`, when other than `items` examples arrived: discard and begin anew.
        """
        learner = self._at(request.round_key, request.local_step)
        if self._items != request.items:
            raise Refused(
                Refusal.INCOMPLETE_STEP, f"{self._items} examples arrived of the {request.items} that the step is for"
            )
        tokens, items = self._tokens, self._items
        if tokens and self._request.optimizer is not None:
            learner.step(self._request.optimizer, request.learning_rate, tokens)
        learner.discard()
        self._local_step, self._items, self._tokens = self._local_step + 1, 0, 0
        return ChunkAnswer(items, {"tokens:sum": float(tokens)})

    def discard(self) -> None:
        """Forget the round and its gradient; the optimizer's state is that of the last round that counted."""
        self._round_key = None

    def parameters(self, round_key: str, local_steps: int) -> bytes:
        """Return the parameters after so many local steps, as a tensor file. Raise `Refused`: `stale-step`."""
        return encode_tensor_file(self._at(round_key, local_steps).parameters, {})

    def _at(self, round_key: str, local_step: int) -> Learner:
        if self._round_key is None or (self._round_key, self._local_step) != (round_key, local_step):
            at = "no round" if self._round_key is None else f"round {self._round_key}, local step {self._local_step}"
            asked = f"round {round_key}, local step {local_step}"
            raise Refused(Refusal.STALE_STEP, f"{asked}; the session is at {at}")
        return self._learner
