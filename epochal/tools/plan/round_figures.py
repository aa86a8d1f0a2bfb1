"""The figures of played rounds: the parts of a round along what determined its end, and each group's own."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from epochal.state.intervals import total_batches
from epochal.state.wire import ClientId
from epochal.tools.plan.plans import PARTS, GroupPlan
from epochal.tools.plan.played_client import PlayedClient
from epochal.tools.plan.played_coordinator import PlayedRound
from epochal.tools.plan.played_line import Stages
from epochal.tools.plan.played_run import PlayedRun, Scale
from epochal.tools.plan.scenario import ClientGroup


def applied_batches(measured: Sequence[PlayedRound], clients: Mapping[ClientId, PlayedClient]) -> float:
    """Return the number of batches that rounds applied, with those that played ones represent."""
    total = 0.0
    for found in measured:
        current = found.run.round
        assert current is not None
        for client_id in current.results.verified:
            total += total_batches(current.tasks.plan.assignments[client_id]) * clients[client_id].result_copies
    return total


def path_of(found: PlayedRound, clients: Mapping[ClientId, PlayedClient]) -> dict[str, float]:
    """Return the parts of a round, along what determined its end: the last result, then the quorum's last witness."""
    current = found.run.round
    assert current is not None
    delivered = [clients[client_id].stages[found.step] for client_id in current.results.verified]
    last = max(delivered, key=lambda stages: stages.verified_s or 0.0)
    parts = dict.fromkeys(PARTS, 0.0)
    times = (
        ("messages", last.heard_s),
        ("download", last.fetched_s),
        ("merge", last.held_s),
        ("training", None if last.trained_s is None else last.trained_s - last.data_s),
        ("data", last.trained_s),
        ("encoding", last.encoded_s),
        ("upload", last.sent_s),
        ("check", last.verified_s),
    )
    before_s = found.started_s
    for name, time_s in times:
        if time_s is not None and time_s > before_s:
            parts[name] += time_s - before_s
            before_s = time_s
    if current.missing.pending:
        parts["waiting"] += found.ended_s - before_s
        return parts
    received = sorted(
        stages.received_s
        for witness in current.tasks.plan.witnesses
        if (stages := clients[witness].stages.get(found.step)) is not None and stages.received_s is not None
    )
    deciding = [time_s for time_s in received if time_s <= found.ended_s][: current.tasks.plan.quorum]
    if deciding and deciding[-1] > before_s:
        parts["download"] += deciding[-1] - before_s
        before_s = deciding[-1]
    parts["messages"] += max(0.0, found.ended_s - before_s)
    return parts


def group_plans(
    groups: Sequence[ClientGroup],
    scale: Scale,
    played: PlayedRun,
    measured: Sequence[PlayedRound],
    round_s: float,
) -> tuple[GroupPlan, ...]:
    plans, start = [], 0
    for group, count in zip(groups, scale.counts, strict=True):
        members = played.clients[start : start + max(1, count)]
        start += len(members)
        plans.append(_group(group, members, measured, round_s))
    return tuple(plans)


def _group(
    group: ClientGroup, members: Sequence[PlayedClient], measured: Sequence[PlayedRound], round_s: float
) -> GroupPlan:
    found = [
        (member, stages)
        for member in members
        for one in measured[:-1] or measured
        if (stages := member.stages.get(one.step)) is not None
    ]

    def of(seconds: Callable[[Stages], float]) -> float:
        return median([seconds(stages) for _, stages in found] or [0.0])

    assigned = delivered = 0
    for one in measured:
        current = one.run.round
        assert current is not None
        for member in members:
            if current.tasks.plan.assignments.get(member.client_id):
                assigned += 1
                delivered += member.client_id in current.results.verified
    parts = {
        "training_s": of(lambda s: _between(s.held_s, s.trained_s) - s.data_s),
        "data_s": of(lambda s: s.data_s),
        "encoding_s": of(lambda s: _between(s.trained_s, s.encoded_s)),
        "upload_s": of(lambda s: _between(s.encoded_s, s.sent_s)),
        "check_s": of(lambda s: _between(s.sent_s, s.verified_s)),
        "download_s": of(lambda s: _between(s.heard_s, s.fetched_s) + _between(s.verified_s, s.received_s)),
        "merge_s": of(lambda s: _between(s.fetched_s, s.held_s)),
    }
    return GroupPlan(
        group=group,
        batches=sum(stages.batches * one.result_copies / one.copies for one, stages in found) / max(1, len(found)),
        waiting_s=max(0.0, round_s - sum(parts.values())),
        sent_bytes=of(lambda s: s.sent_bytes),
        received_bytes=of(lambda s: s.received_bytes),
        warm_up_s=median([member.warm_up_s or math.inf for member in members]),
        delivered_part=delivered / assigned if assigned else 1.0,
        **parts,
    )


def _between(start_s: float | None, end_s: float | None) -> float:
    return 0.0 if start_s is None or end_s is None else max(0.0, end_s - start_s)
