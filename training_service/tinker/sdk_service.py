"""The SDK's sessions and models, in memory, and the folders of their saved weights."""

import logging
from dataclasses import dataclass
from pathlib import Path

from epochal.runtime.clock import Clock
from epochal.runtime.worker_thread import Worker
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.training_service.body_room import BodyRoom
from epochal.training_service.metrics import TrainingMetrics
from epochal.training_service.service import TrainingService, TrainingServiceOptions
from epochal.training_service.sessions import SessionTable
from epochal.training_service.tinker.model_requests import RequestQueue
from epochal.training_service.tinker.models import TinkerModel

log = logging.getLogger(__name__)

KEY_PREFIX = "tml-"
"""The SDK accepts only keys with this prefix."""
MAX_NUMBER_DIGITS = 19
_BETWEEN = ":train:"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model, its id and its requests."""

    model_id: str
    model: TinkerModel
    queue: RequestQueue


class TinkerService:
    """The service behind the SDK's routes, beside that of Epochal's own clients, whose options and room it shares."""

    def __init__(self, service: TrainingService, worker: Worker, clock: Clock) -> None:
        self.options: TrainingServiceOptions = service.options
        self.worker = worker
        self.metrics: TrainingMetrics = service.metrics
        self.bodies: BodyRoom = service.bodies
        # `gone`, because the SDK then stops sending heartbeats for the session.
        self.sessions: SessionTable[dict[int, ServedModel]] = SessionTable(
            service.options.sessions, clock, Refusal.GONE
        )
        self._clock = clock

    def open(self, sender: str) -> str:
        """Open a session for a sender and return its id. Raise `Refused`: `overloaded`."""
        session_id = self.sessions.open({}, sender)
        log.info("tinker_session_opened", extra={"sessions": len(self.sessions)})
        return session_id

    def create(self, session_id: str, number: int, base_model: str) -> ServedModel:
        """Return a session's model of this number; create it if necessary. Raise `Refused` as `TinkerModel` does."""
        models = self.sessions.use(session_id)
        if number not in models:
            model = TinkerModel(base_model)
            queue = RequestQueue(self.worker, self._clock, model.fail)
            models[number] = ServedModel(f"{session_id}{_BETWEEN}{number}", model, queue)
        return models[number]

    def model(self, model_id: str) -> ServedModel:
        """Return a model. Raise `Refused`: `unknown-model`, `gone`."""
        session_id, _, number = model_id.partition(_BETWEEN)
        found = self.sessions.use(session_id).get(number_of(number))
        if found is None:
            raise Refused(Refusal.UNKNOWN_MODEL, f"no model {model_id!r}")
        return found

    def check_key(self, key: str) -> None:
        """Raise `Refused` (`unauthorized`) unless the API key contains the service's token."""
        self.options.check_token(key.removeprefix(KEY_PREFIX), f"needs its token as the API key {KEY_PREFIX}TOKEN")

    def folder_of(self, model_id: str) -> Path:
        """Return the folder of a model's saved weights. Raise `Refused`: `not-saved`."""
        if self.options.weights_dir is None:
            raise Refused(Refusal.NOT_SAVED, "this service saves no weights; start it with --weights-dir DIR")
        session_id, _, number = model_id.partition(_BETWEEN)
        if not session_id.isalnum() or not (number.isascii() and number.isdecimal()):
            raise Refused(Refusal.NOT_SAVED, f"there are no weights of a model {model_id!r}")
        return self.options.weights_dir / f"{session_id}-{number}"

    def saved_at(self, path: str) -> tuple[Path, str]:
        """Return the folder and the name in `tinker://MODEL/weights/NAME`. Raise `Refused`: `not-saved`."""
        model_id, _, name = path.removeprefix("tinker://").partition("/weights/")
        return self.folder_of(model_id), name


def number_of(text: str) -> int:
    """Return the number in a client's text; −1 if it holds none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_NUMBER_DIGITS else -1
