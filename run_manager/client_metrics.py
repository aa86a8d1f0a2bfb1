"""A client's Prometheus metrics, counted from its events."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from epochal.coordinator_client.session import CoordinatorFound, CoordinatorLost, Joined, RequestRepeated, RestBegan
from epochal.run_manager.events import (
    BlobFetched,
    BlobSent,
    DocumentArrived,
    Event,
    OutcomeMerged,
    ReplicaDistrusted,
    ReplicaHeld,
    ResultSettled,
    RoundFailed,
    RoundTrained,
    StepEntered,
    StepRefused,
)
from epochal.run_manager.step_state_machine import StepName
from epochal.runtime.metrics.metrics_registry import DURATION_BUCKETS_S


class ClientMetrics:
    """A client's metrics, in one registry. `observe` is an `Observer`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"epochal_client_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"epochal_client_{name}", text, labels, registry=registry)

        def duration(name: str, text: str) -> Histogram:
            name = f"epochal_client_{name}_duration_seconds"
            return Histogram(name, text, registry=registry, buckets=DURATION_BUCKETS_S)

        self._joins = counter("joins", "Sessions that this client has begun.")
        self._reachable = gauge("coordinator_reachable", "1 while the coordinator answers.")
        self._repeated = counter("requests_repeated", "Requests made again, by why the last one failed.", "reason")
        self._version = gauge("document_version", "Version of the newest run document.")
        self._steps = gauge("step", "1 for the step that the client takes, 0 for the others.", "step")
        self._refused = counter("steps_refused", "Steps that the coordinator refused, by reason.", "reason")
        self._delivered = counter("rounds_delivered", "Rounds for which this client delivered a result.")
        self._failed = counter("rounds_failed", "Rounds that this client reported as failed, by reason.", "reason")
        self._results = counter("results_settled", "Results of this client, applied to the model or lost.", "fate")
        self._batches = counter("batches_trained", "Batches of the results that were delivered.")
        self._tokens = counter("tokens_trained", "Tokens of the results that were delivered.")
        self._loss = gauge("loss", "Mean loss of the last round trained, in nats per token.")
        self._train = duration("train", "Time to train a round, waits for data included.")
        self._data_wait = duration("data_wait", "Time in a round that the trainer waited for samples.")
        self._waited = counter("data_wait_seconds", "Time that the trainer waited for samples, by cause.", "cause")
        self._ahead = counter("samples_ahead", "Samples fetched ahead of their round, used or thrown away.", "fate")
        self._merge = duration("merge", "Time to merge a round's results into the replica.")
        self._upload = duration("upload", "Time to upload a result or checkpoint.")
        self._download = duration("download", "Time to download a result or checkpoint.")
        self._uploaded = counter("uploaded_bytes", "Bytes of results and checkpoints uploaded.")
        self._downloaded = counter("downloaded_bytes", "Bytes of results and checkpoints downloaded.")
        self._rests = counter("rests", "Times that the coordinator gave no work because rounds were missed.")
        self._replica = gauge("replica_step", "The step of the replica that is held.")
        self._distrusted = counter("replicas_distrusted", "Replicas thrown away and rebuilt.")
        self._enter(StepName.OBSERVING)

    def observe(self, event: Event) -> None:
        """Count an event."""
        match event:
            case Joined():
                self._joins.inc()
                self._reachable.set(1)
            case CoordinatorLost():
                self._reachable.set(0)
            case CoordinatorFound():
                self._reachable.set(1)
            case RequestRepeated(reason=reason):
                self._repeated.labels(reason).inc()
            case RestBegan():
                self._rests.inc()
            case DocumentArrived(document=document):
                self._version.set(document.version)
            case StepEntered(step_name=name):
                self._enter(name)
            case StepRefused(kind=kind):
                self._refused.labels(kind).inc()
            case RoundTrained():
                self._count_round(event)
            case RoundFailed(kind=kind):
                self._failed.labels(kind).inc()
            case ResultSettled(is_applied=is_applied):
                self._results.labels("applied" if is_applied else "lost").inc()
            case OutcomeMerged(merge_s=merge_s):
                self._merge.observe(merge_s)
            case BlobSent(size_bytes=size_bytes, duration_s=duration_s):
                self._upload.observe(duration_s)
                self._uploaded.inc(size_bytes)
            case BlobFetched(size_bytes=size_bytes, duration_s=duration_s):
                self._download.observe(duration_s)
                self._downloaded.inc(size_bytes)
            case ReplicaHeld(step=step):
                self._replica.set(step)
            case ReplicaDistrusted():
                self._distrusted.inc()

    def _count_round(self, event: RoundTrained) -> None:
        self._delivered.inc()
        self._batches.inc(event.batch_count)
        self._tokens.inc(event.token_count)
        self._train.observe(event.train_s)
        self._data_wait.observe(event.data_wait_s)
        for cause, seconds in (
            ("fetching", event.fetching_s),
            ("decoding", event.decoding_s),
            ("packing", event.packing_s),
        ):
            self._waited.labels(cause).inc(seconds)
        self._ahead.labels("used").inc(event.ahead_samples)
        self._ahead.labels("thrown_away").inc(event.dropped_samples)
        if event.loss is not None:
            self._loss.set(event.loss)

    def _enter(self, name: str) -> None:
        for step in StepName:
            self._steps.labels(step.value).set(step == name)
