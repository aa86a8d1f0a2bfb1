"""The JSON requests of the SDK; fields that this service does not need are ignored."""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from epochal.runtime.http.bodies import read_body, steady_body_pieces
from epochal.state.config.model_table import AdamW
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import strict_json

MAX_MODELS_PER_SESSION = 16
MAX_MESSAGE_BYTES = 64 * 1024
ADAMW = "adamw"


class TinkerMessage(BaseModel):
    """A request's JSON."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, protected_namespaces=())


M = TypeVar("M", bound=TinkerMessage)


class LoraSettings(TinkerMessage):
    """The SDK's LoRA settings. All parameters are trained here, so only the seed is used."""

    seed: int | None = None


class OptimizerChoice(TinkerMessage):
    """The optimizer of the requested steps."""

    type: str = ADAMW


class CreateModel(TinkerMessage):
    """Create the session's model of this number."""

    session_id: str
    model_seq_id: int = Field(ge=0, lt=MAX_MODELS_PER_SESSION)
    base_model: str
    lora_config: LoraSettings | None = None
    optimizer_config: OptimizerChoice = OptimizerChoice()

    @property
    def seed(self) -> int | None:
        """Seed of the initial parameters; None for random ones."""
        return None if self.lora_config is None else self.lora_config.seed


class LoadWeights(TinkerMessage):
    """Load saved weights into a new model (`session_id`, `model_seq_id`) or an old one (`model_id`, `seq_id`)."""

    model_id: str | None = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: int | None = Field(default=None, ge=0, lt=MAX_MODELS_PER_SESSION)
    path: str
    optimizer: bool


class AboutModel(TinkerMessage):
    """A question about a model."""

    model_id: str


class SaveForSampler(AboutModel):
    """Save a model's weights for sampling."""

    seq_id: int


class SaveWeights(SaveForSampler):
    """Save a model's weights under a name."""

    path: str | None = None
    overwrite: bool = False


class AdamParams(TinkerMessage):
    """The settings of one optimizer step."""

    learning_rate: float = 0.0001
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0

    def optimizer(self) -> AdamW:
        """Return the optimizer. Raise `Refused` (`invalid-body`) for settings that are out of range."""
        if self.learning_rate < 0:
            raise Refused(Refusal.INVALID_BODY, f"the learning rate {self.learning_rate:g}; allowed: 0 or more")
        try:
            return AdamW(
                betas=(self.beta1, self.beta2),
                weight_decay=self.weight_decay,
                eps=self.eps,
                clip_grad_norm=self.grad_clip_norm if self.grad_clip_norm > 0 else None,
            )
        except ValidationError as error:
            raise _refusal_of(error, "the optimizer") from error


class OptimStep(AboutModel):
    """Take an optimizer step."""

    adam_params: AdamParams
    seq_id: int


class AboutSession(TinkerMessage):
    """A message about a session, such as its heartbeat."""

    session_id: str


class RetrieveFuture(TinkerMessage):
    """Wait for a request's result."""

    request_id: str


async def read_message(request: Request, kind: type[M]) -> M:
    """Return a request's message. Raise `Refused`: `body-too-large`, `body-timeout`, `invalid-body`."""
    try:
        body = await read_body(request, MAX_MESSAGE_BYTES, steady_body_pieces(request))
        return kind.model_validate(strict_json(body))
    except ValidationError as error:
        raise _refusal_of(error, "the message") from error
    except ValueError as error:
        raise Refused(Refusal.INVALID_BODY, f"the message is not JSON: {error}") from error


def _refusal_of(error: ValidationError, whole: str) -> Refused:
    problem = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    return Refused(Refusal.INVALID_BODY, f"{where or whole}: {problem['msg']}")
