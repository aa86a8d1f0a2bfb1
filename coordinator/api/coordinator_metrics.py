"""A coordinator's metrics: the present run, and the durations of its phases, rounds and writes to the journal."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from epochal.coordinator.blobs.from_object_store import Arrivals
from epochal.coordinator.blobs.leased_replays import LeasedReplays
from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.insight.read_side import ReadSide
from epochal.coordinator.insight.viewers import Viewers
from epochal.coordinator.machine.instructions import OutcomeDecided, PhaseChanged
from epochal.coordinator.machine.run import Run
from epochal.coordinator.run.long_polls import LongPolls, ReaderKind
from epochal.coordinator.run.service import CoordinatorService
from epochal.coordinator.run.service_events import GroupKept, ServiceEvent
from epochal.runtime.metrics.metrics_registry import DURATION_BUCKETS_S, LATENCY_BUCKETS_S, HttpMetrics
from epochal.state.messages.evaluation_reports import benchmarks_among, losses_among, newest_evaluations
from epochal.state.messages.requests import RunStatus
from epochal.state.messages.verification_views import VerificationView
from epochal.state.phase_names import RunState

MAX_EVALUATION_NAMES = 16
"""Maximum number of evaluations' names, and of benchmarks' figures, that are labels: those that were recorded last."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The sources of the values of one scrape."""

    status: RunStatus
    service: CoordinatorService
    polls: LongPolls
    arrivals: Arrivals
    viewers: Viewers
    replays: LeasedReplays


def _verified(seen: _Seen) -> VerificationView:
    """Return the verification of results; one without any where the run has none."""
    return seen.status.verification or _NOT_VERIFIED


_NOT_VERIFIED = VerificationView(None, 0, 0, 0, 0, 0, 0, 0, 0, None, (), ())
_Rows: TypeAlias = tuple[tuple[str, str, Callable[[_Seen], float | None]], ...]
_GAUGES: _Rows = (
    ("run_document_version", "Version of the published run document.", lambda seen: seen.status.version),
    ("run_epoch", "Number of the epoch.", lambda seen: seen.status.epoch),
    ("run_step", "Steps that are done.", lambda seen: min(seen.status.step - 1, seen.status.total_steps)),
    ("run_members", "Clients that are members.", lambda seen: seen.status.member_count),
    ("run_members_ready", "Members that hold the model and the data.", lambda seen: seen.status.ready_count),
    ("run_members_resting", "Members without work because they missed rounds.", lambda seen: seen.status.resting_count),
    ("run_loss", "Mean loss of the last applied step, in nats per token.", lambda seen: seen.status.loss),
    (
        "run_gradient_norm",
        "Mean L2 norm of the gradient before clipping, in the last applied step.",
        lambda seen: seen.status.gradient_norm,
    ),
    (
        "run_gpu_memory_bytes",
        "Memory in use on the GPUs of the last round's clients, as they say.",
        lambda seen: seen.status.gpu_memory_bytes,
    ),
    ("run_gpu_memory_total_bytes", "Memory of these GPUs in all.", lambda seen: seen.status.gpu_memory_total_bytes),
    (
        "run_gpu_utilisation",
        "Mean part of time, from 0 to 1, in which these clients' GPUs computed.",
        lambda seen: seen.status.gpu_utilisation,
    ),
    ("run_tokens_per_second", "Tokens applied per second in the last rounds.", lambda seen: seen.status.tokens_per_s),
    ("run_carried_batches", "Batches that wait for another attempt.", lambda seen: seen.status.carried_batches),
    ("run_waiting_batches", "Batches that failed and wait for an attempt.", lambda seen: seen.status.waiting_batches),
    ("run_quarantined_batches", "Batches that left the run.", lambda seen: seen.status.quarantined_batches),
    ("run_replays_open", "Results that are to be computed again.", lambda seen: _verified(seen).open),
    ("run_verifiers", "Verifiers that have reported in the last rounds.", lambda seen: _verified(seen).verifiers),
    ("coordinator_journal_bytes", "Size of the journal in bytes.", lambda seen: seen.status.journal_bytes),
    (
        "coordinator_ticking",
        "1 if this is the coordinator of the run that ends phases and judges silence.",
        lambda seen: seen.service.replicas.is_ticking,
    ),
    (
        "coordinator_others",
        "Other coordinators of the run that are alive.",
        lambda seen: seen.service.replicas.other_count,
    ),
    (
        "coordinator_store_problem",
        "1 while nothing can be kept, such as on a full disk.",
        lambda seen: seen.service.health.problem is not None,
    ),
    ("coordinator_blob_bytes", "Bytes of results and checkpoints held.", lambda seen: seen.service.blobs.total_bytes),
    (
        "coordinator_blobs_lost",
        "Blobs that the run relies on and that were found gone or overwritten.",
        lambda seen: seen.service.lost_blobs.count,
    ),
    ("coordinator_checks_waiting", "Results that wait for a checker.", lambda seen: seen.arrivals.checks.waiting_count),
    ("coordinator_queued_stimuli", "Messages that wait to be handled.", lambda seen: seen.service.queued_count),
    ("coordinator_long_polls_waiting", "Requests that wait for news.", lambda seen: seen.polls.count),
    (
        "coordinator_stranger_long_polls_waiting",
        "Those without a token.",
        lambda seen: seen.polls.count_of(ReaderKind.STRANGER),
    ),
    ("coordinator_verifiers", "Verifiers that ask for work or have it.", lambda seen: seen.replays.verifier_count),
    ("coordinator_viewers", "Viewers that are sent the run's news as events.", lambda seen: seen.viewers.count),
)
_COUNTERS: _Rows = (
    ("run_tokens_applied", "Tokens applied since step 1.", lambda seen: seen.status.tokens_applied),
    ("run_replays_drawn", "Results that were drawn to be computed again.", lambda seen: _verified(seen).drawn),
    ("run_replays_passed", "Results that passed.", lambda seen: _verified(seen).passed),
    ("run_replays_dropped", "Results that nobody computed again in time.", lambda seen: _verified(seen).dropped),
    ("run_members_convicted", "Members that were convicted.", lambda seen: _verified(seen).convicted),
    (
        "coordinator_viewer_frames",
        "Frames of events that were made, each once for all viewers.",
        lambda seen: seen.viewers.frame_count,
    ),
    (
        "coordinator_viewers_dropped",
        "Viewers that read events too slowly and were dropped.",
        lambda seen: seen.viewers.dropped_count,
    ),
)


def _evaluations(seen: _Seen | None) -> Metric:
    """Return the losses of the newest replica's evaluation under each name."""
    losses = GaugeMetricFamily(
        "epochal_run_evaluation_loss", "Loss of the last replica evaluated, in nats per token.", labels=("name",)
    )
    found = () if seen is None else newest_evaluations(losses_among(seen.status.evaluations))
    for evaluation in found[:MAX_EVALUATION_NAMES]:
        losses.add_metric((evaluation.name,), evaluation.value)
    return losses


def _benchmarks(seen: _Seen | None) -> Iterator[Metric]:
    """Yield the newest replica's figures of each task, their standard errors and their numbers of samples."""
    found = () if seen is None else newest_evaluations(benchmarks_among(seen.status.evaluations))
    texts = ("Figure of a task of the last replica evaluated.", "Its standard error.", "Samples that it is of.")
    for number, (suffix, text) in enumerate(zip(("", "_stderr", "_samples"), texts, strict=True)):
        family = GaugeMetricFamily(f"epochal_run_benchmark{suffix}", text, labels=("name", "metric"))
        for one in found[:MAX_EVALUATION_NAMES]:
            value = (one.value, None if one.benchmark is None else one.benchmark.stderr, one.samples)[number]
            if value is not None:
                family.add_metric(one.key, value)
        yield family


def _arrivals(seen: _Seen | None) -> Metric:
    """Return the numbers of blobs that arrived in an object store."""
    arrived = CounterMetricFamily(
        "epochal_coordinator_blob_arrivals",
        "Blobs that arrived in the object store: counted, or the refusal's type.",
        labels=("verdict",),
    )
    if seen is not None:
        for verdict, count in sorted(seen.arrivals.counts.items()):
            arrived.add_metric((verdict,), count)
    return arrived


class CoordinatorMetrics:
    """A coordinator's metrics in one registry, measured from `watch` on.

    It also collects the metrics of the run as it is when they are read.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.http = HttpMetrics(registry)
        self._watched: tuple[CoordinatorService, ReadSide, LongPolls, Arrivals, Viewers, LeasedReplays] | None = None
        self._of: tuple[Run, Projection | None] | None = None
        self._status: RunStatus | None = None
        registry.register(self)
        self._phase_duration = Histogram(
            "epochal_run_phase_duration_seconds",
            "Time that the run spent in a phase; of a phase that a restart interrupted, the part since then.",
            ("phase",),
            registry=registry,
            buckets=DURATION_BUCKETS_S,
        )
        self._round_duration = Histogram(
            "epochal_run_round_duration_seconds",
            "Time of a round, from RoundTrain to the end of RoundWitness.",
            registry=registry,
            buckets=DURATION_BUCKETS_S,
        )
        self._rounds = Counter(
            "epochal_run_rounds", "Rounds that ended, applied or empty.", ("outcome",), registry=registry
        )
        self._append = Histogram(
            "epochal_coordinator_journal_append_duration_seconds",
            "Time to write a record to the journal and to sync it to the disk.",
            registry=registry,
            buckets=LATENCY_BUCKETS_S,
        )
        self._notices = Counter(
            "epochal_coordinator_notices",
            "Attempts to send a notice to an address, by kind and result: delivered, refused, or retried later.",
            ("kind", "result"),
            registry=registry,
        )
        self._now_s: Callable[[], float] = lambda: 0.0
        self._phase_since_s = 0.0
        self._trained_s: float | None = None

    def watch(
        self,
        service: CoordinatorService,
        insight: ReadSide,
        polls: LongPolls,
        arrivals: Arrivals,
        viewers: Viewers,
        replays: LeasedReplays,
    ) -> None:
        """Measure this service from now on."""
        self._now_s = service.now_s
        self._phase_since_s = service.now_s()
        self._watched = service, insight, polls, arrivals, viewers, replays
        service.watch(self._observe)

    def count_notice(self, kind: str, result: str) -> None:
        """Count an attempt to send a notice."""
        self._notices.labels(kind, result).inc()

    def describe(self) -> Iterator[Metric]:
        """Yield every metric of the run without a value."""
        return self._metrics(None)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of the run with its value; nothing before `watch`."""
        if self._watched is not None:
            service, insight, polls, arrivals, viewers, replays = self._watched
            status = self.status_of(insight)
            yield from self._metrics(_Seen(status, service, polls, arrivals, viewers, replays))

    @staticmethod
    def _metrics(seen: _Seen | None) -> Iterator[Metric]:
        run = InfoMetricFamily("epochal_run", "Which run the coordinator serves.", labels=("run_id",))
        phase = GaugeMetricFamily("epochal_run_phase", "1 for the run's phase, 0 for the others.", labels=("phase",))
        if seen is not None:
            run.add_metric((seen.status.run_id,), {})
            for state in RunState:
                phase.add_metric((state.value,), int(state is seen.status.run_state))
        yield from (run, phase, _evaluations(seen), *_benchmarks(seen), _arrivals(seen))
        for family, rows in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, text, read in rows:
                yield family(f"epochal_{name}", text, value=None if seen is None else read(seen))

    def status_of(self, insight: ReadSide) -> RunStatus:
        """Return the status as of the last change of the run."""
        run, known = insight.run, insight.known
        if self._status is None or self._of is None or self._of[0] is not run or self._of[1] is not known:
            self._of, self._status = (run, known), insight.status()
        return self._status

    def _observe(self, event: ServiceEvent) -> None:
        match event:
            case GroupKept(append_s=append_s):
                self._append.observe(append_s)
            case PhaseChanged(before=before):
                now_s = self._now_s()
                self._phase_ended(before, now_s - self._phase_since_s)
                self._phase_since_s = now_s
            case OutcomeDecided(outcome=outcome):
                self._rounds.labels("empty" if outcome is None else "applied").inc()

    def _phase_ended(self, phase: RunState, duration_s: float) -> None:
        self._phase_duration.labels(phase.value).observe(duration_s)
        if phase is RunState.ROUND_TRAIN:
            self._trained_s = duration_s
        elif phase is RunState.ROUND_WITNESS and self._trained_s is not None:
            self._round_duration.observe(self._trained_s + duration_s)
            self._trained_s = None
