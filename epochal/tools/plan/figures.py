"""The figures of played rounds: the parts of a round along what determined its end, each group's own, and the bytes."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from epochal.coordinator.blobs.room import revealed_room, room_needed
from epochal.state.config.state_file import StateFile
from epochal.state.messages.history_rows import ClientFigures
from epochal.state.round_model import DOCUMENT_BYTES, ENTRY_BYTES, MESSAGE_BYTES, PARTS, REPORT_BYTES, RoundModel
from epochal.state.shown.critical_path import PartKind, path_through
from epochal.state.wire import ClientId
from epochal.tools.plan.plans import GroupPlan, Machines
from epochal.tools.plan.played_run import PlayedRound, PlayedRun, Stages
from epochal.tools.plan.sizes import base_sizes

PART_OF: dict[PartKind, str] = {
    "document": "messages",
    "replica": "download",
    "train": "training",
    "encode": "encoding",
    "attest": "messages",
    "missing": "waiting",
}
"""The part of a plan to which each part of a round's time belongs, where it has another name."""
OWN_TIMES = {"training": "train_s", "data": "data_s", "encoding": "encode_s", "upload": "upload_s", "check": "check_s"}
"""The time of a client's row that is its own time for a part of its delivery."""
BLANK: dict[str, Any] = {"witness": False, "detail": "", "result_bytes": 0, "tokens": 0}
BLANK |= dict.fromkeys(("committed_s", "fetching_s", "decoding_s", "packing_s", "loss"))
"""What a played client's row does not say; a witness fetches no more than the others."""
MOMENTS_BYTES = 8
"""Of a parameter's two moments, which clients reveal where they keep them and results are computed again."""


def path_of(found: PlayedRound) -> dict[str, float]:
    """Return the parts of a round along its critical path, which is that of the page's explanation.

    With `merge.delay` the parts of a client's work lie beside one another, and are longer than the round together.
    """
    parts, last = dict.fromkeys(PARTS, 0.0), last_delivered(found)
    if found.current.tasks.starts is not None:
        return parts | _own_parts(last)
    rows = [_row(found, client_id, stages) for client_id, stages in found.stages.items()]
    total_s = found.ended_s - found.started_s
    train_s = total_s if found.current.missing.pending else last.delivered.verified_s - found.started_s
    for span in path_through(rows, train_s, total_s, rows):
        parts[PART_OF.get(span.kind, span.kind)] += span.seconds
    named_s = min(parts["download"], last.published_s - last.heard_s)
    awaited_s = min(parts["messages"], last.awaited_s)
    parts["update"] = named_s + awaited_s
    parts["download"] -= named_s
    parts["messages"] -= awaited_s
    return parts


def _own_parts(stages: Stages) -> dict[str, float]:
    """Return the time of each part of a client's round."""
    found, one = dict.fromkeys(OWN_TIMES, 0.0), stages.delivery
    if one is not None:
        found = {
            "training": one.trained_s - one.data_s - one.held_s,
            "data": one.data_s,
            "encoding": one.encoded_s - one.trained_s,
            "upload": one.sent_s - max(one.encoded_s, stages.sends_from_s),
            "check": one.verified_s - one.sent_s,
        }
    return found | {
        "merge": stages.held_s - stages.fetched_s,
        "update": stages.published_s - stages.heard_s + stages.awaited_s,
        "download": stages.fetched_s - stages.published_s,
    }


def _row(found: PlayedRound, client_id: ClientId, stages: Stages) -> ClientFigures:
    """Return a client's round as the coordinator's history has it."""
    one, is_applied, own = stages.delivery, client_id in found.current.results.verified, _own_parts(stages)
    return ClientFigures(
        client_id=client_id,
        batches=stages.batches,
        fate="applied" if is_applied else "missing" if stages.batches else "idle",
        delivered_s=one.verified_s - found.started_s if one is not None and is_applied else None,
        attested_s=None if stages.attests_s is None else stages.attests_s - found.started_s,
        replica_s=stages.held_s - stages.heard_s,
        download_s=stages.fetched_s - stages.heard_s,
        merge_s=own["merge"],
        **(BLANK | {time: own[part] for part, time in OWN_TIMES.items()}),
    )


def last_delivered(found: PlayedRound) -> Stages:
    """Return the stages of the client whose result was checked last, of those that count."""
    delivered = [found.stages[client_id] for client_id in found.current.results.verified]
    return max(delivered, key=lambda stages: stages.delivered.verified_s)


def applied_batches(played: PlayedRun, found: PlayedRound) -> float:
    """Return the number of batches that a round applied, with those that played ones represent."""
    applied = [found.stages[client_id] for client_id in found.current.results.verified]
    return sum(played.scale.result_copies[stages.group] * stages.batches for stages in applied)


def group_plan(played: PlayedRun, number: int, measured: Sequence[PlayedRound], round_s: float) -> GroupPlan:
    """Return the figures of the group with this number."""
    found = [stages for one in measured for stages in one.stages.values() if stages.group == number]
    own = [_own_parts(stages) for stages in found]
    parts = {part: median(one[part] for one in own) for part in own[0]}
    assigned = [
        client_id in one.current.results.verified
        for one in played.rounds
        for client_id, stages in one.stages.items()
        if stages.group == number and stages.batches
    ]
    moved = [_moved(played.model, stages) for stages in found]
    batches = sum(stages.batches for stages in found) / len(found)
    return GroupPlan(
        group=played.groups[number],
        batches=batches * played.scale.result_copies[number] / played.scale.copies[number],
        parts=parts | {"waiting": max(0.0, round_s - sum(parts.values()))},
        sent_bytes=median(sent for sent, _ in moved),
        received_bytes=median(received for _, received in moved),
        delivered_part=sum(assigned) / len(assigned) if assigned else 1.0,
    )


def _moved(model: RoundModel, stages: Stages) -> tuple[float, float]:
    """Return the bytes that a client sends and receives for one round."""
    requests, sent, received = 2.0, 0.0, DOCUMENT_BYTES + float(model.sizes.update_bytes)
    if stages.delivery is not None:
        requests += 1 if model.is_delivered else 2
        sent += model.sizes.result_bytes + REPORT_BYTES
        received += stages.batches * model.sizes.data_bytes_per_batch
    if stages.attests_s is not None:
        requests += 2
        sent += REPORT_BYTES
        received += ENTRY_BYTES * model.client_count
    return sent + requests * MESSAGE_BYTES, received + requests * MESSAGE_BYTES


def machines_of(state: StateFile, played: PlayedRun, round_s: float) -> Machines:
    """Return the machines' needs, with rounds of this length."""
    model, scale, sizes, count = played.model, played.scale, played.model.sizes, played.model.client_count
    results = witnesses = 0.0
    for found in played.rounds:
        for stages in found.stages.values():
            results += scale.result_copies[stages.group] * (stages.delivery is not None)
            witnesses += scale.witness_copies * (stages.attests_s is not None)
    rounds = max(1e-9, played.rounds[-1].ended_s - played.rounds[0].started_s) / round_s
    results, witnesses = results / rounds, witnesses / rounds
    messages = 2 * count + 2 * witnesses + results * (1 if model.is_delivered else 4 if model.through_store else 2)
    made_bytes, update_bytes = results * sizes.result_bytes, float(count * sizes.update_bytes)
    to_bytes = messages * MESSAGE_BYTES + (results + witnesses) * REPORT_BYTES + made_bytes
    from_bytes = messages * MESSAGE_BYTES + count * (DOCUMENT_BYTES + witnesses * ENTRY_BYTES)
    check_s = model.check_s if model.is_delivered else 0.0
    blobs = (sizes.checkpoint_bytes, sizes.result_bytes, sizes.update_bytes)
    revealed = revealed_room(state, count, sizes.result_bytes, MOMENTS_BYTES * sizes.parameter_count)
    room, stored = room_needed(*blobs, count, state.config.checkpoint_every, revealed), model.through_store
    return Machines(
        client_memory_bytes=int(12.8 * sizes.parameter_count)
        + 250_000_000,  # as `python -m benchmarks goodput` measures
        coordinator_disk_bytes=0 if stored else room,
        store_disk_bytes=room if stored else 0,
        to_coordinator_bytes=to_bytes,
        from_coordinator_bytes=from_bytes + (sizes.update_bytes if stored else update_bytes),
        to_store_bytes=made_bytes + sizes.update_bytes if stored else 0.0,
        from_store_bytes=made_bytes + update_bytes if stored else 0.0,
        base_bytes=base_sizes(state),
        processor_part=(messages * model.costs.message_s + results * check_s) / round_s,
    )
