"""The report of a local run, and the comparison of the replica digests that its clients logged."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a local run. It passed if `problems` is empty. Losses are in nats per token.

    Attributes:
        held_out_loss_first, held_out_loss_last: of the first and the last evaluation on text that nobody trained on.
        evaluations: number of checkpoints in the run's history of evaluations.
        exported_to: folder with the model as `transformers` loads it; None for a model that it does not know.
    """

    clients: int
    rounds: int
    epochs: int
    tokens: int
    loss_first: float | None
    loss_last: float | None
    held_out_loss_first: float | None
    held_out_loss_last: float | None
    evaluations: int
    unigram_entropy: float
    exported_to: str | None
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
