"""`plan_run`: how a run will go before it starts: the time of a round and its parts, bytes, machines, days, bottleneck.

The run is played in virtual time (`epochal/tools/plan/played_run.py`) until its members' work follows their speeds;
the figures are medians of the rounds after that.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from epochal.coordinator.machine.checkpoints import TURN_PARTS_OF_ANNOUNCED
from epochal.state.config.model_table import DataType
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidInput
from epochal.state.round_model import PARTS, ClientGroup, RoundModel
from epochal.state.text.amounts import shown_s
from epochal.tools.critical_batch import price_of_batch
from epochal.tools.plan.figures import applied_batches, group_plan, last_delivered, machines_of, path_of
from epochal.tools.plan.plans import DAY_S, GroupPlan, Plan, PlanOptions
from epochal.tools.plan.played_run import PlayedRound, PlayedRun, Stages
from epochal.tools.plan.scale import Scale
from epochal.tools.plan.scenario import MAX_CLIENTS
from epochal.tools.plan.sizes import round_model
from epochal.tools.plan.timers import timer_notes
from epochal.tools.quality import loss_beside_one_machine, optimizer_of, source

SHARED = 1.3
"""Multiple of the time that a transfer would take over the client's link alone, from which another link is to blame."""
WORDS = {
    "training": ("client", "is training by {}"),
    "data": ("client", "is waiting for data by {}, beyond the time of training"),
    "messages": ("latency", "are messages on their way, and their turn at the coordinator"),
    "waiting": ("client", "is waiting for clients that do not deliver in time"),
    "merge": ("machine", "is the outer step on the client's machine"),
    "update": ("machine", "is adding up, encoding and publishing the update on the coordinator's machine"),
    "encoding": ("machine", "is encoding a result on the client's machine"),
    "check": ("machine", "is checking a result on the coordinator's machine"),
}
"""The limit of each part of a round, and the sentence about it, which names the slowest clients."""
SETTLING_ROUNDS = 11
"""Rounds until members' shares follow their speeds and the time limit of rounds follows the rounds before."""
MEASURED_ROUNDS = 4
MOST_DELIVER = 0.9
LARGE_PART = 0.2
"""Part of an epoch's time that the time between two epochs may take without a warning."""
FEW_ROUNDS = 5
BUSY = 0.7
"""Part of a core that a coordinator may take without a warning."""


def bottleneck(parts: dict[str, float], played: PlayedRun, last: PlayedRound) -> tuple[str, str, str]:
    """Return the largest part of a round, what limits it ("client", "server", "latency", "machine"), and a sentence.

    Args:
        parts: seconds of a round by part.
        played: the run.
        last: its last round.
    """
    kind, stages = max(parts, key=lambda name: parts[name]), last_delivered(last)
    sizes, delivery = played.model.sizes, stages.delivered
    match kind:
        case "upload":
            took_s = delivery.sent_s - max(delivery.encoded_s, stages.sends_from_s)
            limit, words = _of_transfer(played, stages, took_s, sizes.result_bytes, is_up=True)
        case "download":
            stages = max(last.stages.values(), key=lambda one: one.fetched_s - one.published_s)
            took_s = stages.fetched_s - stages.published_s
            limit, words = _of_transfer(played, stages, took_s, sizes.update_bytes, is_up=False)
        case _:
            limit, words = WORDS[kind]
    name = played.groups[stages.group].name
    words = words.format(f"{name!r}" if name else "the slowest clients")
    round_s = sum(parts.values()) or 1.0
    part = f"{100 * parts[kind] / round_s:.0f} % of a round ({shown_s(parts[kind])} of {shown_s(round_s)})"
    return kind, limit, f"{part} {words}"


def _of_transfer(played: PlayedRun, stages: Stages, took_s: float, size_bytes: int, *, is_up: bool) -> tuple[str, str]:
    """Return what limits the longest transfer of a round: a server's link, round trips, or the client's link."""
    group, model = played.groups[stages.group], played.model
    rate = group.link.up_bytes_per_s if is_up else group.link.down_bytes_per_s
    waits_s = 2 * group.round_trip_s + model.slow_start_s(size_bytes, rate, group.round_trip_s)
    if took_s > SHARED * (size_bytes / rate + waits_s):
        server = "the object store" if model.through_store else "the coordinator"
        what = "upload of results by all clients, to" if is_up else "download of the update by every client, from"
        return "server", f"is the {what} {server}"
    if waits_s > size_bytes / rate:
        what = "a result is announced and sent" if is_up else "the update is fetched"
        return "latency", f"is the round trip of {{}} while {what}"
    what = "upload of a result" if is_up else "download of the update"
    return "client", f"is the {what} at {rate * 8 / 1e6:g} Mbit/s by {{}}"


def plan_run(state: StateFile, groups: Sequence[ClientGroup], options: PlanOptions | None = None) -> Plan:
    """Return how a run will go with these clients, all there from the beginning. It has no suggestions yet.

    Each change of the run's settings that alters its rounds is planned, too.

    Args:
        state: the run's state file.
        groups: the clients.
        options: links, costs and sizes; None for the defaults.

    Raises:
        InvalidInput: no clients, too many, or a model whose size is not known.
        Unsupported: the model cannot be laid out with what is installed here.
    """
    options = options or PlanOptions()
    if not 1 <= (whole := sum(group.count for group in groups)) <= MAX_CLIENTS:
        raise InvalidInput(f"a plan for {whole} clients; allowed: 1 to {MAX_CLIENTS}")
    settings, plans = _settings(state), list[Plan]()
    ends = [*(step for step, _ in settings[1:]), state.config.total_steps + 1]
    for (step, then), end in zip(settings, ends, strict=True):
        plan, count = _plan_of(then, groups, options), max(0, end - step)
        plans.append(replace(plan, step=step, count=count, days=count * plan.round_s / DAY_S if count else 0.0))
        if plans[0].kind == "nothing":
            return replace(plan, days=math.inf)
    found, *later = plans
    epochs, days = _to_the_end(state, plans)
    return replace(found, epochs=epochs, days=days, later=tuple(later))


def _settings(state: StateFile) -> list[tuple[int, StateFile]]:
    """Return the settings of the next round, and each later ones with other rounds, with the step of their first."""
    now = in_force(state)
    found = [(state.progress.step, now.model_copy(update={"changes": ()}))]
    for change in now.changes:
        then, before = state.at(change.at_step), found[-1][1]
        if change.at_step <= state.config.total_steps and (then.config, then.merge) != (before.config, before.merge):
            found.append((change.at_step, then))
    return found


def in_force(state: StateFile) -> StateFile:
    """Return a file whose own settings are those of the next round, with the changes that are still to come."""
    step = state.progress.step
    left = tuple(change for change in state.changes if change.at_step > step)
    return state if left == state.changes else state.at(step).model_copy(update={"changes": left})


def _to_the_end(state: StateFile, plans: Sequence[Plan]) -> tuple[int, float]:
    """Return the epochs and days until the rounds of all of these plans have ended."""
    found, days = plans[0], sum(plan.days for plan in plans)
    if not math.isfinite(days):
        return 0, math.inf
    epochs = math.ceil(sum(plan.count / _rounds_of_epoch(state, plan.round_s) for plan in plans if plan.count))
    between_s = max(0, epochs - 1) * (found.between_epochs_s or 0.0)
    return epochs, days + (found.warm_up_s + between_s + (found.checkpoint_s or 0.0)) / DAY_S


def _rounds_of_epoch(state: StateFile, round_s: float) -> int:
    return max(1, math.ceil(state.config.epoch_time / round_s))


def _plan_of(state: StateFile, groups: Sequence[ClientGroup], options: PlanOptions) -> Plan:
    """Return the plan of a run with the same settings throughout; its epochs and days are not known yet."""
    config, model = state.config, round_model(state, groups, options)
    sizes, whole = model.sizes, model.client_count
    notes = tuple(note.text for note in timer_notes(state, model, groups))
    if whole < config.init_min_clients:
        text = f"the run waits for config.init_min_clients = {config.init_min_clients} clients, and there are {whole}"
        return Plan(sizes, whole, text, notes)
    played = PlayedRun(groups, model, Scale.of(state, groups, options.most_played))
    played.play(SETTLING_ROUNDS + MEASURED_ROUNDS)
    measured = [found for found in played.rounds[SETTLING_ROUNDS:] if found.applied_batches]
    if not measured:
        phase_s, phase, reason = played.phases[-1]
        text = f"no round ends with an outcome: after {phase_s:,.0f} s the run is in {phase.value}"
        return Plan(sizes, whole, f"{text} ({reason})", notes)
    found = _figures(state, groups, played, measured)
    return replace(found, warnings=(*_round_notes(state, found), *notes))


def _figures(
    state: StateFile, groups: Sequence[ClientGroup], played: PlayedRun, measured: Sequence[PlayedRound]
) -> Plan:
    model = played.model
    round_s = (played.rounds[-1].ended_s - measured[0].started_s) / len(measured)
    paths = [path_of(found) for found in measured]
    parts = {name: median(path[name] for path in paths) for name in PARTS}
    parts = _within(parts, round_s, is_beside=bool(state.merge.delay))
    batches = sum(applied_batches(played, found) for found in measured) / len(measured)
    kind, limit, text = bottleneck(parts, played, measured[-1])
    plans = tuple(group_plan(played, number, measured, round_s) for number in range(len(groups)))
    checkpoint_s, gap_s = _checkpoint_s(state, model, plans), None
    if checkpoint_s is not None:
        again_s = max(model.heard_s(group) + model.reported_s(group, model.client_count) for group in groups)
        gap_s = checkpoint_s + state.config.waiting_for_members_extra_time + again_s
    tokens = batches * model.sizes.tokens_per_batch
    return Plan(
        sizes=model.sizes,
        client_count=model.client_count,
        played_count=len(played.clients),
        batches=round(batches),
        tokens=tokens,
        round_s=round_s,
        parts=parts,
        tokens_per_s=tokens / (round_s + (gap_s or 0.0) / _rounds_of_epoch(state, round_s)),
        groups=plans,
        machines=machines_of(state, played, round_s),
        warm_up_s=played.rounds[0].started_s,
        checkpoint_s=checkpoint_s,
        between_epochs_s=gap_s,
        bottleneck=text,
        kind=kind,
        limit=limit,
        warnings=(),
        loss=loss_beside_one_machine(state.merge, optimizer_of(state)),
        loss_source=source(state.merge, optimizer_of(state)) + price_of_batch(state, model.sizes),
    )


def _within(parts: dict[str, float], round_s: float, *, is_beside: bool) -> dict[str, float]:
    """Return parts, whose sum is about a round, as they fill it: with `merge.delay`, what training leaves of it."""
    training = {"training": min(parts["training"], round_s)} if is_beside else {}
    others = parts | dict.fromkeys(training, 0.0)
    share = (round_s - sum(training.values())) / (sum(others.values()) or 1.0)
    return {name: seconds * share for name, seconds in others.items()} | training


def _checkpoint_s(state: StateFile, model: RoundModel, plans: Sequence[GroupPlan]) -> float | None:
    """Return how long Cooldown takes; None if no client can upload a checkpoint in time.

    One client is asked after the other, each for its turn; which is the first is a matter of chance.
    """
    limit_s, took = state.config.cooldown_time, list[float]()
    for plan in plans:
        held_s = model.heard_s(plan.group) + sum(plan.parts[part] for part in ("update", "download", "merge"))
        took.append(held_s + model.checkpoint_s(plan.group))
    if min(took) > limit_s:
        return None
    most_s = limit_s / TURN_PARTS_OF_ANNOUNCED + min(took)
    asked = sum(plan.group.count * min(one_s, most_s) for plan, one_s in zip(plans, took, strict=True))
    return asked / model.client_count


def _round_notes(state: StateFile, found: Plan) -> Iterator[str]:
    """Yield a line for each limit of a run that its plan exceeds."""
    config = state.config
    if state.model.LLM.data_type is DataType.FINETUNING:
        yield "tokens are those of full rows: samples that the run packs, or pads, have fewer"
    for group in found.groups:
        if group.delivered_part < MOST_DELIVER:
            yield (
                f"{100 - 100 * group.delivered_part:.0f} % of the assignments of {group.group.name!r} come too late: "
                "the work is done again by others, and these clients are kept off for a while"
            )
        if group.batches > group.group.batches_per_round:
            more = f"{group.batches:,.4g} batches, more than {group.group.batches_per_round} (--share)"
            yield f"each of {group.group.name!r} gets {more}: what all take is too little for a round"
    if found.between_epochs_s is None:
        yield (
            "epochs end without a checkpoint, because it is not there in time: results and outcomes pile up, and "
            "newcomers have to rebuild the model from all of them"
        )
    elif found.between_epochs_s > LARGE_PART * config.epoch_time:
        part = found.between_epochs_s / (config.epoch_time + found.between_epochs_s)
        needed = math.ceil(found.between_epochs_s / LARGE_PART)
        yield (
            f"config.epoch_time is {config.epoch_time:g} s, and {found.between_epochs_s:,.0f} s pass between two "
            f"epochs: {100 * part:.0f} % of the time; write `epoch_time = {needed}` or more"
        )
    if config.epoch_time < FEW_ROUNDS * found.round_s:
        yield (
            f"config.epoch_time is {config.epoch_time:g} s, in which fewer than {FEW_ROUNDS} rounds of "
            f"{found.round_s:,.3g} s end; write `epoch_time = {math.ceil(10 * FEW_ROUNDS * found.round_s)}`"
        )
    if found.machines.processor_part > BUSY:
        yield (
            f"the coordinator takes {100 * found.machines.processor_part:.0f} % of a core; several coordinators over "
            "PostgreSQL share requests, and an object store hands out results (docs/operations.md)"
        )
