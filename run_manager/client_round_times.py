"""A client's telemetry of its rounds: how long each part took, measured from its events.

`RoundTimes` is an observer around the whole client: it notes the events that concern a round's times, and passes every
event on. The steps measure nothing; they report the edges between their parts (`PartBegan`). The times are sent to the
coordinator with the result, for display only. Some are known only after the round: the time of the upload and, where
the client learns the outcome with the next round's document, those of the downloads and the merge. So the last rounds
are kept until their times were reported.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from epochal.data_providers.next_round_samples import AheadSamples
from epochal.data_providers.waits import WaitTimes
from epochal.run_manager.events import (
    Attested,
    BlobFetched,
    DocumentArrived,
    Event,
    Observer,
    OutcomeMerged,
    PartBegan,
    RoundPart,
    RoundTrained,
    ignore,
)
from epochal.state.documents import RoundHead
from epochal.state.messages.data_metrics import MAX_CLAIMED_S, MAX_CLAIMED_SAMPLES, DataMetrics
from epochal.state.messages.requests import ResultCommitment, ResultMetrics
from epochal.state.messages.round_times import MAX_TOLD_BYTES, MS_PER_S, GpuUse, LaterTimes, WorkTimes, milliseconds
from epochal.trainers.protocol import TrainedRound

KEPT_ROUNDS = 4
"""Number of rounds of which times are kept."""
MAX_SPANS = 64
"""Maximum number of separate times of fetching that are kept; further ones count with the gap before them."""
REPORTED_PLACES = 3
"""Number of decimal places of the seconds that a client reports, because the journal keeps them."""
NORM_DIGITS = 6
"""Number of digits of the gradient norm that a client reports."""

RoundName = tuple[int, int]


@dataclass(slots=True)
class _Fetched:
    """The times in which something was fetched, as spans that do not overlap, and its size."""

    spans: list[tuple[float, float]] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, start_s: float, end_s: float, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        while self.spans and (self.spans[-1][1] >= start_s or len(self.spans) >= MAX_SPANS):
            earlier = self.spans.pop()
            start_s, end_s = min(start_s, earlier[0]), max(end_s, earlier[1])
        self.spans.append((start_s, end_s))

    def total_s(self) -> float:
        return sum(end_s - start_s for start_s, end_s in self.spans)


@dataclass(slots=True)
class _Later:
    """Times of a round that are known afterwards; None for what did not happen."""

    upload_s: float | None = None
    attest_s: float | None = None
    merge_s: float | None = None
    fetched: _Fetched | None = None
    uploaded_bytes: int = 0
    is_reported: bool = False

    def report(self, name: RoundName) -> LaterTimes:
        fetched = self.fetched
        return LaterTimes(
            *name,
            upload_ms=_known(self.upload_s),
            attest_ms=_known(self.attest_s),
            download_ms=None if fetched is None or not fetched.size_bytes else milliseconds(fetched.total_s()),
            merge_ms=_known(self.merge_s),
            uploaded_bytes=min(self.uploaded_bytes, MAX_TOLD_BYTES),
            downloaded_bytes=0 if fetched is None else min(fetched.size_bytes, MAX_TOLD_BYTES),
        )


class RoundTimes:
    """Measures the rounds of one client. `observe` is an `Observer`.

    Args:
        now_s: returns the seconds on a monotonic clock.
        observer: receives every event that `observe` receives, and `RoundTrained`, which is made here.
    """

    def __init__(self, now_s: Callable[[], float], observer: Observer = ignore) -> None:
        self._now_s = now_s
        self._observer = observer
        self._rounds: OrderedDict[RoundName, _Later] = OrderedDict()
        self._head: RoundHead | None = None
        self._began_s = 0.0
        self._parts_began_s: dict[RoundPart, float] = {}
        self._idle_s: float | None = None
        self._done_s: float | None = None
        """When this client last did something for a round."""
        self._fetched = _Fetched()
        """What was fetched for an outcome that is not merged yet."""

    def observe(self, event: Event) -> None:
        """Note an event, and pass it on."""
        now_s = self._now_s()
        match event:
            case DocumentArrived(document=document):
                self._follow(document.round, now_s)
            case PartBegan(part=part):
                self._parts_began_s[part] = now_s
            case RoundTrained(step=step, attempt=attempt):
                later = self._of((step, attempt))
                later.upload_s, later.uploaded_bytes = event.upload_s, event.uploaded_bytes
                self._done_s = now_s
            case Attested(step=step, attempt=attempt):
                self._of((step, attempt)).attest_s = event.attest_s
                self._done_s = now_s
            case BlobFetched(is_merged=True):
                self._fetched.add(now_s - event.duration_s, now_s, event.size_bytes)
                self._done_s = now_s
            case OutcomeMerged(step=step, merge_s=merge_s):
                name = next((name for name in reversed(self._rounds) if name[0] == step), (step, 0))
                self._of(name).merge_s = merge_s
                self._end_fetches(name)
                self._done_s = now_s
        self._observer(event)

    def result_metrics(
        self, trained: TrainedRound, data: DataMetrics | None, gpu: GpuUse | None = None, *, is_eager: bool = False
    ) -> ResultMetrics:
        """Return the figures of a result that has just been encoded.

        Args:
            trained: the trainer's result.
            data: how its data came; None if the trainer loads them itself.
            gpu: the use of its GPUs; None if that is not known.
            is_eager: whether it was trained before its round, so that nothing waited for the round's document.
        """
        began_s, now_s = self._parts_began_s, self._now_s()
        idle_ms = None if self._idle_s is None or is_eager else milliseconds(self._idle_s)
        round_began_s = began_s["replica"] if is_eager else self._began_s
        replica_ms, encode_ms = milliseconds(began_s["train"] - round_began_s), milliseconds(now_s - began_s["encode"])
        return ResultMetrics(
            loss=trained.loss,
            tokens=trained.token_count,
            train_s=round(began_s["encode"] - began_s["train"], REPORTED_PLACES),
            data=data,
            work=WorkTimes(idle_ms, replica_ms, encode_ms),
            before=self.before(),
            gradient_norm=None if trained.gradient_norm is None else float(f"{trained.gradient_norm:.{NORM_DIGITS}g}"),
            gpu=gpu,
            sample_tokens=trained.sample_tokens,
        )

    def delivered(self, commitment: ResultCommitment, batch_count: int) -> None:
        """Report that the coordinator has a result, as `RoundTrained`."""
        metrics = commitment.metrics
        data, work = metrics.data or DataMetrics(0.0, 0.0, 0.0), metrics.work or WorkTimes(None, 0, 0)
        self.observe(
            RoundTrained(
                step=commitment.step,
                attempt=commitment.attempt,
                loss=metrics.loss,
                gradient_norm=metrics.gradient_norm,
                token_count=metrics.tokens,
                batch_count=batch_count,
                train_s=metrics.train_s,
                data_wait_s=data.fetching_s + data.decoding_s + data.packing_s,
                result_sha256=commitment.result_sha256,
                **asdict(data),
                idle_s=None if work.idle_ms is None else work.idle_ms / MS_PER_S,
                replica_s=work.replica_ms / MS_PER_S,
                encode_s=work.encode_ms / MS_PER_S,
                upload_s=self._now_s() - self._parts_began_s["upload"],
                uploaded_bytes=commitment.size_bytes,
            )
        )

    def before(self) -> LaterTimes | None:
        """Return the times of the last round before the present one, unless they were reported before."""
        present = None if self._head is None else (self._head.step, self._head.attempt)
        return self._report(lambda name: name != present)

    def last(self) -> LaterTimes | None:
        """Return the times of the last round of all, unless they were reported before."""
        return self._report(lambda _: True)

    def _follow(self, head: RoundHead | None, now_s: float) -> None:
        if head is None or head == self._head:
            return
        if self._head is not None and self._head.step == head.step:  # it had no outcome
            self._end_fetches((self._head.step, self._head.attempt))
        self._idle_s = None if self._done_s is None else now_s - self._done_s
        self._head, self._began_s = head, now_s

    def _report(self, is_wanted: Callable[[RoundName], bool]) -> LaterTimes | None:
        name = next((name for name in reversed(self._rounds) if is_wanted(name)), None)
        if name is None or self._rounds[name].is_reported:
            return None
        self._rounds[name].is_reported = True
        return self._rounds[name].report(name)

    def _of(self, name: RoundName) -> _Later:
        if name not in self._rounds:
            self._rounds[name] = _Later()
            while len(self._rounds) > KEPT_ROUNDS:
                self._rounds.popitem(last=False)
        return self._rounds[name]

    def _end_fetches(self, name: RoundName) -> None:
        fetched, self._fetched = self._fetched, _Fetched()
        if fetched.size_bytes:
            self._of(name).fetched = fetched


def _known(seconds: float | None) -> int | None:
    return None if seconds is None else milliseconds(seconds)


def data_metrics(waited: WaitTimes, ahead: AheadSamples) -> DataMetrics:
    """Return how the data of a round came, to be reported once.

    Args:
        waited: the times for which the trainer waited.
        ahead: counts the samples that were fetched ahead since the last report.
    """
    used, dropped = ahead.counts_since_last()
    return DataMetrics(
        fetching_s=round(min(waited.fetching_s, MAX_CLAIMED_S), REPORTED_PLACES),
        decoding_s=round(min(waited.decoding_s, MAX_CLAIMED_S), REPORTED_PLACES),
        packing_s=round(min(waited.packing_s, MAX_CLAIMED_S), REPORTED_PLACES),
        ahead_samples=min(used, MAX_CLAIMED_SAMPLES),
        dropped_samples=min(dropped, MAX_CLAIMED_SAMPLES),
    )
