"""`plan_run`: how a run will go before it starts: the time of a round and its parts, bytes, machines, days, bottleneck.

The run is played in virtual time (`epochal/tools/plan/played_run.py`) until its members' shares have grown; the figures
are medians of the rounds after that.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from epochal.coordinator.blobs.room import room_needed
from epochal.coordinator.machine.checkpoints import TURN_PARTS_OF_ANNOUNCED
from epochal.state.config.state_file import RunConfig, StateFile
from epochal.state.errors import InvalidInput
from epochal.state.round_model import PARTS, ClientGroup, RoundModel, RunSizes
from epochal.state.schedule import global_batch_size
from epochal.tools.plan.bottleneck import bottleneck
from epochal.tools.plan.exceeded_limits import round_notes
from epochal.tools.plan.figures import applied_batches, group_plans, path_of, server_load
from epochal.tools.plan.plans import Machines, Plan, PlanOptions
from epochal.tools.plan.played_run import PlayedRound, PlayedRun
from epochal.tools.plan.scale import Scale
from epochal.tools.plan.scenario import MAX_CLIENTS
from epochal.tools.plan.sizes import client_disk_bytes, client_memory_bytes, sizes_of
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
    sizes = sizes_of(state, options.parameter_count)
    config = state.config
    notes = tuple(note.text for note in timer_notes(state, sizes, groups, options.links))
    whole = sum(group.count for group in groups)
    if whole < config.init_min_clients:
        text = f"the run waits for config.init_min_clients = {config.init_min_clients} clients, and there are {whole}"
        return Plan(sizes, whole, text, notes)
    played = _played(state, groups, options, sizes, config.global_batch_size_end)
    played.play(SETTLING_ROUNDS + MEASURED_ROUNDS)
    measured = [found for found in played.rounds[SETTLING_ROUNDS:] if found.applied_batches]
    if not measured:
        phase_s, phase, reason = played.phases[-1]
        text = f"no round ends with an outcome: after {phase_s:,.0f} s the run is in {phase.value}"
        return Plan(sizes, whole, f"{text} ({reason.partition(';')[0]})", notes)
    found = _figures(state, groups, options, played, measured)
    return replace(found, warnings=(*round_notes(state, found), *notes))


def _played(
    state: StateFile, groups: Sequence[ClientGroup], options: PlanOptions, sizes: RunSizes, batches: int
) -> PlayedRun:
    """Return a run whose rounds have so many batches, before anything has happened in it."""
    scale = Scale.of(state, groups, batches, options.most_played)
    whole, in_store = sum(group.count for group in groups), state.blobs.store is not None
    model = RoundModel(sizes, options.links, options.costs, state.merge.codec, in_store, whole)
    return PlayedRun(state, groups, model, scale)


def _figures(
    state: StateFile,
    groups: Sequence[ClientGroup],
    options: PlanOptions,
    played: PlayedRun,
    measured: Sequence[PlayedRound],
) -> Plan:
    sizes, client_count = played.model.sizes, played.model.client_count
    began_s, ended_s = measured[0].started_s, played.rounds[-1].ended_s
    round_s = (ended_s - began_s) / len(measured)
    paths = [path_of(found) for found in measured]
    parts = {name: median(path[name] for path in paths) for name in PARTS}
    share = round_s / (sum(parts.values()) or 1.0)
    parts = {name: seconds * share for name, seconds in parts.items()}
    batches = sum(applied_batches(played, found) for found in measured) / len(measured)
    of_groups = group_plans(played, measured, round_s)
    warm_up_s = played.rounds[0].started_s
    kind, limit, text = bottleneck(parts, played, measured[-1])
    checkpoint_s = _checkpoint_s(state, played, measured)
    gap_s = None
    if checkpoint_s is not None:
        again_s = max(played.model.heard_s(group) + played.model.reported_s(group, client_count) for group in groups)
        gap_s = checkpoint_s + state.config.waiting_for_members_extra_time + again_s
    rounds_of_epoch = max(1, math.ceil(state.config.epoch_time / round_s))
    steps = max(0, state.config.total_steps - state.progress.step + 1)
    work_s = _all_rounds_s(state, groups, options, sizes, round_s)
    epochs = max(1, math.ceil(work_s / (rounds_of_epoch * round_s))) if steps else 0
    whole_s = warm_up_s + work_s + max(0, epochs - 1) * (gap_s or 0.0) + (checkpoint_s or 0.0)
    tokens = batches * sizes.tokens_per_batch
    return Plan(
        sizes=sizes,
        client_count=client_count,
        played_count=len(played.clients),
        batches=round(batches),
        tokens=tokens,
        round_s=round_s,
        parts=parts,
        tokens_per_s=tokens / (round_s + (gap_s or 0.0) / rounds_of_epoch),
        groups=of_groups,
        machines=_machines(state, played, round_s),
        warm_up_s=warm_up_s,
        checkpoint_s=checkpoint_s,
        between_epochs_s=gap_s,
        epochs=epochs,
        days=whole_s / DAY_S,
        bottleneck=text,
        kind=kind,
        limit=limit,
        warnings=(),
    )


def _checkpoint_s(state: StateFile, played: PlayedRun, measured: Sequence[PlayedRound]) -> float | None:
    """Return how long Cooldown takes; None if no client can upload a checkpoint in time.

    One client is asked after the other, each for its turn; which is the first is a matter of chance.
    """
    limit_s, took = state.config.cooldown_time, list[float]()
    for number, group in enumerate(played.groups):
        held_s = median(
            stages.held_s - found.started_s
            for found in measured
            for stages in found.stages.values()
            if stages.group == number
        )
        took.append(held_s + played.model.checkpoint_s(group))
    if min(took) > limit_s:
        return None
    turn_s = limit_s / TURN_PARTS_OF_ANNOUNCED
    asked = [one_s if one_s <= turn_s else min(one_s, turn_s + min(took)) for one_s in took]
    counts = [group.count for group in played.groups]
    return sum(map(float.__mul__, asked, map(float, counts))) / sum(counts)


def _machines(state: StateFile, played: PlayedRun, round_s: float) -> Machines:
    model = played.model
    sizes, count = model.sizes, model.client_count
    room = room_needed(sizes.checkpoint_bytes, count * sizes.result_bytes, state.config.checkpoint_every)
    return Machines(
        client_memory_bytes=client_memory_bytes(sizes),
        client_disk_bytes=client_disk_bytes(sizes, state, count),
        coordinator_memory_bytes=COORDINATOR_MEMORY_BYTES + UNREAD_MEMORY_BYTES + count * MEMBER_MEMORY_BYTES,
        coordinator_disk_bytes=0 if model.through_store else room,
        store_disk_bytes=room if model.through_store else 0,
        spool_bytes=sizes.checkpoint_bytes,
        journal_bytes_per_day=round(JOURNAL_BYTES * count * DAY_S / round_s),
        **server_load(played, round_s),
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
    played = _played(state, groups, options, sizes, start)
    played.play(SETTLING_ROUNDS)
    start_s = median(found.ended_s - found.started_s for found in played.rounds[-MEASURED_ROUNDS:])
    return sum(count * (start_s + (end_s - start_s) * (size - start) / (end - start)) for size, count in rounds)
