"""The report of a local run: its numbers, and every check that failed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coordinator.audit import AuditReport
from epochal.testnet.demo_data import DemoData
from state.messages import RunStatus

WELL_BELOW_UNIGRAM = 0.85
"""The last loss must be below this share of the data's unigram entropy."""
LOSS_WINDOW = 3
"""Rounds over which the first and the last loss are averaged."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a local run. It passed if `problems` is empty. Losses are in nats per token."""

    clients: int
    rounds: int
    epochs: int
    tokens: int
    loss_first: float | None
    loss_last: float | None
    unigram_entropy: float
    replicas_identical: bool
    replica_digests_compared: int
    duplicates: int
    missing: int
    quarantined: int
    unapplied: int
    replay_identical: bool
    recomputed_steps: int
    killed_at_step: int | None
    joined_at_step: int | None
    training_s: float
    wall_s: float
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Course:
    """The events of a local run, and how long it took.

    Attributes:
        computes: whether the trainer computes, so that the loss must fall.
        client_logs: one log file for each client that was started.
        problems: what went wrong on the way.
    """

    computes: bool
    epochs: int
    killed_at_step: int | None
    joined_at_step: int | None
    training_s: float
    wall_s: float
    client_logs: Sequence[Path]
    problems: Sequence[str]


def report_of(course: Course, status: RunStatus, data: DemoData, audit: AuditReport) -> Report:
    """Compare what clients logged, what the audit found and what the loss should be."""
    losses = [loss for _, loss in status.loss_history]
    first, last = _mean(losses[:LOSS_WINDOW]), _mean(losses[-LOSS_WINDOW:])
    compared, differing = compare_digests(course.client_logs)
    problems = [*course.problems, *audit.problems]
    problems += [f"replica {step} differs between clients" for step in differing]
    if not compared:
        problems.append("no replica digests were logged")
    if course.computes and (last is None or last >= WELL_BELOW_UNIGRAM * data.unigram_entropy):
        problems.append(f"the loss ended at {last}, not well below the unigram entropy {data.unigram_entropy:.3f}")
    return Report(
        clients=len(course.client_logs),
        rounds=audit.rounds,
        epochs=course.epochs,
        tokens=status.tokens_applied,
        loss_first=first,
        loss_last=last,
        unigram_entropy=data.unigram_entropy,
        replicas_identical=bool(compared) and not differing and bool(audit.replicas_identical),
        replica_digests_compared=compared,
        duplicates=audit.duplicates,
        missing=audit.missing,
        quarantined=audit.quarantined,
        unapplied=audit.unapplied,
        replay_identical=audit.replay_identical,
        recomputed_steps=audit.recomputed_steps or 0,
        killed_at_step=course.killed_at_step,
        joined_at_step=course.joined_at_step,
        training_s=round(course.training_s, 2),
        wall_s=round(course.wall_s, 2),
        problems=tuple(problems),
    )


def compare_digests(log_paths: Sequence[Path]) -> tuple[int, list[int]]:
    """Return the number of replica digests in the clients' logs, and the steps at which they differ."""
    by_step: dict[int, set[str]] = {}
    count = 0
    for path in log_paths:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a killed client's last line may be cut
            if isinstance(event, dict) and event.get("event") == "replica_held":
                count += 1
                by_step.setdefault(event["step"], set()).add(event["replica_digest"])
    return count, sorted(step for step, digests in by_step.items() if len(digests) > 1)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
