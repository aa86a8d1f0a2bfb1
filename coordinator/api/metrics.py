"""What a coordinator shows Prometheus: the run as it stands, and how long its phases, rounds and writes took."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from coordinator.api.long_poll import LongPolls
from coordinator.machine.instructions import OutcomeDecided, PhaseChanged
from coordinator.machine.run import Run
from coordinator.service import CoordinatorService, GroupKept, ServiceEvent
from runtime.metrics import DURATION_BUCKETS_S, LATENCY_BUCKETS_S, HttpMetrics
from state.messages import RunStatus
from state.phases import RunState

GROUP_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

_GAUGES: tuple[tuple[str, str, Callable[[RunStatus], float]], ...] = (
    ("run_document_version", "Version of the published run document.", lambda status: status.version),
    ("run_epoch", "Number of the epoch.", lambda status: status.epoch),
    ("run_step", "The next step to be applied.", lambda status: status.step),
    ("run_attempt", "Attempts at this step that came to no result.", lambda status: status.attempt),
    ("run_members", "Clients that are members.", lambda status: status.member_count),
    ("run_members_ready", "Members that hold the model and the data.", lambda status: status.ready_count),
    ("run_tokens_per_second", "Tokens applied per second, over the last rounds.", lambda status: status.tokens_per_s),
    ("run_carried_batches", "Batches that wait for another attempt.", lambda status: status.carried_batches),
    ("run_quarantined_intervals", "Intervals of batches set aside.", lambda status: len(status.quarantined)),
    ("coordinator_journal_bytes", "Bytes that the journal takes up.", lambda status: status.journal_bytes),
)
_COUNTERS: tuple[tuple[str, str, Callable[[RunStatus], float]], ...] = (
    ("run_data_indices_applied", "Data indices applied since step 1.", lambda status: status.data_indices_applied),
    ("run_tokens_applied", "Tokens applied since step 1.", lambda status: status.tokens_applied),
)
_LIVE_GAUGES: tuple[tuple[str, str, Callable[[CoordinatorService, LongPolls], float]], ...] = (
    ("coordinator_accepting", "1 while messages are accepted.", lambda service, _: service.accepting),
    ("coordinator_blob_bytes", "Bytes of results and checkpoints held.", lambda service, _: service.blobs.total_bytes),
    ("coordinator_queued_stimuli", "Messages that wait to be handled.", lambda service, _: service.queued_count),
    ("coordinator_long_polls_waiting", "Requests that wait for news.", lambda _, polls: polls.count),
)


class RunCollector:
    """The run as it stands at a scrape. The status is made anew only when the run has changed."""

    def __init__(self) -> None:
        self._watched: tuple[CoordinatorService, LongPolls] | None = None
        self._run: Run | None = None
        self._status: RunStatus | None = None

    def watch(self, service: CoordinatorService, polls: LongPolls) -> None:
        """Show this service's run from now on."""
        self._watched = service, polls

    def describe(self) -> Iterator[Metric]:
        """Yield every metric, without values."""
        yield InfoMetricFamily("epochal_run", "Which run the coordinator serves.", labels=("run_id",))
        yield GaugeMetricFamily("epochal_run_phase", "1 for the run's phase, 0 for the others.", labels=("phase",))
        yield GaugeMetricFamily("epochal_run_loss", "Mean loss of the last applied step, in nats per token.")
        for name, text, _ in (*_GAUGES, *_LIVE_GAUGES):
            yield GaugeMetricFamily(f"epochal_{name}", text)
        for name, text, _ in _COUNTERS:
            yield CounterMetricFamily(f"epochal_{name}", text)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its values now; nothing before there is a service to watch."""
        if self._watched is None:
            return
        service, polls = self._watched
        status = self.status_of(service)
        values: dict[str, float | None] = {f"epochal_{name}": read(status) for name, _, read in (*_GAUGES, *_COUNTERS)}
        values |= {f"epochal_{name}": read(service, polls) for name, _, read in _LIVE_GAUGES}
        values["epochal_run_loss"] = status.loss
        for metric in self.describe():
            if isinstance(metric, InfoMetricFamily):
                metric.add_metric((status.run_id,), {})
            elif metric.name == "epochal_run_phase":
                for phase in RunState:
                    metric.add_sample(metric.name, {"phase": phase.value}, int(phase is status.run_state))
            elif (value := values[metric.name]) is not None:
                suffix = "_total" if isinstance(metric, CounterMetricFamily) else ""
                metric.add_sample(metric.name + suffix, {}, value)
            yield metric

    def status_of(self, service: CoordinatorService) -> RunStatus:
        """Return the status as of the last change of the run."""
        if self._status is None or self._run is not service.run:
            self._run, self._status = service.run, service.status()
        return self._status


class CoordinatorMetrics:
    """A coordinator's metrics, in one registry. They measure from `watch` on."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.http = HttpMetrics(registry)
        self.run = RunCollector()
        registry.register(self.run)
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
        self._results = Counter("epochal_run_results_applied", "Clients' results applied.", registry=registry)
        self._group = Histogram(
            "epochal_coordinator_group_commit_stimuli",
            "Messages kept by one write to the journal.",
            registry=registry,
            buckets=GROUP_BUCKETS,
        )
        self._append = Histogram(
            "epochal_coordinator_journal_append_duration_seconds",
            "Time to write a record to the journal and to sync it to the disk.",
            registry=registry,
            buckets=LATENCY_BUCKETS_S,
        )
        self._now_s: Callable[[], float] = lambda: 0.0
        self._phase_since_s = 0.0
        self._trained_s: float | None = None

    def watch(self, service: CoordinatorService, polls: LongPolls) -> None:
        """Measure this service from now on, and show its run."""
        self._now_s = service.now_s
        self._phase_since_s = service.now_s()
        self.run.watch(service, polls)
        service.watch(self._observe)

    def _observe(self, event: ServiceEvent) -> None:
        match event:
            case GroupKept(stimulus_count=count, append_s=append_s):
                self._group.observe(count)
                self._append.observe(append_s)
            case PhaseChanged(before=before):
                now_s = self._now_s()
                self._phase_ended(before, now_s - self._phase_since_s)
                self._phase_since_s = now_s
            case OutcomeDecided(outcome=outcome):
                self._rounds.labels("empty" if outcome is None else "applied").inc()
                self._results.inc(0 if outcome is None else len(outcome.entries))

    def _phase_ended(self, phase: RunState, duration_s: float) -> None:
        self._phase_duration.labels(phase.value).observe(duration_s)
        if phase is RunState.ROUND_TRAIN:
            self._trained_s = duration_s
        elif phase is RunState.ROUND_WITNESS and self._trained_s is not None:
            self._round_duration.observe(self._trained_s + duration_s)
            self._trained_s = None
