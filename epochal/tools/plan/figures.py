"""The figures of played rounds: the parts of a round along what determined its end, each group's own, and the bytes."""

from collections.abc import Sequence
from statistics import median

from epochal.coordinator.blobs.room import room_needed
from epochal.state.config.state_file import StateFile
from epochal.state.messages.history_rows import ClientFigures
from epochal.state.round_model import (
    DOCUMENT_BYTES,
    ENTRY_BYTES,
    MESSAGE_BYTES,
    PARTS,
    REPORT_BYTES,
    RoundModel,
)
from epochal.state.shown.critical_path import PartKind, path_through
from epochal.state.wire import ClientId
from epochal.tools.plan.plans import GroupPlan, Machines
from epochal.tools.plan.played_run import PlayedClient, PlayedRound, PlayedRun, Stages
from epochal.tools.plan.sizes import base_sizes, client_disk_bytes, client_memory_bytes

PART_OF: dict[PartKind, str] = {
    "document": "messages",
    "replica": "download",
    "train": "training",
    "encode": "encoding",
    "attest": "messages",
    "missing": "waiting",
}
"""The part of a plan to which each part of a round's time belongs, where it has another name."""
OWN_TIMES = {
    "training": "train_s",
    "data": "data_s",
    "encoding": "encode_s",
    "upload": "upload_s",
    "check": "check_s",
    "merge": "merge_s",
}
"""The time of a client's row that is its own time for a part."""


def path_of(found: PlayedRound) -> dict[str, float]:
    """Return the parts of a round along its critical path, which is that of the page's explanation.

    With `merge.delay` the parts of a client's work lie beside one another, and are longer than the round together.
    """
    if found.current.tasks.starts is not None:
        return _beside(last_delivered(found))
    rows = [_row(found, client_id, stages) for client_id, stages in found.stages.items()]
    total_s = found.ended_s - found.started_s
    last_s = last_delivered(found).delivered.verified_s - found.started_s
    train_s = total_s if found.current.missing.pending else last_s
    parts = dict.fromkeys(PARTS, 0.0)
    for span in path_through(rows, train_s, total_s, rows):
        parts[PART_OF.get(span.kind, span.kind)] += span.seconds
    stages = last_delivered(found)
    parts["update"] = min(parts["download"], stages.published_s - stages.heard_s)
    parts["download"] -= parts["update"]
    return parts


def _beside(stages: Stages) -> dict[str, float]:
    """Return the parts of the work of a client that began before the round."""
    one = stages.delivered
    return dict.fromkeys(PARTS, 0.0) | {
        "training": one.trained_s - one.data_s - one.held_s,
        "data": one.data_s,
        "encoding": one.encoded_s - one.trained_s,
        "upload": one.sent_s - max(one.encoded_s, stages.sends_from_s),
        "check": one.verified_s - one.sent_s,
        "update": stages.published_s - stages.heard_s,
        "download": stages.fetched_s - stages.published_s,
        "merge": stages.held_s - stages.fetched_s,
    }


def _row(found: PlayedRound, client_id: ClientId, stages: Stages) -> ClientFigures:
    """Return a client's round as the coordinator's history has it."""
    one, is_applied = stages.delivery, client_id in found.current.results.verified
    return ClientFigures(
        client_id=client_id,
        batches=stages.batches,
        witness=False,  # a witness fetches no more than the others
        fate="applied" if is_applied else "missing" if stages.batches else "idle",
        detail="",
        committed_s=None,
        delivered_s=one.verified_s - found.started_s if one is not None and is_applied else None,
        attested_s=None if stages.attests_s is None else stages.attests_s - found.started_s,
        result_bytes=0,
        train_s=None if one is None else one.trained_s - one.data_s - one.held_s,
        fetching_s=None,
        decoding_s=None,
        packing_s=None,
        tokens=0,
        loss=None,
        replica_s=stages.held_s - stages.heard_s,
        data_s=None if one is None else one.data_s,
        encode_s=None if one is None else one.encoded_s - one.trained_s,
        upload_s=None if one is None else one.sent_s - max(one.encoded_s, stages.sends_from_s),
        check_s=None if one is None else one.verified_s - one.sent_s,
        download_s=stages.fetched_s - stages.heard_s,
        merge_s=stages.held_s - stages.fetched_s,
    )


def last_delivered(found: PlayedRound) -> Stages:
    """Return the stages of the client whose result was checked last, of those that count."""
    delivered = [found.stages[client_id] for client_id in found.current.results.verified]
    return max(delivered, key=lambda stages: stages.delivered.verified_s)


def applied_batches(played: PlayedRun, found: PlayedRound) -> float:
    """Return the number of batches that a round applied, with those that played ones represent."""
    return sum(
        played.scale.result_copies[stages.group] * stages.batches
        for client_id in found.current.results.verified
        for stages in (found.stages[client_id],)
    )


def group_plans(played: PlayedRun, measured: Sequence[PlayedRound], round_s: float) -> tuple[GroupPlan, ...]:
    """Return the figures of each group."""
    return tuple(
        _group(played, number, [one for one in played.clients if one.group == number], measured, round_s)
        for number in range(len(played.groups))
    )


def _group(
    played: PlayedRun, number: int, members: Sequence[PlayedClient], measured: Sequence[PlayedRound], round_s: float
) -> GroupPlan:
    found = [(one, member.client_id, one.stages[member.client_id]) for one in measured for member in members]
    rows = [_row(*each) for each in found]
    parts = {part: median(getattr(row, time) or 0.0 for row in rows) for part, time in OWN_TIMES.items()}
    parts["update"] = median(stages.published_s - stages.heard_s for _, _, stages in found)
    parts["download"] = median(stages.fetched_s - stages.published_s for _, _, stages in found)
    assigned = [
        member.client_id in one.current.results.verified
        for one in played.rounds
        for member in members
        if one.stages[member.client_id].batches
    ]
    moved = [_moved(played.model, stages) for _, _, stages in found]
    batches = sum(stages.batches for _, _, stages in found) / len(found)
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
    room = room_needed(sizes.checkpoint_bytes, count * sizes.result_bytes, state.config.checkpoint_every)
    stored = model.through_store
    return Machines(
        client_memory_bytes=client_memory_bytes(sizes),
        client_disk_bytes=client_disk_bytes(sizes, state),
        coordinator_disk_bytes=0 if stored else room,
        store_disk_bytes=room if stored else 0,
        to_coordinator_bytes=to_bytes,
        from_coordinator_bytes=from_bytes + (sizes.update_bytes if stored else update_bytes),
        to_store_bytes=made_bytes + sizes.update_bytes if stored else 0.0,
        from_store_bytes=made_bytes + update_bytes if stored else 0.0,
        base_bytes=base_sizes(state),
        processor_part=(messages * model.costs.message_s + results * check_s) / round_s,
    )
