"""The state of a client, collected from its events: what its view shows. No clock, no terminal.

The rule kept here: an event costs a few assignments, because training continues meanwhile, and what is kept is bounded.
"""

from collections import deque
from dataclasses import dataclass, field

from epochal.coordinator_client.session import CoordinatorFound, CoordinatorLost, Joined, RequestRepeated, RestBegan
from epochal.run_manager.events import (
    Attested,
    BecameReady,
    BlobFetched,
    BlobSent,
    DataDiffers,
    DocumentArrived,
    Event,
    OutcomeMerged,
    PartBegan,
    ReplicaDistrusted,
    ResultSettled,
    RoundFailed,
    RoundTrained,
    StepEntered,
    TrainerOpened,
    WorkAssigned,
)
from epochal.state.documents import RunDocument
from epochal.state.shown.glossary import PARTS

MAX_LOSSES = 512
"""Number of rounds whose losses are kept for the curve."""
MAX_RATES = 32
"""Number of rounds over which the mean speed is taken."""
CONNECTING = "asking the coordinator"


@dataclass(slots=True)
class Traffic:
    """Bytes in one direction, and the seconds that they took, as far as that was measured."""

    size_bytes: int = 0
    timed_bytes: int = 0
    duration_s: float = 0.0

    def add(self, size_bytes: int, duration_s: float) -> None:
        self.size_bytes += size_bytes
        if duration_s > 0:  # what comes along with another answer is not timed
            self.timed_bytes += size_bytes
            self.duration_s += duration_s

    @property
    def bytes_per_s(self) -> float:
        """Mean rate while something was under way; 0 if that is not known."""
        return self.timed_bytes / self.duration_s if self.duration_s > 0 else 0.0


@dataclass(slots=True)
class ClientProgress:
    """The state of a client. `observe` takes its events.

    Attributes:
        document: the newest run document.
        client_id: "" before it has joined.
        activity, activity_since_s: what it does, in words, and since when.
        problem: what is wrong now, in words; "" if nothing is.
        work: its part of the round under way; None before its round begins.
        trained: the last result that it delivered.
        trained_at_s: when each of the last results was delivered, with its tokens.
        losses: of the last rounds.
        attested: what it attested last.
        applied, lost, failed: number of its results by their end.
        sent, received: its traffic.
        repeated: number of requests that were made again.
        merge_s: seconds of the last merge.
    """

    document: RunDocument | None = None
    client_id: str = ""
    activity: str = CONNECTING
    activity_since_s: float = 0.0
    problem: str = ""
    work: WorkAssigned | None = None
    trained: RoundTrained | None = None
    trained_at_s: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=MAX_RATES))
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_LOSSES))
    attested: Attested | None = None
    applied: int = 0
    lost: int = 0
    failed: int = 0
    sent: Traffic = field(default_factory=Traffic)
    received: Traffic = field(default_factory=Traffic)
    repeated: int = 0
    merge_s: float | None = None

    def observe(self, event: Event, now_s: float) -> None:
        """Take an event of the client, which came at `now_s` on a monotonic clock."""
        match event:
            case DocumentArrived(document=document):
                self.document = document
            case Joined(client_id=client_id):
                self.client_id = client_id
                self._does("waiting for work", now_s)
            case CoordinatorLost(reason=reason):
                self.problem = f"the coordinator does not answer: {reason}; trying again"
            case CoordinatorFound():
                self.problem = ""
            case RestBegan(rest_s=rest_s, reason=reason):
                self._does(f"resting for {rest_s:.0f} s: {reason}", now_s)
            case DataDiffers(message=message):
                self.problem = message
            case RequestRepeated():
                self.repeated += 1
            case StepEntered() | TrainerOpened() | BecameReady() | PartBegan() | WorkAssigned():
                self._goes_on(event, now_s)
            case _:
                self._takes(event, now_s)

    def _goes_on(
        self, event: StepEntered | TrainerOpened | BecameReady | PartBegan | WorkAssigned, now_s: float
    ) -> None:
        match event:
            case StepEntered(step_name=name):
                self._does(STEPS.get(name, name.lower()), now_s)
            case TrainerOpened():
                self._does("ready to train; waiting for the round", now_s)
            case BecameReady():
                self.problem = ""
                self._does("ready; waiting for the others", now_s)
            case PartBegan(part=part):
                self._does(PARTS[part].label, now_s)
            case WorkAssigned(batch_count=count):
                self.work = event
                if not count:
                    self._does("no work in this round; waiting for the next", now_s)

    def _takes(self, event: Event, now_s: float) -> None:
        match event:
            case RoundTrained(loss=loss, token_count=tokens):
                self.trained = event
                self.trained_at_s.append((now_s, tokens))
                if loss is not None:
                    self.losses.append(loss)
                self._does("delivered; waiting for the others", now_s)
            case RoundFailed(message=message):
                self.failed += 1
                self.problem = f"round {event.step} failed: {message}"
            case Attested():
                self.attested = event
            case ResultSettled(is_applied=is_applied):
                self.applied += is_applied
                self.lost += not is_applied
                if is_applied:
                    self.problem = ""
            case BlobSent(size_bytes=size_bytes, duration_s=duration_s):
                self.sent.add(size_bytes, duration_s)
            case BlobFetched(size_bytes=size_bytes, duration_s=duration_s):
                self.received.add(size_bytes, duration_s)
            case OutcomeMerged(merge_s=merge_s):
                self.merge_s = merge_s
            case ReplicaDistrusted(reason=reason):
                self._does(f"rebuilding its replica: {reason}", now_s)

    def tokens_per_s(self) -> float | None:
        """Return the tokens per second of wall time over the last rounds; None before two of them."""
        if len(self.trained_at_s) < 2 or self.trained_at_s[-1][0] <= self.trained_at_s[0][0]:
            return None
        tokens = sum(count for _, count in list(self.trained_at_s)[1:])
        return tokens / (self.trained_at_s[-1][0] - self.trained_at_s[0][0])

    def _does(self, activity: str, now_s: float) -> None:
        if activity != self.activity:
            self.activity, self.activity_since_s = activity, now_s


STEPS = {
    "Observing": "waiting for the run to continue",
    "Warmup": "preparing: model, data and trainer",
    "Training": PARTS["replica"].label,
    "Witness": "attesting which results have arrived",
    "Cooldown": "waiting while a checkpoint is saved",
    "Finished": "the run is finished",
}
"""The activity of a client in each step."""
