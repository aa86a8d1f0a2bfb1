"""Grafana's dashboard of a run, `deploy/grafana/epochal.json`: panels over metrics that exist (`docs/metrics.md`).

Every coordinator of a run shows the same run, so its figures are maxima over them; what each process counts is summed,
or shown for each.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).resolve().parent.parent / "deploy/grafana/epochal.json"
SCHEMA_VERSION = 39
"""Of Grafana's dashboards, as Grafana 10.4 and later read them."""
WIDTH = 24
RUN = '{job=~"$coordinators"}'
DATA = '{job=~"$data_servers"}'
CLIENT = '{job=~"$clients"}'
RATE = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel: queries with their legends, and how values are shown.

    Attributes:
        unit: one of Grafana's names of units.
        kind: "timeseries" or "stat".
        width: of `WIDTH` columns.
        about: explains the figures.
    """

    title: str
    about: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8


def _quantiles(metric: str, where: str, by: str = "") -> tuple[tuple[str, str], ...]:
    labels, legend = (f"le, {by}", f"{{{{{by}}}}} ") if by else ("le", "")
    return tuple(
        (f"histogram_quantile({part}, sum by ({labels}) (rate({metric}_bucket{where}[{RATE}])))", f"{legend}{name}")
        for part, name in ((0.5, "half of them"), (0.95, "95 %"))
    )


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Run",
        (
            Panel(
                "Phase",
                "The phase in which the run is.",
                ((f"max by (phase) (epochal_run_phase{RUN}) == 1", "{{phase}}"),),
                kind="stat",
                width=6,
            ),
            Panel(
                "Step", "The next step to be applied.", ((f"max(epochal_run_step{RUN})", "step"),), kind="stat", width=3
            ),
            Panel("Epoch", "Number of the epoch.", ((f"max(epochal_run_epoch{RUN})", "epoch"),), kind="stat", width=3),
            Panel(
                "Tokens",
                "Tokens applied since step 1.",
                ((f"max(epochal_run_tokens_applied_total{RUN})", "tokens"),),
                kind="stat",
                width=4,
            ),
            Panel(
                "Quarantined batches",
                "Batches that left the run.",
                ((f"max(epochal_run_quarantined_batches{RUN})", "batches"),),
                kind="stat",
                width=4,
            ),
            Panel(
                "Coordinators that answer",
                "As Prometheus reads them.",
                ((f"sum(up{RUN})", "up"),),
                kind="stat",
                width=4,
            ),
            Panel(
                "Loss",
                "Nats per token: training, as the clients say, and each evaluation that was recorded.",
                (
                    (f"max(epochal_run_loss{RUN})", "training"),
                    (f"max by (name) (epochal_run_evaluation_loss{RUN})", "{{name}}"),
                ),
                width=12,
            ),
            Panel(
                "Tokens per second",
                "Tokens applied in the last rounds.",
                ((f"max(epochal_run_tokens_per_second{RUN})", "tokens/s"),),
                width=12,
            ),
            Panel(
                "Members",
                "Clients that are members; ready: with model and data; resting: without work, as they missed rounds.",
                (
                    (f"max(epochal_run_members{RUN})", "members"),
                    (f"max(epochal_run_members_ready{RUN})", "ready"),
                    (f"max(epochal_run_members_resting{RUN})", "resting"),
                ),
            ),
            Panel(
                "Batches that wait",
                "Carried: of rounds that did not apply them; waiting: they failed and are tried alone.",
                (
                    (f"max(epochal_run_carried_batches{RUN})", "carried"),
                    (f"max(epochal_run_waiting_batches{RUN})", "waiting"),
                    (f"max(epochal_run_quarantined_batches{RUN})", "in quarantine"),
                ),
            ),
            Panel(
                "Rounds a minute",
                "Rounds that ended: applied, or empty because nothing was.",
                ((f"60 * max by (outcome) (rate(epochal_run_rounds_total{RUN}[{RATE}]))", "{{outcome}}"),),
            ),
            Panel(
                "Time of a round",
                "From RoundTrain to the end of RoundWitness.",
                _quantiles("epochal_run_round_duration_seconds", RUN),
                "s",
                width=12,
            ),
            Panel(
                "Time in each phase",
                "Of the phases that ended.",
                _quantiles("epochal_run_phase_duration_seconds", RUN, "phase"),
                "s",
                width=12,
            ),
        ),
    ),
    (
        "Clients (those with --metrics-port)",
        (
            Panel(
                "Training a round",
                "Waits for data included.",
                _quantiles("epochal_client_train_duration_seconds", CLIENT),
                "s",
            ),
            Panel(
                "Waiting for data in a round",
                "Time that the trainer waited for samples.",
                _quantiles("epochal_client_data_wait_duration_seconds", CLIENT),
                "s",
            ),
            Panel(
                "Merging a round",
                "Merging results into the replica.",
                _quantiles("epochal_client_merge_duration_seconds", CLIENT),
                "s",
            ),
            Panel(
                "Uploads",
                "Of a result or a checkpoint.",
                _quantiles("epochal_client_upload_duration_seconds", CLIENT),
                "s",
            ),
            Panel(
                "Downloads",
                "Of a result or a checkpoint.",
                _quantiles("epochal_client_download_duration_seconds", CLIENT),
                "s",
            ),
            Panel(
                "Bytes of results and checkpoints",
                "All clients together.",
                (
                    (f"sum(rate(epochal_client_uploaded_bytes_total{CLIENT}[{RATE}]))", "up"),
                    (f"sum(rate(epochal_client_downloaded_bytes_total{CLIENT}[{RATE}]))", "down"),
                ),
                "Bps",
            ),
            Panel(
                "Results",
                "Of the clients, applied to the model or lost, and rounds that they reported as failed.",
                (
                    (f"sum by (fate) (rate(epochal_client_results_settled_total{CLIENT}[{RATE}]))", "{{fate}}"),
                    (
                        f"sum by (reason) (rate(epochal_client_rounds_failed_total{CLIENT}[{RATE}]))",
                        "failed: {{reason}}",
                    ),
                ),
                "ops",
            ),
            Panel(
                "Waits for data by cause",
                "Seconds waited in each second, all clients together.",
                ((f"sum by (cause) (rate(epochal_client_data_wait_seconds_total{CLIENT}[{RATE}]))", "{{cause}}"),),
                "s",
            ),
            Panel(
                "Requests made again",
                "By why the last one failed.",
                ((f"sum by (reason) (rate(epochal_client_requests_repeated_total{CLIENT}[{RATE}]))", "{{reason}}"),),
                "ops",
            ),
        ),
    ),
    (
        "Coordinators",
        (
            Panel(
                "Requests",
                "By the class of their answers.",
                ((f"sum by (status) (rate(epochal_http_request_duration_seconds_count{RUN}[{RATE}]))", "{{status}}"),),
                "reqps",
            ),
            Panel(
                "Refusals",
                "By the problem's type.",
                ((f"sum by (reason) (rate(epochal_http_refusals_total{RUN}[{RATE}]))", "{{reason}}"),),
                "reqps",
            ),
            Panel("Connections", "Open ones.", ((f"sum by (peer) (epochal_http_connections{RUN})", "{{peer}}"),)),
            Panel(
                "Time to keep a record",
                "To write it to the journal and to sync it.",
                _quantiles("epochal_coordinator_journal_append_duration_seconds", RUN),
                "s",
            ),
            Panel(
                "Kept bytes",
                "Of the journal, and of results and checkpoints.",
                (
                    (f"max(epochal_coordinator_journal_bytes{RUN})", "journal"),
                    (f"max(epochal_coordinator_blob_bytes{RUN})", "blobs"),
                ),
                "bytes",
            ),
            Panel(
                "Bytes in and out",
                "Bodies of requests and of answers.",
                (
                    (f"sum(rate(epochal_http_request_body_bytes_total{RUN}[{RATE}]))", "in"),
                    (f"sum(rate(epochal_http_response_body_bytes_total{RUN}[{RATE}]))", "out"),
                ),
                "Bps",
            ),
            Panel(
                "Waiting",
                "Messages that wait to be handled, and requests that wait for news.",
                (
                    (f"sum(epochal_coordinator_queued_stimuli{RUN})", "messages"),
                    (f"sum(epochal_coordinator_long_polls_waiting{RUN})", "requests for news"),
                    (f"sum(epochal_coordinator_checks_waiting{RUN})", "results to be checked"),
                ),
            ),
            Panel(
                "Viewers",
                "Browsers and followers that receive the run's events; dropped: those that read too slowly.",
                (
                    (f"sum(epochal_coordinator_viewers{RUN})", "viewers"),
                    (f"sum(increase(epochal_coordinator_viewers_dropped_total{RUN}[{RATE}]))", "dropped"),
                ),
            ),
            Panel(
                "Sent to viewers",
                "Bytes of events, all viewers together.",
                ((f"sum(rate(epochal_coordinator_viewer_sent_bytes_total{RUN}[{RATE}]))", "events"),),
                "Bps",
            ),
            Panel(
                "Made for viewers",
                "Each made once, for any number of viewers: frames of events, and pages of the history.",
                (
                    (f"sum(rate(epochal_coordinator_viewer_frames_total{RUN}[{RATE}]))", "frames"),
                    (f"sum(rate(epochal_coordinator_history_pages_encoded_total{RUN}[{RATE}]))", "pages"),
                ),
                "ops",
            ),
            Panel(
                "Processor",
                "Cores used by each process.",
                ((f"rate(process_cpu_seconds_total{RUN}[{RATE}])", "{{instance}}"),),
            ),
            Panel(
                "Memory",
                "Resident, of each process.",
                ((f"process_resident_memory_bytes{RUN}", "{{instance}}"),),
                "bytes",
            ),
        ),
    ),
    (
        "Data servers",
        (
            Panel(
                "Samples",
                "Sent by each server.",
                ((f"rate(epochal_data_server_samples_total{DATA}[{RATE}])", "{{instance}}"),),
                "ops",
            ),
            Panel(
                "Bytes",
                "Of samples, sent by each server.",
                ((f"rate(epochal_data_server_sent_bytes_total{DATA}[{RATE}])", "{{instance}}"),),
                "Bps",
            ),
            Panel(
                "Time of a request",
                "To its answer's last byte.",
                _quantiles("epochal_data_server_request_duration_seconds", DATA),
                "s",
            ),
            Panel(
                "Connections",
                "Open ones of each server.",
                ((f"epochal_data_server_connections_open{DATA}", "{{instance}}"),),
            ),
            Panel(
                "Behind the coordinator",
                "Time since it fell silent.",
                ((f"epochal_data_server_follower_lag_seconds{DATA}", "{{instance}}"),),
                "s",
            ),
            Panel(
                "Requests that wait", "For memory.", ((f"epochal_data_server_requests_waiting{DATA}", "{{instance}}"),)
            ),
        ),
    ),
)


def dashboard() -> str:
    """Return the dashboard as JSON, as Grafana imports it."""
    variables = [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        _job("coordinators", "Coordinators", "epochal_run_step", "epochal-coordinator.*"),
        _job("data_servers", "Data servers", "epochal_data_server_document_version", ".*"),
        _job("clients", "Clients", "epochal_client_replica_step", ".*"),
    ]
    made = {
        "uid": "epochal-run",
        "title": "Epochal run",
        "tags": ["epochal"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": list(_panels()),
    }
    return json.dumps(made, indent=1) + "\n"


def _job(name: str, label: str, metric: str, everything: str) -> dict[str, Any]:
    """Return a variable of the jobs whose targets show a metric."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": {"query": f"label_values({metric}, job)", "refId": name},
        "refresh": 2,
        "includeAll": True,
        "allValue": everything,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, top, last_height = 1, 0, 0
    for title, panels in ROWS:
        yield {"id": number, "type": "row", "title": title, "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1}}
        number, top, left = number + 1, top + 1, 0
        for panel in panels:
            height = 4 if panel.kind == "stat" else 8
            if left + panel.width > WIDTH:
                top, left = top + last_height, 0
            yield _panel(panel, number, {"x": left, "y": top, "w": panel.width, "h": height})
            number, left, last_height = number + 1, left + panel.width, height
        top += last_height


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    is_phase = panel.title == "Phase"
    targets = [
        {"refId": chr(ord("A") + at), "datasource": source, "expr": query, "legendFormat": legend}
        for at, (query, legend) in enumerate(panel.queries)
    ]
    made = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": targets,
    }
    if panel.kind == "stat":
        shown = "name" if is_phase else "value"
        made["options"] = {"textMode": shown, "colorMode": "none", "reduceOptions": {"calcs": ["lastNotNull"]}}
    return made
