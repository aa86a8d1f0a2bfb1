"""The coordinator's figures in Prometheus's text format (https://prometheus.io/docs/instrumenting/exposition_formats/)."""

from collections import Counter

from coordinator.service import CoordinatorService
from state.phases import RunState


def metrics_text(service: CoordinatorService, waiting_count: int, answers: Counter[tuple[str, str, int]]) -> str:
    """Every metric, with its help and type.

    Args:
        service: what is measured.
        waiting_count: requests that wait for news.
        answers: answers given by (method, route, status).
    """
    status = service.status()
    lines: list[str] = []

    def gauge(name: str, help_text: str, value: float, kind: str = "gauge") -> None:
        lines.extend((f"# HELP epochal_{name} {help_text}", f"# TYPE epochal_{name} {kind}", f"epochal_{name} {value}"))

    gauge("accepting", "1 while messages are accepted.", int(service.accepting))
    gauge("document_version", "Version of the published run document.", status.version, "counter")
    gauge("epoch", "The epoch.", status.epoch)
    gauge("step", "The next step to be applied.", status.step)
    gauge("attempt", "Tries of this step so far.", status.attempt)
    gauge("members", "Members.", status.member_count)
    gauge("members_ready", "Members that hold model and data.", status.ready_count)
    gauge("data_indices_applied_total", "Data indices that outcomes applied.", status.data_indices_applied, "counter")
    gauge("tokens_applied_total", "Tokens that outcomes applied.", status.tokens_applied, "counter")
    gauge("tokens_per_second", "Tokens applied per second, over the last rounds.", status.tokens_per_s)
    gauge("carried_batches", "Batches that wait to be tried again.", status.carried_batches)
    gauge("quarantined_intervals", "Intervals of batches that were set aside.", len(status.quarantined))
    gauge("blob_bytes", "Bytes of results and checkpoints.", status.blob_bytes)
    gauge("journal_bytes", "Bytes of the journal.", status.journal_bytes)
    gauge("queued_stimuli", "Messages that wait to be handled.", service.queued_count)
    gauge("long_polls", "Requests that wait for news.", waiting_count)
    lines.extend(("# HELP epochal_phase 1 for the run's phase.", "# TYPE epochal_phase gauge"))
    lines += [f'epochal_phase{{phase="{phase.value}"}} {int(phase is status.run_state)}' for phase in RunState]
    lines.extend(("# HELP epochal_http_answers_total Answers given.", "# TYPE epochal_http_answers_total counter"))
    lines += [
        f'epochal_http_answers_total{{method="{method}",route="{route}",status="{status}"}} {count}'
        for (method, route, status), count in sorted(answers.items())
    ]
    return "\n".join(lines) + "\n"
