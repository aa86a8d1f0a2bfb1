"""`plan_run`: how a run will go before it starts: the time of a round and its parts, bytes, machines, days, bottleneck.

The run is played in virtual time (`epochal/tools/plan/played_run.py`) until its members' shares have grown; the figures
are medians of the rounds after that.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from epochal.coordinator.blobs.room import room_needed
from epochal.state.config.state_file import RunConfig, StateFile
from epochal.state.errors import InvalidInput
from epochal.state.schedule import global_batch_size
from epochal.tools.plan.bottleneck import bottleneck
from epochal.tools.plan.exceeded_limits import round_notes
from epochal.tools.plan.plans import PARTS, Machines, Plan, PlanOptions
from epochal.tools.plan.played_coordinator import PlayedRound
from epochal.tools.plan.played_line import ANSWER_BYTES
from epochal.tools.plan.played_run import PlayedRun, Scale, play
from epochal.tools.plan.round_figures import applied_batches, group_plans, path_of
from epochal.tools.plan.scenario import MAX_CLIENTS, ClientGroup
from epochal.tools.plan.sizes import RunSizes
from epochal.tools.plan.timers import timer_notes

SETTLING_ROUNDS = 11
"""Rounds until members' shares have grown and the time limit of rounds follows the rounds before."""
MEASURED_ROUNDS = 4
DAY_S = 86_400.0
MAX_STEPS_ONE_BY_ONE = 100_000
"""Steps of a run with growing rounds whose sizes are computed one by one; of more, every few of them."""
COORDINATOR_MEMORY_BYTES = 130_000_000
MEMBER_MEMORY_BYTES = 46_000
UNREAD_MEMORY_BYTES = 268_435_456
"""Of a coordinator without members, for each member, and of answers that wait to be read (`docs/operations.md`)."""
JOURNAL_BYTES = 500
"""Of the journal for each member and round (`docs/operations.md`)."""


def check_groups(groups: Sequence[ClientGroup]) -> None:
    """Raise `InvalidInput` unless there are clients, within a run's maximum, with rates above 0."""
    for group in groups:
        rates = (group.link.down_bytes_per_s, group.link.up_bytes_per_s, group.tokens_per_s)
        if group.count < 1 or group.round_trip_s < 0 or not all(math.isfinite(rate) and rate > 0 for rate in rates):
            raise InvalidInput(f"{group}: a count of at least 1, finite rates above 0 and a round trip are allowed")
    count = sum(group.count for group in groups)
    if not 1 <= count <= MAX_CLIENTS:
        raise InvalidInput(f"a plan for {count} clients; allowed: 1 to {MAX_CLIENTS}")


def plan_run(state: StateFile, groups: Sequence[ClientGroup], options: PlanOptions | None = None) -> Plan:
    """Return how a run will go with these clients, all there from the beginning. It has no suggestions yet.

    Args:
        state: the run's state file.
        groups: the clients.
        options: links, costs and sizes; None for the defaults.

    Raises:
        InvalidInput: no clients, too many, or a model whose size is not known.
        Unsupported: the model cannot be laid out with what is installed here.
    """
    options = options or PlanOptions()
    check_groups(groups)
    sizes = RunSizes.of(state, options.parameter_count)
    config = state.config
    notes = tuple(note.text for note in timer_notes(state, sizes, groups, options.links))
    whole = sum(group.count for group in groups)
    if whole < config.init_min_clients:
        text = f"the run waits for config.init_min_clients = {config.init_min_clients} clients, and there are {whole}"
        return _never(sizes, groups, options, notes, text)
    batches = config.global_batch_size_end
    scale = Scale.of(state, groups, batches, options.most_played)
    rounds = SETTLING_ROUNDS + MEASURED_ROUNDS
    played = play(scale.state(state), sizes, groups, options.links, options.costs, rounds, scale)
    measured = [found for found in played.rounds[SETTLING_ROUNDS:] if found.applied_batches]
    if not measured:
        phase_s, phase, reason = played.phases[-1]
        text = f"no round ends with an outcome: after {phase_s:,.0f} s the run is in {phase.value}"
        return _never(sizes, groups, options, notes, f"{text} ({reason.partition(';')[0]})")
    found = _figures(state, groups, options, sizes, scale, played, measured)
    return replace(found, warnings=(*round_notes(state, found), *notes))


def _figures(
    state: StateFile,
    groups: Sequence[ClientGroup],
    options: PlanOptions,
    sizes: RunSizes,
    scale: Scale,
    played: PlayedRun,
    measured: Sequence[PlayedRound],
) -> Plan:
    clients = {client.client_id: client for client in played.clients}
    rounds = [found for found in played.rounds if found.started_s >= measured[0].started_s]
    began_s, ended_s = rounds[0].started_s, rounds[-1].ended_s
    round_s = (ended_s - began_s) / len(measured)
    paths = [path_of(found, clients) for found in measured]
    parts = {name: median(path[name] for path in paths) for name in PARTS}
    share = round_s / (sum(parts.values()) or 1.0)
    parts = {name: seconds * share for name, seconds in parts.items()}
    batches = applied_batches(measured, clients) / len(measured)
    of_groups = group_plans(groups, scale, played, measured, round_s)
    epoch_s = state.config.epoch_time
    gap_s = played.epoch_gap_s
    rounds_of_epoch = max(1, math.ceil(epoch_s / round_s))
    between_s = (gap_s or 0.0) / rounds_of_epoch
    tokens = batches * sizes.tokens_per_batch
    steps = max(0, state.config.total_steps - state.progress.step + 1)
    work_s = _all_rounds_s(state, groups, options, sizes, round_s)
    epochs = max(1, math.ceil(work_s / (rounds_of_epoch * round_s))) if steps else 0
    warm_up_s = played.rounds[0].started_s
    whole_s = warm_up_s + work_s + max(0, epochs - 1) * (gap_s or 0.0) + (played.checkpoint_s or 0.0)
    server = "the object store" if state.blobs.store is not None else "the coordinator"
    link = options.links.coordinator if state.blobs.store is None else options.links.store
    if played.servers.results_from.bytes_per_s < link.up_bytes_per_s:
        server = "the coordinator, whose processor answers each of these requests"
    kind, limit, text = bottleneck(parts, measured, clients, sizes.result_bytes, server)
    return Plan(
        sizes=sizes,
        client_count=sum(group.count for group in groups),
        played_count=len(played.clients),
        batches=round(batches),
        tokens=tokens,
        round_s=round_s,
        parts=parts,
        tokens_per_s=tokens / (round_s + between_s),
        groups=of_groups,
        machines=_machines(state, groups, sizes, played, round_s),
        warm_up_s=warm_up_s,
        checkpoint_s=played.checkpoint_s,
        between_epochs_s=gap_s,
        epochs=epochs,
        days=whole_s / DAY_S,
        bottleneck=text,
        kind=kind,
        limit=limit,
        warnings=(),
        costs=options.costs,
    )


def _machines(
    state: StateFile,
    groups: Sequence[ClientGroup],
    sizes: RunSizes,
    played: PlayedRun,
    round_s: float,
) -> Machines:
    count = sum(group.count for group in groups)
    every = state.config.checkpoint_every
    room = room_needed(sizes.checkpoint_bytes, count * sizes.result_bytes, every)
    servers, checkpoints = played.servers, count * sizes.checkpoint_bytes
    written = sizes.checkpoint_bytes if played.checkpoint_s is not None else 0
    results = servers.results_from.moved_bytes
    moved = [servers.to_coordinator.moved_bytes, servers.from_coordinator.moved_bytes, 0.0, 0.0]
    if servers.to_store is not None and servers.from_store is not None:
        moved[2:] = servers.to_store.moved_bytes, servers.from_store.moved_bytes
    first = 0 if servers.to_store is None else 2
    moved[first] -= written
    moved[first + 1] += results - checkpoints
    to_coordinator, from_coordinator, to_store, from_store = (max(0.0, one) / len(played.rounds) for one in moved)
    in_store = servers.to_store is not None
    answering_s = results / (sizes.result_bytes + ANSWER_BYTES) * played.coordinator.costs.message_s
    played_s = max(1e-9, played.coordinator.timeline.now_s)
    return Machines(
        client_memory_bytes=sizes.client_memory_bytes(),
        client_disk_bytes=sizes.client_disk_bytes(state, count),
        coordinator_memory_bytes=COORDINATOR_MEMORY_BYTES + UNREAD_MEMORY_BYTES + count * MEMBER_MEMORY_BYTES,
        coordinator_disk_bytes=0 if in_store else room,
        store_disk_bytes=room if in_store else 0,
        spool_bytes=sizes.checkpoint_bytes,
        journal_bytes_per_day=round(JOURNAL_BYTES * count * DAY_S / round_s),
        to_coordinator_bytes=to_coordinator,
        from_coordinator_bytes=from_coordinator,
        to_store_bytes=to_store,
        from_store_bytes=from_store,
        processor_part=(played.coordinator.busy_s + answering_s) / played_s,
    )


def sizes_of_rounds(config: RunConfig, first: int, tokens_per_batch: int) -> list[tuple[int, int]]:
    """Return the sizes of the rounds to the end, each with how many rounds in a row have it, as rounds apply all."""
    found: list[tuple[int, int]] = []
    step, tokens = first, 0
    stride = max(1, (config.total_steps - first + 1) // MAX_STEPS_ONE_BY_ONE)
    while step <= config.total_steps:
        size = global_batch_size(config, tokens)
        left = config.total_steps - step + 1
        count = left if size == config.global_batch_size_end else min(stride, left)
        found.append((size, count))
        step, tokens = step + count, tokens + count * size * tokens_per_batch
    return found


def _all_rounds_s(
    state: StateFile, groups: Sequence[ClientGroup], options: PlanOptions, sizes: RunSizes, end_s: float
) -> float:
    """Return the time of all rounds: rounds that grow are between those of the first and of the last size."""
    config = state.config
    start, end = config.global_batch_size_start, config.global_batch_size_end
    rounds = sizes_of_rounds(config, state.progress.step, sizes.tokens_per_batch)
    if start == end or not rounds or rounds[0][0] == end:
        return end_s * sum(count for _, count in rounds)
    scale = Scale.of(state, groups, start, options.most_played)
    played = play(
        scale.state(state), sizes, groups, options.links, options.costs, SETTLING_ROUNDS, scale, with_epoch_end=False
    )
    start_s = median(found.ended_s - found.started_s for found in played.rounds[-MEASURED_ROUNDS:])
    return sum(count * (start_s + (end_s - start_s) * (size - start) / (end - start)) for size, count in rounds)


def _never(
    sizes: RunSizes, groups: Sequence[ClientGroup], options: PlanOptions, warnings: tuple[str, ...], text: str
) -> Plan:
    """Return the plan of a run that never reaches a round."""
    return Plan(
        sizes=sizes,
        client_count=sum(group.count for group in groups),
        played_count=0,
        batches=0,
        tokens=0.0,
        round_s=math.inf,
        parts=dict.fromkeys(PARTS, 0.0),
        tokens_per_s=0.0,
        groups=(),
        machines=Machines(0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0),
        warm_up_s=math.inf,
        checkpoint_s=None,
        between_epochs_s=None,
        epochs=0,
        days=math.inf,
        bottleneck=text,
        kind="nothing",
        limit="machine",
        warnings=warnings,
        costs=options.costs,
    )
